"""A short run of the fuzzer, and hypothesis, which shrinks; `make fuzz-record` is the long one."""

import pytest
from fuzz.record import FILES, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from seal_support import SealedRun, make_sealed

from ormas_core.record import Request, verify_record


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> SealedRun:
    """A signed run that every test leaves as it found it."""
    return make_sealed(tmp_path_factory.mktemp("fuzz"), checks=3)


def test_mutants_never_pass_for_intact(sealed: SealedRun) -> None:
    """Four hundred of them: each fails a check, and nothing is raised."""
    found = run(400, sealed)
    assert found.total() == 400
    assert set(found) == {"record", "interrupted", "seal", "same"}
    assert found["record"] > 100


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(FILES), st.binary(max_size=300), st.data())
def test_any_bytes_in_any_place_are_answered(
    sealed: SealedRun, name: str, piece: bytes, data: st.DataObject
) -> None:
    """A piece of a file replaced by anything at all: an answer, and never all passed."""
    path = sealed.folder / name
    whole = path.read_bytes()
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    mutant = whole[:start] + piece + whole[stop:]
    path.write_bytes(mutant)
    try:
        found = verify_record(sealed.folder, Request(key=sealed.public, models=(sealed.model,)))
    finally:
        path.write_bytes(whole)
    assert len(found.checks) == 10
    assert not found.strict or mutant.rstrip() == whole.rstrip()


def test_the_original_passes(sealed: SealedRun) -> None:
    """Otherwise the tests above would prove nothing."""
    assert verify_record(sealed.folder, Request(key=sealed.public, models=(sealed.model,))).strict
