"""A run as a page of text (Markdown)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ormas_core.terms import Status

if TYPE_CHECKING:
    from ormas_core.facts import RunFacts


def summary(facts: "RunFacts") -> str:
    """Return the facts of a run as Markdown: verdict, alarms, and what was not observed."""
    return "\n".join(_plain(line) for line in _lines(facts)) + "\n"


def _plain(line: str) -> str:
    """Return `line` with control characters escaped: a name must not fake lines of a report."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def _lines(facts: "RunFacts") -> Iterator[str]:
    from ormas_core.messages import describe  # with all events, which a checkpoint has none of

    start = facts.start
    verdict = facts.status.replace("_", " ").upper()
    yield f"# {start.name if start and start.name else 'Training run'}: {verdict}"
    yield ""
    if start is not None:
        yield (
            f"{start.model}, {len(start.layers)} watched layers, "
            f"{start.trainable:,} of {start.parameters:,} parameters trainable; "
            f"{start.framework}, {start.world_size} process(es)."
        )
    error = f" It ended with {facts.error}." if facts.error else ""
    if facts.stopped is not None:
        error += f" Step {facts.stopped.step}: {describe(facts.stopped)}"
    yield (
        f"{facts.steps} optimizer steps, {facts.checks} checks, {facts.segments} segment(s).{error}"
    )
    yield ""
    yield "## Alarms"
    yield ""
    for place, alarm in enumerate(facts.alarms):
        cleared = facts.cleared.get(place)
        end = f" Cleared at step {cleared}." if cleared is not None else ""
        yield f"- step {alarm.step}: {describe(alarm)}{end}"
    if not facts.alarms:
        unseen = facts.status in (Status.NOT_MONITORED, Status.UNKNOWN)
        blind = unseen or facts.checks == facts.blind_checks
        yield "None could be seen: no check saw gradients." if blind else "None."
    if facts.open_layers:
        yield ""
        yield f"Still open at the end: {', '.join(facts.open_layers)}."
    yield ""
    yield "## Not observed, or only in part"
    yield ""
    for gap in facts.gaps:
        where = f" ({', '.join(gap.layers)})" if gap.layers else ""
        yield f"- {gap.name} {gap.state}: {gap.reason}{where}"
    if not facts.gaps:
        yield "Nothing is known to be missing."
