"""Which run folder a training writes, where one callback serves several."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ormas_core import Mechanism, MechanismState


@dataclass(slots=True)
class Run:
    """A run folder, and how often the loop was started on its record.

    Attributes:
        out: the folder.
        segments: how often.
        run_id: identifier of the run, once it has begun.
    """

    out: str
    segments: int = 0
    run_id: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial of a hyperparameter search.

    Attributes:
        name: what `hp_name` made of it, if it was given.
        params: the parameters of the trial, spelled `name=value`.
    """

    name: str | None
    params: tuple[str, ...]

    @classmethod
    def of(cls, state: Any) -> Self | None:
        """Return the trial that the Trainer is in, or None."""
        if not getattr(state, "is_hyper_param_search", False):
            return None
        params = getattr(state, "trial_params", None) or {}
        return cls(
            name=getattr(state, "trial_name", None),
            params=tuple(f"{name}={value}" for name, value in params.items()),
        )


class TrialPruned(Exception):  # noqa: N818 - it bears the name that optuna's own has
    """The search ended the trial early."""


class Runs:
    """The runs of one callback: that of its own folder, and one for each trial of a search.

    Args:
        out: the folder of the callback; trial number n has the folder `trial-n` in it.
    """

    def __init__(self, out: str | os.PathLike[str]) -> None:
        self._own = Run(os.fspath(out))
        self._trials = 0
        self._trial: Trial | None = None
        self._over = True
        self.current = self._own

    def begin(self, state: Any) -> tuple[Mechanism, ...]:
        """Choose the run of a training that starts; return what the manifest says of it.

        A trial whose training starts again before it has ended is the same one: the Trainer looks
        for a batch size that fits.
        """
        trial = Trial.of(state)
        if trial is None:
            self.current = self._own
        elif self._over or trial != self._trial:
            self.current = Run(str(Path(self._own.out, f"trial-{self._trials}")))
            self._trials += 1
        self._trial, self._over = trial, False
        if trial is None:
            return ()
        number = Path(self.current.out).name
        name = f"{number} ({trial.name})" if trial.name else number
        params = ", ".join(trial.params) or "no parameters"
        return (Mechanism(name="trial", state=MechanismState.ACTIVE, reason=f"{name}: {params}"),)

    def end(self, state: Any, control: Any) -> TrialPruned | None:
        """Note that the Trainer says the training is over; return an error if it was pruned.

        The Trainer says so of a trial that is pruned too, before it raises: then the steps are not
        all done, and nobody has asked it to stop.
        """
        self._over = True
        short = getattr(state, "global_step", 0) < getattr(state, "max_steps", 0)
        stopped = getattr(control, "should_training_stop", False)
        return TrialPruned() if self._trial is not None and short and not stopped else None
