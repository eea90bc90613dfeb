"""What drives the training loop, as far as the monitor must know."""

from dataclasses import dataclass
from typing import Any, Final

from ormas_core.terms import Mechanism, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Facts an adapter hands to `Monitor`.

    Attributes:
        framework: what drives the loop, for the record.
        stage: the state gradients are in when `step()` is called.
        prepares: whether the host calls `prepare()` before the first forward pass of each
            optimizer step. Otherwise `step()` prepares the next one.
        segment: 0 starts a record; higher numbers continue the one in the run folder.
        run_id: identifier of the run that a later segment continues; empty for a new one.
        compiled: whether the host runs the model through `torch.compile` behind a wrapper of its
            own, so that the model given does not show it.
        gives_outputs: whether the host calls `note_output()` itself, so that losses are not asked
            for their graph.
        watched: places of the optimizers whose steps are checked; None for all that are given.
        clip_norm: total norm of all gradients to which the host clips after the check; None where
            it does not, or clips otherwise.
        replaces_loss: whether the host logs another value in place of a loss that is not finite.
        loss_hint: why there may be no loss, and what to do; empty for what is said of any loop.
        notes: manifest lines only the host can know.
        state: what `Monitor.state_dict()` returned when the checkpoint was saved that the host
            resumes from; None where it does not resume.
    """

    framework: str
    stage: Stage = Stage.UNSCALED
    prepares: bool = False
    segment: int = 0
    run_id: str = ""
    compiled: bool = False
    gives_outputs: bool = False
    watched: tuple[int, ...] | None = None
    clip_norm: float | None = None
    replaces_loss: bool = False
    loss_hint: str = ""
    notes: tuple[Mechanism, ...] = ()
    state: Any = None


PLAIN_LOOP: Final = Host(framework="torch")
