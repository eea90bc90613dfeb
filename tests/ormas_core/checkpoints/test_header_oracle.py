"""The header parser against the safetensors library: each accepts what the other does."""

from pathlib import Path

import pytest
import safetensors
from checkpoint_builders import f32, safetensors_bytes, with_header
from fuzz.headers import TOKENS, accepted_by_library, accepted_here, mutants

from ormas_core.checkpoints.dtypes import LAYOUTS


def test_mutated_headers_are_accepted_or_refused_as_by_the_library() -> None:
    """Three thousand of them, the same on every machine, a good part of each kind."""
    accepted = refused = 0
    for number, raw in enumerate(mutants(3000)):
        by_library, here = accepted_by_library(raw), accepted_here(raw)
        assert here == by_library, f"mutant {number}: {raw[:2000]!r}"
        accepted += by_library
        refused += not by_library
    assert accepted > 300
    assert refused > 1000


def test_the_types_are_those_of_the_library() -> None:
    """It lists them where it refuses one."""
    header = '{"a":{"dtype":"none","shape":[1],"data_offsets":[0,4]}}'
    with pytest.raises(safetensors.SafetensorError) as caught:
        safetensors.deserialize(with_header(header, bytes(4)))
    listed = str(caught.value).partition("expected one of")[2].partition(" at line")[0]
    assert {name.strip(" `") for name in listed.split(",")} == set(LAYOUTS)


@pytest.mark.parametrize("token", TOKENS)
def test_each_token_is_judged_alike_as_a_member(token: str) -> None:
    """As a value beside a tensor, as its dtype, shape and offsets, and as metadata."""
    templates = (
        '{{"a":{{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":{0}}}}}',
        '{{"a":{{"dtype":{0},"shape":[1],"data_offsets":[0,1]}}}}',
        '{{"a":{{"dtype":"U8","shape":{0},"data_offsets":[0,1]}}}}',
        '{{"a":{{"dtype":"U8","shape":[1],"data_offsets":{0}}}}}',
        '{{"a":{{"dtype":"U8","shape":[{0}],"data_offsets":[0,1]}}}}',
        '{{"a":{{"dtype":"U8","shape":[1],"data_offsets":[0,{0}]}}}}',
        '{{"a":["U8",[1],{0}]}}',
        '{{"a":{0}}}',
        '{{"__metadata__":{0},"a":["U8",[1],[0,1]]}}',
        '{{"__metadata__":{{"k":{0}}},"a":["U8",[1],[0,1]]}}',
        '{{{0}:["U8",[1],[0,1]]}}',
        '{{"a":["U8",[1],[0,1]]}}{0}',
    )
    for template in templates:
        raw = with_header(template.format(token), bytes(1))
        assert accepted_here(raw) == accepted_by_library(raw), raw


def test_a_file_of_the_library_is_accepted(tmp_path: Path) -> None:
    """And one with tensors of every type, made here, by the library."""
    import numpy as np
    from safetensors.numpy import save_file

    save_file({"a": np.ones((2, 3)), "b": np.zeros(0)}, tmp_path / "m")
    assert accepted_here((tmp_path / "m").read_bytes())
    every = {name: (name, (8,), bytes(layout.bits)) for name, layout in LAYOUTS.items()}
    raw = safetensors_bytes({**every, "x": f32(2)})
    assert accepted_by_library(raw)
    assert accepted_here(raw)
