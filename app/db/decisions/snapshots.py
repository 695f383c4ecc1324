"""The world as one decision sees it: few set-based queries, in a stable order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import Row, Select, func, literal_column, select, text, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import codec
from app.core.foreign import read_as
from app.core.leaving_out import leave_out
from app.core.machine_lives import with_lives
from app.core.merging.side_by_side import as_one, in_pairs
from app.core.merging.transfer import IN_TURN, TOGETHER
from app.core.model.image import ImageView
from app.core.model.job import (
    NO_AFFINITY,
    TERMINAL_JOB_STATES,
    Affinity,
    Caps,
    JobKind,
    JobState,
    PriorityClass,
    Resources,
    StartRule,
)
from app.core.model.merge import MergeState, MergeView, Recipe
from app.core.model.money import Money
from app.core.model.node import GONE_NODE_STATES, MOST_GPUS, NodeState, ProviderTraits, Tier
from app.core.model.run import PREPARED_RUN_STATES, RunPurpose, RunState
from app.core.model.snapshot import JobView, NodeView, RunView, Snapshot
from app.core.predicting import with_prediction
from app.core.progress import ProgressRate
from app.db.access.projects import without_ahead
from app.db.jobs.affinities import affinities_of
from app.db.learning.run_history import RunTimes, run_times
from app.db.learning.run_speeds import paces_of
from app.db.merging.merges import gain_lines, open_merges, split_pairs, turns_come
from app.db.merging.recipes import RECIPE_COLUMNS, recipe_of, recipes_of
from app.db.moves.planned_moves import not_moved_before, outlives_its_target
from app.db.nodes.lifetimes import ends_soon
from app.db.offers.image_builds import builds_now
from app.db.offers.listed import hosts_on_trial, recent_offers
from app.db.offers.provider_states import closed_providers
from app.db.tables import allocations, app_versions, image_builds, jobs, merges, nodes, run_jobs, runs
from app.db.unreadable import RowReading

_JOBS_WITH_VERSION = select(jobs, app_versions.c.base_image, *RECIPE_COLUMNS).join(
    app_versions, app_versions.c.id == jobs.c.app_version_id
)

# How long after its last failed start (and the back-off that followed) a job rather takes another offer.
AVOID_OFFER_MS = 600_000


async def freeze(connection: AsyncConnection) -> None:
    """Let every query of this transaction see the same moment. Has to be its first statement."""
    await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))


async def read_snapshot(
    connection: AsyncConnection,
    now_ms: int,
    traits: Sequence[ProviderTraits],
    offer_max_age_ms: int,
    *,
    usual_image: str = "",
    lifetime_margin_ms: int = 0,
    merging: bool = False,
    reading: RowReading | None = None,
) -> Snapshot:
    """Unfinished jobs, live runs, nodes that are not gone, and offers seen within `offer_max_age_ms`.

    Every tuple is sorted by id. Call `freeze` first. A row that moves on later makes the actions decided on it
    stale, and those are dropped when they are enacted. Offers of a provider or tier without traits are left out:
    nobody could rent them; so are those of a single host that is being rented already. `usual_image` is what jobs
    without an image of their own run on: where it is all that a job or node asks for, it has no name. A ready node
    that ends by itself within `lifetime_margin_ms` is shown as draining: nothing is placed there any more. What
    decides about merges is read where there is `merging`; those that are open always.

    A row that cannot be read is left out with what belongs to it, and noted in `reading`: a job whose run, node or
    merge cannot be read is not seen either, since it would look as if it had none.
    """
    reading = RowReading() if reading is None else reading
    rentable = {(trait.provider, trait.tier) for trait in traits}
    offers = await recent_offers(connection, now_ms=now_ms, max_age_ms=offer_max_age_ms, reading=reading)
    on_trial = await hosts_on_trial(connection)
    live, merged = await _runs(connection, reading), await open_merges(connection, reading)
    unfinished = await _jobs(connection, now_ms, live, merged, usual_image, reading, merging=merging)
    gains, gains_together = IN_TURN, TOGETHER
    if merging:
        gains, gains_together = await reading.aside(
            connection, merges.name, lambda: gain_lines(connection), (IN_TURN, TOGETHER)
        )
    shown, held = _paired(unfinished, live, merged, reading)
    seen = Snapshot(
        now_ms=now_ms,
        jobs=shown,
        runs=held,
        nodes=with_lives(await _nodes(connection, now_ms, usual_image, lifetime_margin_ms, reading), offers),
        offers=tuple(
            offer
            for offer in offers
            if (offer.provider, offer.tier) in rentable and (offer.provider, offer.host) not in on_trial
        ),
        traits=tuple(sorted(traits, key=lambda trait: (trait.provider, trait.tier))),
        closed=await reading.aside(
            connection, "provider_states", lambda: closed_providers(connection, now_ms=now_ms), ()
        ),
        merges=merged,
        gains=gains,
        gains_together=gains_together,
        no_ahead=await without_ahead(connection),
        images=await reading.aside(connection, image_builds.name, lambda: _images(connection, traits, usual_image), ()),
    )
    seen, gone = leave_out(seen, job_ids=reading.job_ids, node_ids=reading.node_ids)
    reading.job_ids |= gone
    return seen


async def _images(
    connection: AsyncConnection, traits: Sequence[ProviderTraits], usual_image: str
) -> tuple[ImageView, ...]:
    """By provider and image, where images are built before they run."""
    if not any(trait.builds_images for trait in traits):
        return ()
    views = (build.view(usual_image) for build in await builds_now(connection))
    return tuple(sorted(views, key=lambda view: (view.provider, view.image)))


async def read_fingerprint(connection: AsyncConnection) -> tuple[int, ...]:
    """Numbers that change when a row a decision depends on does. Cheap: the poll behind the wake-ups asks it."""
    parts: list[Select[Any]] = []
    for table, alive in (
        (jobs, jobs.c.state.not_in(TERMINAL_JOB_STATES)),
        (runs, runs.c.state != RunState.ENDED),
        (nodes, nodes.c.state.not_in(GONE_NODE_STATES)),
        (merges, merges.c.state == MergeState.OPEN),
    ):
        # hashtext tells which rows are there, so that one that goes as another comes is seen too.
        ids = func.coalesce(func.sum(func.hashtext(table.c.id)), 0)
        versions = func.coalesce(func.sum(table.c.row_version), 0)
        parts.append(select(literal_column(str(len(parts))).label("place"), ids, versions).where(alive))
    rows = await connection.execute(union_all(*parts).order_by("place"))
    return tuple(int(number) for row in rows for number in row[1:])


async def _jobs(
    connection: AsyncConnection,
    now_ms: int,
    live: Sequence[RunView],
    merged: Sequence[MergeView],
    usual_image: str,
    reading: RowReading,
    *,
    merging: bool,
) -> tuple[JobView, ...]:
    found = await connection.execute(
        _JOBS_WITH_VERSION.where(jobs.c.state.not_in(TERMINAL_JOB_STATES)).order_by(jobs.c.id)
    )
    rows = found.all()
    beside = affinities_of(rows, reading)
    held = _holders(live)
    stay: Mapping[str, int] = await reading.aside(
        connection, "moves", lambda: not_moved_before(connection, now_ms=now_ms), {}
    )

    def view(row: Row[Any]) -> JobView:
        return job_view(row, now_ms, stay.get(row.id, 0), usual_image, beside.get(row.id, NO_AFFINITY))

    views = [(row, job) for row in rows if (job := reading.of(jobs.name, row.id, partial(view, row))) is not None]
    alone = held.keys() - in_pairs(merged)  # between the steps of a pair are those of the other one
    measured = [job.job_id for _, job in views if job.total_steps is not None and job.job_id in alone]
    paces: dict[str, ProgressRate] = {}
    if measured:
        paces = await reading.aside(connection, "metric_points", lambda: paces_of(connection, measured), {})
    usual: Mapping[str, RunTimes] = await reading.aside(connection, "run_history", lambda: run_times(connection), {})
    recipes = await _recipes(connection, [row for row, _ in views], held, reading) if merging else {}
    split: Mapping[str, frozenset[str]] = {}
    up_next: frozenset[str] = frozenset()
    if recipes:
        split = await reading.aside(connection, merges.name, lambda: split_pairs(connection, list(recipes)), {})
        up_next = await reading.aside(connection, merges.name, lambda: turns_come(connection, list(recipes)), up_next)

    def predicted(row: Row[Any], job: JobView) -> JobView:
        return _predicted(
            replace(
                job,
                recipe=recipes.get(row.id),
                split_from=split.get(row.id, frozenset()),
                turn_has_come=row.id in up_next,
            ),
            held.get(job.job_id),
            now_ms,
            pace=paces.get(job.job_id),
            usual=usual.get(row.app_id),
            stated_step_ms=row.predicted_step_ms,
        )

    whole = (reading.of(jobs.name, row.id, partial(predicted, row, job)) for row, job in views)
    seen = tuple(job for job in whole if job is not None)
    reading.job_ids |= {row_id for table, row_id in reading.unread if table == jobs.name}
    return seen


async def _recipes(
    connection: AsyncConnection, rows: Sequence[Row[Any]], held: Mapping[str, RunView], reading: RowReading
) -> dict[str, Recipe]:
    """Of rows that can be read. Without them, and without what is known of their tasks, jobs are not merged."""
    sound = [row for row in rows if reading.of(jobs.name, row.id, partial(_has_sound_recipe, row))]
    return await reading.aside(connection, "profiles", lambda: recipes_of(connection, sound, held), {})


async def read_job(connection: AsyncConnection, job_id: str, now_ms: int) -> JobView | None:
    """One job as a decision with merging would see it before it has a run, without what it has to do with others."""
    row = (await connection.execute(_JOBS_WITH_VERSION.where(jobs.c.id == job_id))).one_or_none()
    if row is None:
        return None
    job = replace(
        job_view(row, now_ms, 0, "", NO_AFFINITY), recipe=(await recipes_of(connection, [row], ())).get(job_id)
    )
    usual = (await run_times(connection)).get(row.app_id)
    return _predicted(job, None, now_ms, pace=None, usual=usual, stated_step_ms=row.predicted_step_ms)


def _holders(live: Sequence[RunView]) -> dict[str, RunView]:
    """The run of each job: of a move, its source until code of the target runs."""
    last_wins = sorted(live, key=lambda run: (run.state not in PREPARED_RUN_STATES, run.state is not RunState.STOPPING))
    return {job_id: run for run in last_wins for job_id in run.job_ids}


def _predicted(
    job: JobView,
    run: RunView | None,
    now_ms: int,
    *,
    pace: ProgressRate | None,
    usual: RunTimes | None,
    stated_step_ms: float | None,
) -> JobView:
    """By what the present run measured, else by what is usual for its app, else by what the job states of itself."""
    step_ms = None if pace is None else pace.step_ms()
    run_ms = None
    if usual is not None:
        job = replace(job, never_saves=usual.saves is False and job.has_never_saved)
        step_ms, run_ms = usual.step_ms if step_ms is None else step_ms, usual.run_ms
    if step_ms is None and run_ms is None:
        step_ms = stated_step_ms
    return with_prediction(job, run, now_ms, step_ms=step_ms, usual_run_ms=run_ms)


def job_view(row: Row[Any], now_ms: int, not_moved_before_ms: int, usual_image: str, affinity: Affinity) -> JobView:
    """A job's row, with its version's `base_image`, as a decision sees it, without what is predicted of it."""
    resources = codec.decode_row(Resources, row.resources)
    image = resources.base_image or row.base_image
    if image != resources.base_image or image == usual_image:
        resources = replace(resources, base_image=None if image == usual_image else image)
    remembers = now_ms < row.not_before_ms + AVOID_OFFER_MS
    return JobView(
        job_id=row.id,
        project_id=row.project_id,
        state=read_as(JobState, row.state),
        row_version=row.row_version,
        submitted_ms=row.submitted_ms,
        deadline_ms=row.deadline_ms,
        resources=resources,
        kind=read_as(JobKind, row.kind),
        priority_class=read_as(PriorityClass, row.priority_class),
        start=read_as(StartRule, row.start),
        caps=Caps(
            None if row.max_cost_micros is None else Money(row.max_cost_micros),
            row.max_duration_ms,
            None if row.max_hourly_micros is None else Money(row.max_hourly_micros),
            row.max_wait_ms,
        ),
        spent=Money(row.spent_micros),
        serverless_used_ms=row.serverless_used_ms,
        step=row.step,
        total_steps=row.total_steps,
        checkpoint_step=row.checkpoint_step,
        done_ms=row.ran_ms,
        not_before_ms=row.not_before_ms,
        avoided_offers=frozenset(row.avoided_offers) if remembers else frozenset(),
        unreached_offers=frozenset(row.unreached_offers) if remembers else frozenset(),
        not_moved_before_ms=not_moved_before_ms,
        affinity=affinity,
        locked=bool(row.affinity.get("locked")),
        unsaved=row.refused_ms is not None,
        saves=row.saves_ms is not None,
        leaving=row.pause_reason is not None or _time_used_up(row, now_ms),
    )


def _time_used_up(row: Row[Any], now_ms: int) -> bool:
    if row.first_running_ms is None or row.max_duration_ms is None:
        return False
    return bool(now_ms - row.first_running_ms >= row.max_duration_ms)


def _has_sound_recipe(row: Row[Any]) -> bool:
    """Raises for parameters or a template that nobody can read."""
    recipe_of(row)
    return True


def _paired(
    unfinished: Sequence[JobView], live: Sequence[RunView], merged: Sequence[MergeView], reading: RowReading
) -> tuple[tuple[JobView, ...], tuple[RunView, ...]]:
    """`as_one`; a pair of which one job cannot be made of two is left out."""
    try:
        return as_one(unfinished, live, merged)
    except Exception:
        shown, held = tuple(unfinished), tuple(live)
    for merge in merged:
        joined = reading.of(merges.name, merge.merge_id, partial(as_one, shown, held, (merge,)))
        if joined is None:
            reading.job_ids |= {merge.lead_id, merge.companion_id}
        else:
            shown, held = joined
    return shown, held


async def _runs(connection: AsyncConnection, reading: RowReading) -> tuple[RunView, ...]:
    held_jobs = (
        select(run_jobs.c.run_id, func.array_agg(run_jobs.c.job_id).label("job_ids"))
        .join(runs, runs.c.id == run_jobs.c.run_id)
        .where(runs.c.state != RunState.ENDED)
        .group_by(run_jobs.c.run_id)
        .subquery()
    )
    rows = await connection.execute(
        select(runs, held_jobs.c.job_ids, allocations.c.node_id, outlives_its_target().label("outlives"))
        .join(held_jobs, held_jobs.c.run_id == runs.c.id)
        .join(allocations, (allocations.c.run_id == runs.c.id) & allocations.c.to_ms.is_(None))
        .where(runs.c.state != RunState.ENDED)
        .order_by(runs.c.id, allocations.c.node_id)
    )
    views: dict[str, RunView] = {}
    alone: set[str] = set()
    for row in rows:
        view = reading.of(runs.name, row.id, partial(run_view, row))
        if view is None:
            reading.job_ids |= set(row.job_ids)  # they would look as if they had no run
        else:
            views.setdefault(row.id, view)
            if row.outlives:
                alone.add(row.id)
    held = {job_id for view in views.values() if view.run_id not in alone for job_id in view.job_ids}
    # Of a job that has no other run, it is none of its runs any more. Its GPUs stay taken.
    return tuple(view for view in views.values() if view.run_id not in alone or not held.isdisjoint(view.job_ids))


def run_view(row: Row[Any]) -> RunView:
    """A live run's row, with its `job_ids` and `node_id`, as a decision sees it."""
    return RunView(
        run_id=row.id,
        job_ids=tuple(sorted(row.job_ids)),
        node_id=row.node_id,
        tier=read_as(Tier, row.tier),
        state=read_as(RunState, row.state),
        row_version=row.row_version,
        created_ms=row.created_ms,
        running_since_ms=row.running_ms,
        purpose=read_as(RunPurpose, row.purpose),
    )


async def _nodes(
    connection: AsyncConnection, now_ms: int, usual_image: str, lifetime_margin_ms: int, reading: RowReading
) -> tuple[NodeView, ...]:
    held: defaultdict[str, set[int]] = defaultdict(set)
    taken = await connection.execute(
        select(allocations.c.node_id, allocations.c.gpu_indices).where(allocations.c.to_ms.is_(None))
    )
    for node_id, gpu_indices in taken:
        held[node_id].update(gpu_indices)
    rented = select(nodes).where(nodes.c.state.not_in(GONE_NODE_STATES), ~nodes.c.orphan).order_by(nodes.c.id)
    views: list[NodeView] = []
    for row in await connection.execute(rented):
        asked = (row, held[row.id], now_ms, usual_image, lifetime_margin_ms)
        view = reading.of(nodes.name, row.id, partial(node_view, *asked))
        if view is None:
            reading.node_ids.add(row.id)
            reading.hidden_tiers.append(row.tier)
        else:
            views.append(view)
    return tuple(views)


def node_view(row: Row[Any], held: set[int], now_ms: int, usual_image: str, lifetime_margin_ms: int) -> NodeView:
    """A node's row as a decision sees it. `held`: the GPUs that a live allocation has."""
    if not 1 <= row.gpu_count <= MOST_GPUS:
        raise ValueError(f"a machine of {row.gpu_count} GPUs")
    leaving = ends_soon(row, now_ms, lifetime_margin_ms)
    return NodeView(
        node_id=row.id,
        project_id=row.project_id,
        provider=row.provider,
        tier=read_as(Tier, row.tier),
        state=NodeState.DRAINING if leaving else read_as(NodeState, row.state),
        row_version=row.row_version,
        gpu_type=row.gpu_type,
        gpu_count=row.gpu_count,
        gpu_memory_bytes=row.gpu_memory_bytes,
        cpus=row.cpus,
        memory_bytes=row.memory_bytes,
        free_gpus=tuple(index for index in range(row.gpu_count) if index not in held),
        price_per_hour=Money(row.price_micros_per_hour),
        requested_ms=row.requested_ms,
        expected_ready_ms=row.expected_ready_ms,
        idle_since_ms=row.idle_since_ms,
        region=row.region,
        image="" if row.image == usual_image else row.image,
    )
