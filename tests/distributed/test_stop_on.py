"""stop_on on several processes: one rank's reason stops all of them after the same check."""

from pathlib import Path

from ranks_support import run_ranks, run_script
from repair_loops import tell

from ormas_core import RunEnd, StopRequested, read_record

SCRIPT = Path(__file__).parent / "scripts" / "hf_stop.py"


def test_a_nan_on_one_rank_stops_the_trainer_on_all(tmp_path: Path) -> None:
    """At the check after it, under torchrun; the record of rank 0 says on which rank it was."""
    reports = run_script(SCRIPT, tmp_path, "3", torchrun=True)
    # The fifth pass is step 4; the checks are at 0, 3 and 6, and the update of step 6 is made.
    assert reports == [{"steps": 7, "stopped": 6, "own": own, "checks": 3} for own in (0, 1)]
    events = [line.event for line in read_record(tmp_path / "run")]
    (found,) = [event for event in events if isinstance(event, StopRequested)]
    assert (found.step, found.reasons, found.ranks) == (6, ("nonfinite_loss",), (1,))
    (end,) = [event for event in events if isinstance(event, RunEnd)]
    assert (end.status, end.error) == ("problem", None)


def test_a_rank_that_is_late_to_say_whether_to_stop_is_waited_for_once(tmp_path: Path) -> None:
    """Together the ranks hear each other; alone one gets no answer, and asks nobody again."""
    for together, alone, problem in run_ranks(tell, tmp_path):
        assert together == ["00", "01"]
        assert set(alone) == {None}
        assert problem
