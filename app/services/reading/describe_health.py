"""What of the service does not work, in words, as every process tells it. Nothing names a job, a node or an error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from app.core.model.health import CHORE_FAILS, UNFINISHED_TURNS, Chore, PartHealth, PartKind
from app.db.connection import Connection
from app.db.decisions.health import read_health
from app.db.decisions.item_failures import count_items

# What may fail of single jobs, nodes and offers, as `item_failures` names it, in words with their number before them.
_ITEMS_FAIL = {
    "place": "cannot be placed, and are tried again or paused (internal_error)",
    "move": "cannot be moved or asked to leave; they run on, and are tried again later and later",
    "merge": "cannot be merged or parted, and are tried again",
    "release": "cannot be released, and are tried again",
    "decision": "make decisions fail; decisions are made without them",
}
_ROW = "row "
_CHORES = {chore.value: chore for chore in Chore}


@dataclass(frozen=True, slots=True)
class Degraded:
    """A part that does not do its work, or not all of it. `failures`: since then, or how many items."""

    part: str
    since_ms: int
    failures: int
    what: str


async def describe_health(connection: Connection, *, now_ms: int) -> list[Degraded]:
    """Empty while everything works. Of a service without a leader, what is due says nothing: ask for that first."""
    parts = await read_health(connection)
    items = await count_items(connection)
    return [*_failing(parts, now_ms), *_items(items)]


def _failing(parts: list[PartHealth], now_ms: int) -> Iterator[Degraded]:
    for part in parts:
        chore = _CHORES.get(part.name)
        if part.kind is not PartKind.CHORE or chore is None:
            continue
        if part.failing_since_ms is not None:
            times = "1 failure" if part.in_a_row == 1 else f"{part.in_a_row} failures"
            yield Degraded(part.name, part.failing_since_ms, part.in_a_row, f"{CHORE_FAILS[chore]}: {times}")
        elif part.due_ms is not None and part.due_ms < now_ms:
            what = f"it has not finished for {UNFINISHED_TURNS} of its turns: {CHORE_FAILS[chore]}"
            yield Degraded(part.name, part.due_ms, 0, what)


def _items(items: list[tuple[str, int, int]]) -> Iterator[Degraded]:
    for what, count, since_ms in items:
        rows = "1 row" if count == 1 else f"{count} rows"
        if what.startswith(_ROW):
            told = f"{rows} of {what.removeprefix(_ROW)} cannot be read: left out of decisions, with what belongs to it"
            yield Degraded(what, since_ms, count, told)
        elif what in _ITEMS_FAIL:
            yield Degraded(what, since_ms, count, f"{count} {_ITEMS_FAIL[what]}")
