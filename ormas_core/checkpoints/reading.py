"""Reads the tensors of a checkpoint, several at a time, and says what is in each."""

import math
import os
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from ormas_core.checkpoints import blocks
from ormas_core.checkpoints.ahead import in_order
from ormas_core.checkpoints.base import Base, Bench, Files
from ormas_core.checkpoints.blocks import Bytes
from ormas_core.checkpoints.compare import Beside
from ormas_core.checkpoints.decoding import decode, words_of
from ormas_core.checkpoints.dtypes import Layout, layout_of
from ormas_core.checkpoints.names import clean_name
from ormas_core.checkpoints.opened import Checkpoint, Entry, Progress
from ormas_core.checkpoints.roles import is_hollow
from ormas_core.checkpoints.rows import RowScan
from ormas_core.checkpoints.tensors import SMALL, Against, Comparison, State, TensorFacts

_THREADS: Final = 4
_AHEAD: Final = 8
"""Tensors that are read ahead of the one that is looked at."""

_WORTH_THREADS: Final = 32 * 2**20
"""Bytes from which on threads save more time than they take."""


def read_tensors(
    checkpoint: Checkpoint, against: Checkpoint | None, progress: Progress | None
) -> Iterator[TensorFacts]:
    """Yield the facts of every tensor, in order; threads read ahead where that is worthwhile."""
    files, base = Files(checkpoint), None if against is None else Base(against)
    entries = checkpoint.entries
    again = {entry.shares for entry in entries} if base is None else set()
    kept: dict[str, TensorFacts] = {}
    todo = [entry for entry in entries if not entry.shares or base is not None]
    found = _in_order(checkpoint, todo, files, base)
    try:
        done = 0
        for entry in entries:
            if base is None and entry.shares:
                facts = replace(
                    kept[entry.shares],
                    name=entry.name,
                    clean=clean_name(entry.name),
                    shares=entry.shares,
                )
            else:
                facts = next(found)
            if entry.name in again:
                kept[entry.name] = facts
            done += entry.size
            if progress is not None:
                progress(done, checkpoint.size)
            yield facts
    finally:
        found.close()
        files.close()
        if base is not None:
            base.close()


def _in_order(
    checkpoint: Checkpoint, entries: Sequence[Entry], files: Files, base: Base | None
) -> Generator[TensorFacts, None, None]:
    threads = min(_THREADS, _cores())
    if threads == 1 or checkpoint.size < _WORTH_THREADS or len(entries) <= 1:
        bench = Bench()
        for entry in entries:
            yield describe(entry, files, bench, base)
        return
    makers = [partial(_describe, Bench(), files, base) for _ in range(threads)]
    yield from in_order(entries, makers, _AHEAD)


def _describe(bench: Bench, files: Files, base: Base | None, entry: Entry) -> TensorFacts:
    return describe(entry, files, bench, base)


def _cores() -> int:
    """Return how many processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def describe(entry: Entry, files: Files, bench: Bench, base: Base | None) -> TensorFacts:
    """Return what is in a tensor; never raises for what is in a file."""
    facts = TensorFacts(
        name=entry.name,
        clean=clean_name(entry.name),
        dtype=entry.dtype,
        shape=entry.shape,
        file=entry.file,
        state=State.READ,
        shares=entry.shares,
    )
    layout = layout_of(entry.dtype)
    if entry.missing:
        return _blank(facts, State.UNREADABLE, entry.missing, base)
    if entry.placeholder:
        return _blank(facts, State.NO_DATA, "saved as a placeholder, without data", base)
    if is_hollow(facts):
        return _blank(facts, State.NO_DATA, "saved with no element, where others hold them", base)
    if layout is None:
        return _blank(facts, State.UNKNOWN, f"{entry.dtype} cannot be inspected", base)
    if entry.packed and base is None:
        return _blank(facts, State.PACKED, entry.packed, None)
    try:
        return _scan(facts, entry, layout, files, bench, base)
    except (OSError, ValueError, RuntimeError, MemoryError) as error:
        return _blank(facts, State.UNREADABLE, f"{error!s:.300}" or type(error).__name__, base)


def _blank(facts: TensorFacts, state: State, reason: str, base: Base | None) -> TensorFacts:
    compared = None
    if base is not None:
        other = base.entries.get(facts.clean)
        compared = Comparison(verdict=Against.UNKNOWN if other else Against.ABSENT)
    return replace(facts, state=state, reason=reason, base=compared)


def _scan(
    facts: TensorFacts,
    entry: Entry,
    layout: Layout,
    files: Files,
    bench: Bench,
    base: Base | None,
) -> TensorFacts:
    table = blocks.table_of(entry.shape, layout)
    source = files.bytes_of(entry, layout)
    beside = base.beside(entry, table, bench) if base is not None else None
    scan = RowScan(entry.dtype, table.rows, table.columns)
    small = len(entry.shape) <= 1 and math.prod(entry.shape) <= SMALL
    values: Any = None
    for block in blocks.blocks_of(table, layout):
        raw = source.fill(block, bench.mine)
        if isinstance(beside, Beside):
            beside.feed(raw, block)
        if entry.packed:
            continue
        if small:
            values = _values(entry, layout, raw)
        scan.feed(raw, block.row, block.count, block.column)
    compared = beside.verdict() if isinstance(beside, Beside) else beside
    if entry.packed:
        return replace(facts, state=State.PACKED, reason=entry.packed, base=compared)
    first = None if scan.first is None else np.unravel_index(scan.first, entry.shape or (1,))
    sample = np.zeros(0) if scan.sample is None else decode(entry.dtype, scan.sample)
    return replace(
        facts,
        rows=table.rows,
        magnitude=scan.magnitude(),
        nan=scan.nan,
        inf=scan.inf,
        first=None if first is None else tuple(int(n) for n in first)[: len(entry.shape)],
        bad_rows=0 if scan.bad is None else int(scan.bad.sum()),
        constant=_constant(entry, layout, scan, source, bench),
        values=np.zeros(entry.shape) if small and values is None else values,
        sample=sample,
        fingerprint=scan.fingerprint(),
        base=compared,
    )


def _values(entry: Entry, layout: Layout, raw: Any) -> Any:
    words = words_of(layout, raw)
    numbers = decode(entry.dtype, words)
    if layout.form == "complex":
        numbers = numbers.view(np.complex128)
    return numbers.reshape(entry.shape)


def _constant(
    entry: Entry, layout: Layout, scan: RowScan, source: Bytes, bench: Bench
) -> float | complex | None:
    """Return the one value of a tensor, or None. Few tensors are read a second time for it."""
    if math.prod(entry.shape) <= 1 or not scan.may_be_constant:
        return None
    if scan.all_zero:
        return 0j if layout.form == "complex" else 0.0
    table, first = blocks.table_of(entry.shape, layout), None
    for block in blocks.blocks_of(table, layout):
        raw = source.fill(block, bench.mine)
        words = words_of(layout, raw)
        words = words.reshape(-1, scan.parts)
        if first is None:
            first = words[0].copy()
        if (words != first).any():
            return None
    numbers = decode(entry.dtype, np.ascontiguousarray(first))
    return complex(*numbers) if layout.form == "complex" else float(numbers[0])


def same_bytes(checkpoint: Checkpoint, name: str, other: str) -> bool:
    """Whether two tensors of one checkpoint are equal bit by bit, type and shape included."""
    found = {entry.name: entry for entry in checkpoint.entries if entry.name in (name, other)}
    one, two = found[name], found[other]
    if (one.dtype, one.shape) != (two.dtype, two.shape):
        return False
    base = Base(replace(checkpoint, entries=(replace(two, name=one.name),)))
    files = Files(checkpoint)
    try:
        compared = describe(one, files, Bench(), base).base
    finally:
        files.close()
        base.close()
    return compared is not None and compared.verdict is Against.SAME
