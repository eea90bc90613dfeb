"""The claims of `assert_one_truth` fail where they are not true."""

from pathlib import Path
from typing import Any

import pytest
from ddp_loops import OTHER_LAYER, break_promises, send_twice
from ranks_support import run_ranks
from truth import Report, assert_one_truth, make_store


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Report]]]:
    """Runs whose monitors broke their promises, one folder each."""
    folder = tmp_path_factory.mktemp("broken")
    return folder, run_ranks(break_promises, folder)


@pytest.mark.parametrize(
    ("world", "complaint"),
    [
        ("own", "one record is expected, there are 2"),
        ("same", "other ranks also wrote"),
        ("other", f"the first alarm is \\('{OTHER_LAYER}'"),
    ],
)
def test_a_broken_promise_is_noticed(
    world: str, complaint: str, broken: tuple[Path, list[dict[str, Report]]]
) -> None:
    """A second record, a second writer of one record, and another layer each fail the assertion."""
    folder, found = broken
    with pytest.raises(AssertionError, match=complaint):
        assert_one_truth(folder / world, [reports[world] for reports in found])


def test_the_broken_world_is_fine_where_the_claim_fits(
    broken: tuple[Path, list[dict[str, Report]]],
) -> None:
    """It is the layer alone that the assertion minds in the world of the other layer."""
    folder, found = broken
    assert_one_truth(folder / "other", [reports["other"] for reports in found], layer=OTHER_LAYER)


def test_a_second_mlflow_run_is_noticed(tmp_path: Path) -> None:
    """Where the sinks of both ranks send, the assertion finds two runs beside one record."""
    uri = make_store(tmp_path)
    reports = run_ranks(send_twice, tmp_path, collective_timeout=120.0)  # a store opens slowly
    claims: dict[str, Any] = {"reports": reports, "others": ["mlflow.db"]}
    assert_one_truth(tmp_path, **claims)
    with pytest.raises(AssertionError, match="one MLflow run is expected, there are 2"):
        assert_one_truth(tmp_path, **claims, tracking_uri=uri)
