"""Merges of two jobs: opened, found, closed. Whoever writes one holds the locks of both jobs (`app.db.lock_order`)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sqlalchemy import ARRAY, ColumnElement, Row, Text, any_, cast, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.merging.transfer import IN_TURN, TOGETHER, GainLine
from app.core.model.checkpoint import CheckpointState
from app.core.model.merge import MergeMode, MergeState, MergeView
from app.core.model.plan import Merge
from app.db import notify
from app.db.arrays import is_one_of
from app.db.tables import app_versions, checkpoints, jobs, merges
from app.db.unreadable import RowReading

_MOST_LESSONS = 500  # of a mode: older merges were of other jobs
_OPEN = merges.c.state == MergeState.OPEN


@dataclass(frozen=True, slots=True)
class MergeRow:
    """A merge, open or over. `checkpoint_id`: of the lead, where the companion begins."""

    merge_id: str
    lead_id: str
    companion_id: str
    mode: MergeMode
    state: MergeState
    gpus: int
    score: float
    gain: float
    fruitless_epochs: int
    begun_ms: int
    ended_ms: int | None
    reason: str
    end_message: str | None
    checkpoint_id: str | None

    def partner_of(self, job_id: str) -> str:
        return self.companion_id if job_id == self.lead_id else self.lead_id

    def leads(self, job_id: str) -> bool:
        return job_id == self.lead_id


@dataclass(frozen=True, slots=True)
class Watched:
    """A job that waits for its turn, and its rows."""

    job_id: str
    bundle_sha256: str
    bundle_size_bytes: int
    parameters: Any


async def add_merge(connection: AsyncConnection, merge_id: str, project_id: str, merge: Merge, *, now_ms: int) -> None:
    """An open merge. A job has at most one, in either place: the caller has looked (`open_merge_of`)."""
    await connection.execute(
        merges.insert().values(
            id=merge_id,
            project_id=project_id,
            lead_job_id=merge.job_id,
            companion_job_id=merge.companion_id,
            mode=merge.mode,
            gpus=merge.gpus,
            state=MergeState.OPEN,
            score=merge.score,
            gain=merge.gain,
            begun_ms=now_ms,
            reason=merge.reason,
        )
    )


async def open_merge_of(connection: AsyncConnection, job_id: str) -> MergeRow | None:
    """The open merge in which this job leads, or is led."""
    rows = await connection.execute(select(merges).where(_OPEN, _of(job_id)).limit(1))
    return _row(rows.one_or_none())


async def open_merges_of(connection: AsyncConnection, job_ids: Collection[str]) -> dict[str, MergeRow]:
    """The same of several jobs, by job; nothing of those that are in none."""
    if not job_ids:
        return {}
    wanted = sorted(job_ids)
    mine = or_(is_one_of(merges.c.lead_job_id, wanted), is_one_of(merges.c.companion_job_id, wanted))
    found = [_merge_row(row) for row in await connection.execute(select(merges).where(_OPEN, mine))]
    every = {job_id: merge for merge in found for job_id in (merge.lead_id, merge.companion_id)}
    return {job_id: every[job_id] for job_id in wanted if job_id in every}


async def newest_merges(connection: AsyncConnection, job_ids: Collection[str]) -> dict[str, MergeRow]:
    """By job, for those that were ever merged: the open merge, else the last one."""
    wanted = any_(cast(list(job_ids), ARRAY(Text)))
    last_wins = (_OPEN, merges.c.begun_ms, merges.c.id)
    rows = await connection.execute(
        select(merges)
        .where(or_(merges.c.lead_job_id == wanted, merges.c.companion_job_id == wanted))
        .order_by(*last_wins)
    )
    found: dict[str, MergeRow] = {}
    for row in rows:
        merge = _merge_row(row)
        found |= dict.fromkeys((merge.lead_id, merge.companion_id), merge)
    return found


async def close_merge(
    connection: AsyncConnection,
    merge_id: str,
    state: MergeState,
    message: str,
    *,
    now_ms: int,
    checkpoint_id: str | None = None,
    seen_gain: float | None = None,
) -> bool:
    """Take an open merge to `state`; False, with nothing written, when it is not open. `seen_gain`: what it has been
    worth, where that is known already."""
    done = await connection.execute(
        update(merges)
        .where(merges.c.id == merge_id, _OPEN)
        .values(
            state=state,
            ended_ms=now_ms,
            end_message=message,
            checkpoint_id=checkpoint_id,
            seen_gain=seen_gain,
            row_version=merges.c.row_version + 1,
        )
    )
    await notify.control(connection)
    return bool(done.rowcount)


async def set_fruitless(
    connection: AsyncConnection, lead_id: str, epoch: int, companion_id: str, fruitless_epochs: float
) -> None:
    """For how many epochs the monitor has seen no better validation, as the lead's run says that holds `epoch`. One
    statement, which waits for nobody: it needs no lock of the jobs."""
    holds = select(jobs.c.id).where(jobs.c.id == lead_id, jobs.c.epoch == epoch).exists()
    changed = await connection.execute(
        update(merges)
        .where(
            _OPEN,
            merges.c.lead_job_id == lead_id,
            merges.c.companion_job_id == companion_id,
            merges.c.fruitless_epochs != fruitless_epochs,
            holds,
        )
        .values(fruitless_epochs=fruitless_epochs, row_version=merges.c.row_version + 1)
    )
    if changed.rowcount:
        await notify.control(connection)


async def watched_by(connection: AsyncConnection, lead_id: str) -> Watched | None:
    """Whose rows this job is to look at while it trains: its companion's, in turn."""
    version = app_versions.c
    rows = await connection.execute(
        select(jobs.c.id, version.bundle_sha256, version.bundle_size_bytes, jobs.c.parameters)
        .join(merges, merges.c.companion_job_id == jobs.c.id)
        .join(app_versions, version.id == jobs.c.app_version_id)
        .where(_OPEN, merges.c.mode == MergeMode.IN_TURN, merges.c.lead_job_id == lead_id)
    )
    row = rows.one_or_none()
    return None if row is None else Watched(*row)


async def merge_versions(connection: AsyncConnection, merge_ids: Collection[str]) -> dict[str, int]:
    """The row versions of those of these merges that are open. Their jobs are locked."""
    if not merge_ids:
        return {}
    rows = await connection.execute(
        select(merges.c.id, merges.c.row_version).where(is_one_of(merges.c.id, merge_ids), _OPEN)
    )
    return {row.id: row.row_version for row in rows}


async def was_learned(connection: AsyncConnection, job_id: str, checkpoint_id: str) -> bool:
    """Whether a merge gave this job that checkpoint, of another job, to begin with."""
    held = select(merges.c.id).where(merges.c.companion_job_id == job_id, merges.c.checkpoint_id == checkpoint_id)
    return (await connection.execute(held.limit(1))).first() is not None


# For a decision


async def open_merges(connection: AsyncConnection, reading: RowReading) -> tuple[MergeView, ...]:
    """All that are open, by id. Of one that cannot be read, both jobs are noted: neither is alone."""
    rows = await connection.execute(select(merges).where(_OPEN).order_by(merges.c.id))
    views: list[MergeView] = []
    for row in rows:
        view = reading.of(merges.name, row.id, partial(_merge_view, row))
        if view is None:
            reading.job_ids |= {row.lead_job_id, row.companion_job_id}
        else:
            views.append(view)
    return tuple(views)


def _merge_view(row: Row[Any]) -> MergeView:
    return MergeView(
        merge_id=row.id,
        lead_id=row.lead_job_id,
        companion_id=row.companion_job_id,
        mode=MergeMode(row.mode),
        gpus=row.gpus,
        row_version=row.row_version,
        score=row.score,
        gain=row.gain,
        fruitless_epochs=int(row.fruitless_epochs),
    )


async def split_pairs(connection: AsyncConnection, job_ids: Collection[str]) -> Mapping[str, frozenset[str]]:
    """By job: those with which it was merged in vain."""
    if not job_ids:
        return {}
    rows = await connection.execute(
        select(merges.c.lead_job_id, merges.c.companion_job_id).where(
            merges.c.state == MergeState.SPLIT,
            or_(is_one_of(merges.c.lead_job_id, job_ids), is_one_of(merges.c.companion_job_id, job_ids)),
        )
    )
    found: defaultdict[str, set[str]] = defaultdict(set)
    for lead_id, companion_id in rows:
        found[lead_id].add(companion_id)
        found[companion_id].add(lead_id)
    return {job_id: frozenset(others) for job_id, others in found.items()}


async def turns_come(connection: AsyncConnection, job_ids: Collection[str]) -> frozenset[str]:
    """Those that begin from what a job has learned for which they waited."""
    rows = await connection.execute(
        select(merges.c.companion_job_id)
        .join(checkpoints, checkpoints.c.id == merges.c.checkpoint_id)
        .where(
            is_one_of(merges.c.companion_job_id, job_ids),
            merges.c.state == MergeState.ENDED,
            checkpoints.c.state == CheckpointState.COMMITTED,
        )
    )
    return frozenset(rows.scalars())


async def gain_lines(connection: AsyncConnection) -> tuple[GainLine, GainLine]:
    """From score to gain, by the newest merges whose gain is known: in turn, and together."""
    newest = func.row_number().over(partition_by=merges.c.mode, order_by=[merges.c.ended_ms.desc(), merges.c.id])
    known = (
        select(merges.c.mode, merges.c.score, merges.c.seen_gain, newest.label("place"))
        .where(merges.c.seen_gain.is_not(None))
        .subquery()
        .c
    )
    score, gain = known.score, known.seen_gain
    sums = (func.sum(score), func.sum(gain), func.sum(score * score), func.sum(score * gain))
    rows = await connection.execute(
        select(known.mode, func.count(), *sums).where(known.place <= _MOST_LESSONS).group_by(known.mode)
    )
    seen = {row[0]: row[1:] for row in rows}
    return _line(IN_TURN, seen.get(MergeMode.IN_TURN)), _line(TOGETHER, seen.get(MergeMode.TOGETHER))


def _line(prior: GainLine, seen: Sequence[Any] | None) -> GainLine:
    if seen is None:
        return prior
    count, score, gain, square, product = seen
    if not all(math.isfinite(number) for number in (score, gain, square, product)):
        raise ValueError(f"what merges were worth is no number: {tuple(seen)}")
    return replace(prior, count=count, sum_score=score, sum_gain=gain, sum_square=square, sum_product=product)


async def newest_checkpoint_of(connection: AsyncConnection, job_id: str) -> str | None:
    """The newest committed checkpoint of a locked job."""
    found: str | None = (
        await connection.execute(select(jobs.c.checkpoint_id).where(jobs.c.id == job_id))
    ).scalar_one_or_none()
    return found


def _of(job_id: str) -> ColumnElement[bool]:
    return or_(merges.c.lead_job_id == job_id, merges.c.companion_job_id == job_id)


def _row(row: Row[Any] | None) -> MergeRow | None:
    return None if row is None else _merge_row(row)


def _merge_row(row: Row[Any]) -> MergeRow:
    return MergeRow(
        row.id,
        row.lead_job_id,
        row.companion_job_id,
        MergeMode(row.mode),
        MergeState(row.state),
        row.gpus,
        row.score,
        row.gain,
        int(row.fruitless_epochs),
        row.begun_ms,
        row.ended_ms,
        row.reason,
        row.end_message,
        row.checkpoint_id,
    )
