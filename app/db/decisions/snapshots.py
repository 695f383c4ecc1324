"""The world as one decision sees it: few set-based queries, in a stable order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.leaving_out import leave_out
from app.core.merging.side_by_side import as_one
from app.core.merging.transfer import IN_TURN, TOGETHER
from app.core.model.image import ImageView
from app.core.model.job import NO_AFFINITY
from app.core.model.merge import MergeView
from app.core.model.node import ProviderTraits, Tier
from app.core.model.snapshot import JobView, RunView, Snapshot
from app.db.access.projects import without_ahead
from app.db.decisions.changed_rows import Looked, look, rows_changed
from app.db.decisions.job_memory import JobMemory
from app.db.decisions.job_views import job_view, predicted
from app.db.decisions.node_memory import NodeMemory
from app.db.decisions.run_memory import RunMemory
from app.db.learning.run_history import run_times
from app.db.merging.merges import gain_lines, open_merges
from app.db.merging.recipes import RECIPE_COLUMNS, recipes_of
from app.db.offers.image_builds import builds_now
from app.db.offers.listed import hosts_on_trial, recent_offers
from app.db.offers.provider_states import closed_providers
from app.db.pools.offers import as_pools_have_it
from app.db.queues.thresholds import queue_means
from app.db.tables import app_versions, image_builds, jobs, merges, nodes, pools, queue_thresholds, runs
from app.db.unreadable import RowReading

_JOBS_WITH_VERSION = select(jobs, app_versions.c.base_image, *RECIPE_COLUMNS).join(
    app_versions, app_versions.c.id == jobs.c.app_version_id
)


class Memory:
    """What one reader has seen of jobs, runs and nodes, so that its next snapshot costs what has changed since.

    For one reader that asks for the same each time. After a reading that failed, the next one reads everything.
    """

    def __init__(self) -> None:
        self.looked: Looked | None = None
        self.jobs, self.runs, self.nodes = JobMemory(), RunMemory(), NodeMemory()

    def forget(self) -> None:
        """The next snapshot reads everything."""
        self.looked = None

    async def changes(self, connection: AsyncConnection, now: Looked) -> Mapping[str, frozenset[str]] | None:
        """By table, the ids of the rows to read; None: of all."""
        since, self.looked = self.looked, None
        changed = None if since is None else await rows_changed(connection, since, now)
        if changed is None:
            self.jobs, self.runs, self.nodes = JobMemory(), RunMemory(), NodeMemory()
        return changed


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
    by_queues: bool = False,
    reading: RowReading | None = None,
    memory: Memory | None = None,
) -> Snapshot:
    """Unfinished jobs, live runs, nodes that are not gone, and offers seen within `offer_max_age_ms`.

    Every tuple is sorted by id. Call `freeze` first. A row that moves on later makes the actions decided on it
    stale, and those are dropped when they are enacted. Offers of a provider or tier without traits are left out:
    nobody could rent them; so are those of a single host that is being rented already. `usual_image` is what jobs
    without an image of their own run on: where it is all that a job or node asks for, it has no name. A ready node
    that ends by itself within `lifetime_margin_ms` is shown as draining: nothing is placed there any more. What
    decides about merges is read where there is `merging`; those that are open always; and how long the jobs of projects
    run in the mean where decisions go `by_queues`.

    A row that cannot be read is left out with what belongs to it, and noted in `reading`: a job whose run, node or
    merge cannot be read is not seen either, since it would look as if it had none.

    `memory`: rows that are as they were in its last snapshot are not read again, and their views are the same objects.
    """
    reading = RowReading() if reading is None else reading
    memory = Memory() if memory is None else memory
    moment = await look(connection)
    changed = await memory.changes(connection, moment)

    def of(table: str) -> frozenset[str] | None:
        return None if changed is None else changed.get(table, frozenset())

    rentable = {(trait.provider, trait.tier) for trait in traits}
    listed = await recent_offers(connection, now_ms=now_ms, max_age_ms=offer_max_age_ms, reading=reading)
    offers = await reading.aside(
        connection,
        pools.name,
        lambda: as_pools_have_it(connection, listed, now_ms=now_ms, reading=reading),
        tuple(offer for offer in listed if offer.tier is not Tier.OWN),
    )
    on_trial = await hosts_on_trial(connection)
    live = await memory.runs.read(connection, of(runs.name), reading)
    merged = await open_merges(connection, reading)
    seen_nodes = await memory.nodes.read(
        connection, of(nodes.name), now_ms, usual_image, lifetime_margin_ms, offers, reading
    )
    gpu_types = {node.node_id: node.gpu_type for node in seen_nodes}
    unfinished = await memory.jobs.read(
        connection, of(jobs.name), now_ms, live, gpu_types, merged, usual_image, reading, merging=merging
    )
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
        nodes=seen_nodes,
        offers=tuple(
            offer
            for offer in offers
            if (offer.provider, offer.tier) in rentable
            and (offer.shared_gpus or (offer.provider, offer.host) not in on_trial)
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
        queue_means=await reading.aside(connection, queue_thresholds.name, lambda: queue_means(connection), ())
        if by_queues
        else (),
    )
    memory.looked = moment
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


async def read_job(connection: AsyncConnection, job_id: str, now_ms: int) -> JobView | None:
    """One job as a decision with merging would see it before it has a run, without what it has to do with others."""
    row = (await connection.execute(_JOBS_WITH_VERSION.where(jobs.c.id == job_id))).one_or_none()
    if row is None:
        return None
    job = replace(
        job_view(row, now_ms, 0, "", NO_AFFINITY), recipe=(await recipes_of(connection, [row], ())).get(job_id)
    )
    usual = (await run_times(connection)).get(row.app_id)
    return predicted(job, None, now_ms, on=None, pace=None, usual=usual, stated_step_ms=row.predicted_step_ms)


def _paired(
    unfinished: Sequence[JobView], live: Sequence[RunView], merged: Sequence[MergeView], reading: RowReading
) -> tuple[tuple[JobView, ...], tuple[RunView, ...]]:
    """`as_one`; a pair of which one job cannot be made of two is left out."""
    if not merged:
        return tuple(unfinished), tuple(live)
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
