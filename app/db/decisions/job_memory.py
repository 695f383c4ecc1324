"""The unfinished jobs of one reader: read once, and again when something of them has changed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from sqlalchemy import Row, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.merging.side_by_side import in_pairs
from app.core.model.job import NO_AFFINITY, TERMINAL_JOB_STATES
from app.core.model.merge import MergeView
from app.core.model.snapshot import JobView, RunView
from app.core.progress import ProgressRate
from app.db.arrays import is_one_of
from app.db.decisions.job_views import holders, job_view, predicted
from app.db.decisions.mergeable import NOT_MERGED, Mergeable, mergeable_jobs
from app.db.jobs.affinities import affinity_of, asks_for_labels
from app.db.learning.run_history import RunTimes, run_times
from app.db.learning.run_speeds import earlier_steps, paces_of
from app.db.merging.recipes import RECIPE_COLUMNS
from app.db.moves.planned_moves import not_moved_before
from app.db.tables import app_versions, jobs
from app.db.unreadable import RowReading

# Points of a run may be written after the step that they belong to: its pace is asked for anew after so long.
_PACE_KEPT_MS = 60_000
# What is usual for an app changes with each of its jobs that ends. Beyond so many, jobs are predicted anew in turns.
_MOST_RELEARNT = 500
_NEWS_SHARE = 0.02  # a mean that has moved by less is as it was
# A row that is remembered is small: what a job was submitted with is read where jobs are merged alone.
_SEEN = [
    jobs.c[name]
    for name in [
        "id",
        "project_id",
        "app_id",
        "state",
        "row_version",
        "submitted_ms",
        "deadline_ms",
        "deadline_given",
        "resources",
        "kind",
        "priority_class",
        "start",
        "max_cost_micros",
        "max_duration_ms",
        "max_hourly_micros",
        "max_wait_ms",
        "spent_micros",
        "serverless_used_ms",
        "step",
        "total_steps",
        "checkpoint_step",
        "ran_ms",
        "not_before_ms",
        "avoided_offers",
        "unreached_offers",
        "affinity",
        "labels",
        "refused_ms",
        "saves_ms",
        "pause_reason",
        "first_running_ms",
        "predicted_step_ms",
        "gpu_speeds",
        "epoch",
    ]
]
_WITH_VERSION = app_versions.c.id == jobs.c.app_version_id
_ROWS = select(*_SEEN, app_versions.c.base_image).join(app_versions, _WITH_VERSION)
_ROWS_TO_MERGE = select(jobs, app_versions.c.base_image, *RECIPE_COLUMNS).join(app_versions, _WITH_VERSION)
_UNFINISHED = jobs.c.state.not_in(TERMINAL_JOB_STATES)

_NOTHING: Mapping[str, float] = MappingProxyType({})


@dataclass(slots=True)
class _Known:
    """What views were made of last, beside the rows."""

    held: Mapping[str, RunView] = field(default_factory=dict)
    gpu_types: Mapping[str, str] = field(default_factory=dict)  # of the nodes
    stay: Mapping[str, int] = field(default_factory=dict)
    usual: Mapping[str, RunTimes] = field(default_factory=dict)
    labels_matter: bool = False


class JobMemory:
    """Used by one reader, one reading after the other. `changed` is None where any row may have changed."""

    def __init__(self) -> None:
        self._rows: dict[str, Row[Any]] = {}
        self._bases: dict[str, JobView] = {}  # of the rows alone, without what is predicted
        self._views: dict[str, JobView] = {}
        self._asking: set[str] = set()  # jobs that ask for other jobs' labels
        self._timed: set[str] = set()  # whose views time alone changes, and rows that could not be read
        self._learnt_to = ""  # up to this job, the last one of the present turn
        self._unlearnt = 0  # so many of those behind it do not know what is usual for their apps now
        self._paces: dict[str, tuple[int, ProgressRate | None]] = {}  # with when they were asked for
        self._earlier: dict[str, tuple[int, Mapping[str, float]]] = {}  # steps of earlier runs, before which epoch
        self._known = _Known()

    async def read(
        self,
        connection: AsyncConnection,
        changed: Collection[str] | None,
        now_ms: int,
        live: Sequence[RunView],
        gpu_types: Mapping[str, str],
        merged: Sequence[MergeView],
        usual_image: str,
        reading: RowReading,
        *,
        merging: bool,
    ) -> tuple[JobView, ...]:
        """All that can be read, by id. With `merging`, which weighs each against each, every view is made anew.
        `gpu_types`: of the nodes, by id."""
        fresh = await self._refresh(connection, changed, merging=merging)
        before, held = self._known, holders(live)
        now = self._known = _Known(
            held,
            gpu_types,
            await reading.aside(connection, "moves", lambda: not_moved_before(connection, now_ms=now_ms), {}),
            _with_news(before.usual, await reading.aside(connection, "run_history", lambda: run_times(connection), {})),
            any(
                reading.of(jobs.name, job_id, partial(asks_for_labels, self._rows[job_id]))
                for job_id in sorted(self._asking)
            ),
        )
        await self._read_paces(connection, fresh, in_pairs(merged), now_ms, reading)
        extras: Mapping[str, Mergeable] = {}
        if merging:
            extras = await mergeable_jobs(connection, list(self._rows.values()), held, reading)
        every_one = merging or before.labels_matter != now.labels_matter
        changed_rows = set(self._rows) if every_one else self._changed(fresh, before)
        for job_id in changed_rows:
            self._bases.pop(job_id, None)
        for job_id in sorted(changed_rows | self._predicted_anew(before)):
            if job_id in self._rows:
                self._remake(job_id, now_ms, usual_image, extras.get(job_id, NOT_MERGED), reading)
        reading.job_ids |= {row_id for table, row_id in reading.unread if table == jobs.name}
        return tuple(self._views.values())

    async def _refresh(
        self, connection: AsyncConnection, changed: Collection[str] | None, *, merging: bool
    ) -> set[str]:
        """Read the rows that may have changed; their ids."""
        statement = (_ROWS_TO_MERGE if merging else _ROWS).where(_UNFINISHED)
        if changed is not None:
            if not changed:
                return set()
            statement = statement.where(is_one_of(jobs.c.id, sorted(changed)))
        rows = {row.id: row for row in sorted(await connection.execute(statement), key=lambda row: str(row.id))}
        for job_id in (self._rows.keys() if changed is None else set(changed)) - rows.keys():
            self._forget(job_id)
        last = next(reversed(self._rows), "")
        in_order = all(job_id in self._rows or job_id > last for job_id in rows)
        self._rows.update(rows)
        if not in_order:
            self._rows = dict(sorted(self._rows.items()))
            self._views = {job_id: self._views[job_id] for job_id in self._rows if job_id in self._views}
        self._asking -= rows.keys()
        self._asking.update(job_id for job_id, row in rows.items() if _may_ask(row))
        return set(rows)

    def _forget(self, job_id: str) -> None:
        self._rows.pop(job_id, None)
        self._bases.pop(job_id, None)
        self._views.pop(job_id, None)
        self._asking.discard(job_id)
        self._timed.discard(job_id)

    async def _read_paces(
        self,
        connection: AsyncConnection,
        fresh: set[str],
        in_pairs_now: frozenset[str],
        now_ms: int,
        reading: RowReading,
    ) -> None:
        """Of jobs whose own steps are measured: between the steps of a pair are those of the other one."""
        alone = [job_id for job_id in self._known.held if job_id in self._rows and job_id not in in_pairs_now]
        measured = {job_id for job_id in alone if self._rows[job_id].total_steps is not None}
        kept = {
            job_id: self._paces[job_id]
            for job_id in measured & self._paces.keys() - fresh
            if now_ms - self._paces[job_id][0] < _PACE_KEPT_MS
        }
        asked = sorted(measured - kept.keys())
        if asked:
            found: dict[str, ProgressRate] = await reading.aside(
                connection, "metric_points", lambda: paces_of(connection, asked), {}
            )
            kept |= {job_id: (now_ms, found.get(job_id)) for job_id in asked}
        self._paces = kept
        await self._read_earlier(connection, measured, reading)

    async def _read_earlier(self, connection: AsyncConnection, measured: set[str], reading: RowReading) -> None:
        """Of those that have moved, once for each move: what their steps took where they were before."""
        epochs = {job_id: self._rows[job_id].epoch for job_id in measured if self._rows[job_id].epoch > 1}
        kept = {job_id: was for job_id, was in self._earlier.items() if epochs.get(job_id) == was[0]}
        asked = sorted(epochs.keys() - kept.keys())
        if asked:
            found: dict[str, dict[str, float]] = await reading.aside(
                connection, "metric_points", lambda: earlier_steps(connection, asked), {}
            )
            kept |= {job_id: (epochs[job_id], found.get(job_id, _NOTHING)) for job_id in asked}
        self._earlier = kept

    def _changed(self, fresh: set[str], before: _Known) -> set[str]:
        """Of which more has changed than what is predicted, or may have, by time alone."""
        stay = {job_id for job_id, _until_ms in self._known.stay.items() ^ before.stay.items()}
        return fresh | self._timed | stay

    def _predicted_anew(self, before: _Known) -> set[str]:
        """Those that run, or have just ended; and in turns those of whose apps there is news."""
        now = self._known
        apps = {app_id for app_id, times in now.usual.items() if before.usual.get(app_id) != times}
        apps |= before.usual.keys() - now.usual.keys()
        if apps:
            self._unlearnt = len(self._rows)
        return now.held.keys() | before.held.keys() | set(self._next_to_learn())

    def _next_to_learn(self) -> Sequence[str]:
        """The next ones by their ids, the first after the last."""
        if not self._unlearnt:
            return ()
        ids = list(self._rows)
        first = bisect_right(ids, self._learnt_to)
        turn = (ids[first:] + ids[:first])[: min(_MOST_RELEARNT, self._unlearnt)]
        self._unlearnt -= len(turn)
        self._learnt_to = turn[-1] if turn else ""
        return turn

    def _remake(self, job_id: str, now_ms: int, usual_image: str, extra: Mergeable, reading: RowReading) -> None:
        """A view that comes out as it was stays the same object, so that nobody looks at it again."""
        made = reading.of(jobs.name, job_id, partial(self._view, self._rows[job_id], now_ms, usual_image, extra))
        if made is None or _is_timed(self._rows[job_id]):
            self._timed.add(job_id)
        else:
            self._timed.discard(job_id)
        if made is None:
            self._bases.pop(job_id, None)
            self._views.pop(job_id, None)
            return
        was = self._views.get(job_id)
        if was is None and self._views and job_id < next(reversed(self._views)):
            self._views = dict(sorted({**self._views, job_id: made}.items()))
        elif was != made:
            self._views[job_id] = made

    def _view(self, row: Row[Any], now_ms: int, usual_image: str, extra: Mergeable) -> JobView:
        known, base = self._known, self._bases.get(row.id)
        if base is None:
            affinity = affinity_of(row) if known.labels_matter else NO_AFFINITY
            base = extra.added_to(job_view(row, now_ms, known.stay.get(row.id, 0), usual_image, affinity))
            self._bases[row.id] = base
        run = known.held.get(row.id)
        return predicted(
            base,
            run,
            now_ms,
            on=None if run is None else known.gpu_types.get(run.node_id),
            pace=self._paces.get(row.id, (0, None))[1],
            usual=known.usual.get(row.app_id),
            stated_step_ms=row.predicted_step_ms,
            earlier_ms=self._earlier.get(row.id, (0, _NOTHING))[1],
        )


def _with_news(known: Mapping[str, RunTimes], now: Mapping[str, RunTimes]) -> Mapping[str, RunTimes]:
    """What is usual now, by app; where it has hardly moved, as it was known."""
    return {
        app_id: was if (was := known.get(app_id)) and _is_like(was, times) else times for app_id, times in now.items()
    }


def _is_like(was: RunTimes, now: RunTimes) -> bool:
    if was.saves != now.saves or was.speeds != now.speeds or (was.step_ms is None) != (now.step_ms is None):
        return False
    pairs = ((was.run_ms, now.run_ms), (was.step_ms or 0.0, now.step_ms or 0.0))
    return all(abs(before - after) <= _NEWS_SHARE * abs(before) for before, after in pairs)


def _may_ask(row: Row[Any]) -> bool:
    try:
        return asks_for_labels(row)
    except Exception:  # noted in each reading, as what cannot be read
        return True


def _is_timed(row: Row[Any]) -> bool:
    """Whether the view of such a row changes as time passes, and nothing else does."""
    lasts = row.first_running_ms is not None and row.max_duration_ms is not None
    return bool(row.avoided_offers) or bool(row.unreached_offers) or lasts
