"""The same loop, bare and under both frameworks, is judged the same."""

from pathlib import Path
from typing import TypeVar

import pytest
from support import (
    ToyNet,
    hf_arguments,
    hf_trainer,
    lightning_net,
    lightning_trainer,
    loader,
    plain_loop,
    plant_explosion,
    sgd,
)

from ormas_core import (
    Alarm,
    ClipStarvation,
    Diagnosis,
    Event,
    Measurement,
    MemorySink,
    Monitor,
    MonitorOptions,
    RunEnd,
    RunStart,
    read_record,
    verify_record,
)
from ormas_hf import HFMonitorCallback
from ormas_lightning import LightningMonitorCallback

EXPLOSION_AT = 20
_E = TypeVar("_E", bound=Event)


def _bare(folder: Path, sink: MemorySink) -> None:
    net = ToyNet()
    plant_explosion(net, EXPLOSION_AT)
    optimizer = sgd(net)
    with Monitor(net, optimizer, out=folder, check_every=1, warmup=8, sinks=[sink]) as monitor:
        plain_loop(net, monitor.step, list(loader()), optimizer)


def _lightning(folder: Path, sink: MemorySink) -> None:
    net = lightning_net()
    plant_explosion(net, EXPLOSION_AT)
    callback = LightningMonitorCallback(out=folder, check_every=1, warmup=8, sinks=[sink])
    lightning_trainer(folder.parent, [callback]).fit(net, loader())


def _hf(folder: Path, sink: MemorySink) -> None:
    net = ToyNet()
    plant_explosion(net, EXPLOSION_AT)
    callback = HFMonitorCallback(out=folder, check_every=1, warmup=8, sinks=[sink])
    try:
        hf_trainer(net, hf_arguments(folder.parent / "hf"), [callback]).train()
    finally:
        callback.close()


LOOPS = {"bare": _bare, "lightning": _lightning, "hf": _hf}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[Event]]]:
    """The events of each loop, and its run folder."""
    found = {}
    for name, loop in LOOPS.items():
        folder, sink = tmp_path_factory.mktemp(name) / "run", MemorySink()
        loop(folder, sink)
        found[name] = (folder, sink.events)
    return found


@pytest.mark.parametrize("name", LOOPS)
def test_each_loop_names_the_planted_layer(
    name: str, runs: dict[str, tuple[Path, list[Event]]]
) -> None:
    """The first alarm is the explosion of fc2 at step 20, and nothing alarms before."""
    alarms = [event for event in runs[name][1] if isinstance(event, Alarm)]
    assert (alarms[0].layer, alarms[0].diagnosis, alarms[0].step) == (
        "fc2",
        Diagnosis.EXPLODING,
        EXPLOSION_AT,
    )
    assert alarms[0].value > 1e4 * alarms[0].normal


@pytest.mark.parametrize("name", ["lightning", "hf"])
def test_events_are_those_of_the_bare_loop(
    name: str, runs: dict[str, tuple[Path, list[Event]]]
) -> None:
    """Kinds, steps, layers and diagnoses are equal, values to a relative 1e-5."""
    bare, other = runs["bare"][1], runs[name][1]
    assert [(event.kind, event.step) for event in other] == [(e.kind, e.step) for e in bare]
    for expected, found in zip(bare, other, strict=True):
        match expected, found:
            case Alarm(), Alarm():
                assert (found.layer, found.diagnosis) == (expected.layer, expected.diagnosis)
                assert found.stage is expected.stage
                assert found.value == pytest.approx(expected.value, rel=1e-5)
                assert found.normal == pytest.approx(expected.normal, rel=1e-5)
            case Measurement(), Measurement():
                assert found.layers == expected.layers
                assert found.norms == pytest.approx(expected.norms, rel=1e-5)
                assert found.loss == pytest.approx(expected.loss, rel=1e-5)
            case RunEnd(), RunEnd():
                assert (found.steps, found.checks, found.counts, found.status) == (
                    expected.steps,
                    expected.checks,
                    expected.counts,
                    expected.status,
                )
            case _:
                pass


@pytest.mark.parametrize("name", LOOPS)
def test_the_record_is_whole_and_is_what_the_sinks_saw(
    name: str, runs: dict[str, tuple[Path, list[Event]]]
) -> None:
    """Every check of `verify` passes, and the record holds the live events."""
    folder, events = runs[name]
    assert verify_record(folder).complete
    recorded = [line.event for line in read_record(folder)]
    assert recorded == [event for event in events if not isinstance(event, Measurement)]
    assert isinstance(recorded[0], RunStart)


def test_a_layer_that_takes_the_clipped_norm_is_named_alike(tmp_path: Path) -> None:
    """Both frameworks clip to a norm of 1: same factors, same starvation, same verdict."""
    found = []
    for name in ("lightning", "hf"):
        sink, folder = MemorySink(), tmp_path / name
        options: MonitorOptions = {"out": folder / "run", "check_every": 1, "sinks": [sink]}
        if name == "hf":
            net = ToyNet()
            plant_explosion(net, EXPLOSION_AT)
            arguments = hf_arguments(folder, max_grad_norm=1.0)
            hf_trainer(net, arguments, [HFMonitorCallback(**options)]).train()
        else:
            lit = lightning_net()
            plant_explosion(lit, EXPLOSION_AT)
            callbacks = [LightningMonitorCallback(**options)]
            lightning_trainer(folder, callbacks, gradient_clip_val=1.0).fit(lit, loader())
        found.append(sink.events)
    first, second = found
    assert [(e.kind, e.step) for e in first] == [(e.kind, e.step) for e in second]
    for one, other in zip(of_kind(first, Measurement), of_kind(second, Measurement), strict=True):
        assert one.clip_norm == other.clip_norm == 1.0
        assert one.clip_factor == pytest.approx(other.clip_factor, rel=1e-5)
    (one,), (other,) = of_kind(first, ClipStarvation), of_kind(second, ClipStarvation)
    assert (one.layer, one.step) == (other.layer, other.step) == ("fc2", EXPLOSION_AT)
    assert one.factor == pytest.approx(other.factor, rel=1e-5)
    assert one.factor < 1e-4
    assert of_kind(first, RunEnd)[0].status is of_kind(second, RunEnd)[0].status


def of_kind(events: list[Event], kind: type[_E]) -> list[_E]:
    """Return the events of a kind."""
    return [event for event in events if isinstance(event, kind)]
