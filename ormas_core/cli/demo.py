"""Train a small CNN on real digits, break it in several ways, and show what the monitor says.

Once under Lightning and once under the transformers Trainer with two faults in the gradients, and
twice in a plain loop with zeroed filters, watched and repaired; on scikit-learn's handwritten
digits, without a network. Exit code 0 only if every injected fault was named with the right layer.
"""

import argparse
import contextlib
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ormas_core import RunFacts

HELP: Final = "train a small CNN, break two layers, show what the monitor says"

_FRAMEWORKS: Final = ("lightning", "transformers")


@dataclass(frozen=True, slots=True)
class _Row:
    """One fault of one run, and whether it was named."""

    framework: str
    layer: str
    diagnosis: str
    injected_at: int
    said: str
    found: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--out", type=Path, default=Path("ormas_demo"), help="folder for the runs (ormas_demo)"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the runs of an earlier demo"
    )


def run(arguments: argparse.Namespace) -> int:
    """Train under both frameworks and print the table."""
    # Nothing is fetched and nothing is reported to anyone.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    started = time.monotonic()
    rows: list[_Row] = []
    for framework in _FRAMEWORKS:
        folder = arguments.out / framework
        print(f"Training under {framework} ...", flush=True)
        with _quiet():
            tags = _train(framework, folder, overwrite=arguments.overwrite)
        facts = _summarise(folder)
        rows += _rows(framework, facts)
        _show_run(folder, facts, tags)
    _show_table(rows)
    channels = _channels(arguments.out, overwrite=arguments.overwrite)
    missed = [row for row in rows if not row.found]
    print(
        f"\n{len(rows) - len(missed)} of {len(rows)} injected faults named with the right layer "
        f"and nothing else, in {time.monotonic() - started:.0f} s."
    )
    return 1 if missed or not channels else 0


def _channels(out: Path, *, overwrite: bool) -> bool:
    """Train with zeroed filters, watched and repaired; return whether just those were proven."""
    from ormas_core import Certificate, MonitorConfig, Repair, read_record
    from ormas_core.cli import demo_training

    wanted = {f"{block}.conv": dead for block, dead in demo_training.ZEROED.items()}
    planted = ", ".join(f"{dead} of {layer}" for layer, dead in wanted.items())
    print(f"\nZeroed filters: {planted}, behind batch norms with a shift of -0.1")
    options: dict[str, Any] = {
        "config": MonitorConfig(check_every=demo_training.CHECK_EVERY),
        "overwrite": overwrite,
        "verbose": False,
    }
    right = True
    for arm, repair in (("watched", False), ("repaired", True)):
        folder = out / arm
        with _quiet():
            accuracy = demo_training.train_channels(folder, options, repair=repair)
        events = [line.event for line in read_record(folder)]
        proven = {e.layer: len(e.units) for e in events if isinstance(e, Certificate) and e.initial}
        written = sum(len(e.units) for e in events if isinstance(e, Repair) and not e.refused)
        right = right and proven == wanted
        found = ", ".join(f"{count} of {layer}" for layer, count in proven.items())
        print(f"  {arm:<9} certificates for {found}; {written} re-initialised; ", end="")
        print(f"accuracy {accuracy:.1%}")
    return right


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the frameworks say of themselves out of the demo's output."""
    import logging

    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logging.disable(logging.NOTSET)


def _train(framework: str, folder: Path, *, overwrite: bool) -> dict[str, str]:
    """Train one run and return the tags of its MLflow run, read back from the store."""
    from ormas_core import MonitorConfig, RecordExistsError, missing_extra

    try:
        from ormas_core.cli import demo_training
        from ormas_mlflow import MLflowSink
    except ImportError as error:
        raise missing_extra(error.name or "scikit-learn", "demo") from error

    if not overwrite and (folder / "record.jsonl").exists():
        raise RecordExistsError(
            str(folder), f"{folder} holds an earlier demo: choose another --out, or --overwrite it"
        )
    if overwrite:
        for leftover in (folder / "mlflow.db", folder / "summary.md"):
            leftover.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {
        "out": folder,
        "name": f"demo-{framework}",
        "config": MonitorConfig(check_every=demo_training.CHECK_EVERY),
        "sinks": [MLflowSink.embedded(folder)],
        "overwrite": overwrite,
        "verbose": False,
    }
    demo_training.TRAIN[framework](folder, options)
    return _read_tags(folder)


def _read_tags(folder: Path) -> dict[str, str]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{(folder / 'mlflow.db').resolve()}")
    experiments = [e.experiment_id for e in client.search_experiments()]
    runs = client.search_runs(experiments)
    return {
        name: value
        for found in runs
        for name, value in sorted(found.data.tags.items())
        if name.startswith("ormas.")
    }


def _summarise(folder: Path) -> "RunFacts":
    from ormas_core import read_record, run_facts, summary

    facts = run_facts(line.event for line in read_record(folder))
    (folder / "summary.md").write_text(summary(facts), encoding="utf-8")
    return facts


def _rows(framework: str, facts: "RunFacts") -> list[_Row]:
    """Compare what was injected with the layer alarms; an alarm of another layer spoils the run."""
    from ormas_core import Alarm
    from ormas_core.cli import demo_training

    alarms = [alarm for alarm in facts.alarms if isinstance(alarm, Alarm)]
    wanted = {(fault.layer, fault.diagnosis) for fault in demo_training.FAULTS}
    stray = [a for a in alarms if (a.layer, a.diagnosis.value) not in wanted]
    rows = []
    for fault in demo_training.FAULTS:
        said = [a for a in alarms if (a.layer, a.diagnosis.value) == (fault.layer, fault.diagnosis)]
        in_time = [a for a in said if a.step >= fault.step]
        text = f"{in_time[0].diagnosis} at step {in_time[0].step}" if in_time else "nothing"
        if stray:
            text += f", and also {stray[0].layer} {stray[0].diagnosis}"
        rows.append(
            _Row(
                framework,
                fault.layer,
                fault.diagnosis,
                fault.step,
                text,
                found=len(said) == 1 and bool(in_time) and not stray,
            )
        )
    return rows


def _show_run(folder: Path, facts: "RunFacts", tags: dict[str, str]) -> None:
    print(f"  verdict  {facts.status}, {facts.steps} steps, {facts.checks} checks")
    print(f"  record   {folder / 'record.jsonl'}")
    print(f"  summary  {folder / 'summary.md'}")
    print(f"  MLflow   {folder / 'mlflow.db'}, tags of the run:")
    for name, value in tags.items():
        print(f"    {name} = {value}")


def _show_table(rows: list[_Row]) -> None:
    print(f"\n{'framework':<13}{'injected':<38}{'the monitor said':<38}named")
    for row in rows:
        injected = f"{row.layer} {row.diagnosis} at step {row.injected_at}"
        print(f"{row.framework:<13}{injected:<38}{row.said:<38}{'yes' if row.found else 'NO'}")
