"""Jobs as lines of a table, with what is known of each: where it is, how fast it goes, what moving it saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.core.model.job import JobState
from app.core.model.money import Money
from app.core.progress import ProgressRate, estimate_finish, stated_end
from app.db.connection import Connection
from app.db.jobs.reads import PlaceRow, places_of
from app.db.learning.run_speeds import paces_of
from app.db.reading.job_lines import LineRow
from app.db.reading.placements import lost_by_run, stays_of
from app.db.reading.sparks import sparks_of
from app.services.reading.save_by_moving import ServerlessPrices, saved_by_moving


@dataclass(frozen=True, slots=True)
class Line:
    """`saved` None: it has done nothing yet."""

    row: LineRow
    place: PlaceRow | None
    step_ms: float | None
    finish_ms: int | None
    saved: Money | None
    losses: tuple[float, ...]


async def complete_lines(connection: Connection, rows: Sequence[LineRow], *, now_ms: int) -> list[Line]:
    """The lines of these rows. A fixed number of questions, however many rows there are."""
    ran = [row for row in rows if row.first_running_ms is not None]
    placed = [row.id for row in rows if row.ended_ms is None and row.state is not JobState.QUEUED]
    running = [row.id for row in rows if row.state is JobState.RUNNING]
    places = await places_of(connection, placed) if placed else {}
    paces = await paces_of(connection, running) if running else {}
    losses = await sparks_of(connection, [row.id for row in ran]) if ran else {}
    saved = await _savings(connection, ran, now_ms) if ran else {}
    return [
        Line(
            row=row,
            place=places.get(row.id),
            step_ms=None if row.id not in paces else paces[row.id].step_ms(),
            finish_ms=_finish_ms(row, paces.get(row.id), now_ms),
            saved=saved.get(row.id),
            losses=tuple(losses.get(row.id, ())),
        )
        for row in rows
    ]


async def _savings(connection: Connection, rows: Sequence[LineRow], now_ms: int) -> dict[str, Money | None]:
    """By job, as its timeline tells it. Only who left a machine can have lost steps there."""
    stays = await stays_of(connection, [row.id for row in rows])
    left = [row.id for row in rows if any(stay.to_ms is not None for stay in stays[row.id])]
    lost = await lost_by_run(connection, left) if left else {}
    prices = ServerlessPrices(connection)
    return {
        row.id: await saved_by_moving(stays[row.id], lost, Money(row.spent_micros), prices, now_ms=now_ms)
        for row in rows
    }


def _finish_ms(row: LineRow, pace: ProgressRate | None, now_ms: int) -> int | None:
    if row.total_steps is None or row.state is not JobState.RUNNING:
        return None
    finish = estimate_finish(now_ms, row.step, stated_end(row.total_steps, has_target=row.has_target), pace)
    return None if finish is None else finish.at_ms
