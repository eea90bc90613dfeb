"""Lightning's other ways to several processes, and stopping in all of them at once."""

import subprocess
from pathlib import Path

import pytest
from process_support import FRAMEWORKS, child_environment, warm_python
from ranks_support import run_script

from ormas_core import RunEnd, RunStart, Status, read_metrics, read_record, verify_record

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.parametrize("strategy", ["ddp_fork", "ddp_spawn"])
def test_case_46_processes_of_lightnings_own_launchers_write_one_record(
    tmp_path: Path, strategy: str
) -> None:
    """The callback goes to its processes and watches there; rank 0 writes, this one reads."""
    done = subprocess.run(
        [warm_python(FRAMEWORKS), str(SCRIPTS / "lightning_launch.py"), str(tmp_path), strategy],
        cwd=tmp_path,
        env=child_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    events = [line.event for line in read_record(tmp_path / "run")]
    (start,) = [event for event in events if isinstance(event, RunStart)]
    (end,) = [event for event in events if isinstance(event, RunEnd)]
    assert (start.world_size, end.steps) == (2, 12)
    assert end.status is not Status.INTERRUPTED
    lanes = [row.lane for row in read_metrics(tmp_path / "run")]
    assert lanes == ["0:SGD", "1:Adam"] * 3
    assert verify_record(tmp_path / "run").complete


def test_stop_on_stops_every_rank_in_the_same_step(tmp_path: Path) -> None:
    """Only rank 1 has seen the NaN; both leave the loop after the same update, without a hang."""
    reports = run_script(SCRIPTS / "lightning_stop.py", tmp_path)
    assert reports == [{"steps": 7, "should_stop": True, "asked_at": 6, "by": [1]}] * 2
    (end,) = [e.event for e in read_record(tmp_path / "run") if isinstance(e.event, RunEnd)]
    assert end.steps == 7
    assert verify_record(tmp_path / "run").complete
