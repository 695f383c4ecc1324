"""Jobs on several machines get all of them, or none, before any policy decides (`app.core.gangs`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from app.control.context import ControlContext
from app.control.each import each, each_by_itself, in_batches
from app.control.enact import enact_apart
from app.control.failed_actions import due, note_outcomes
from app.control.observe import Observation
from app.control.rank_hosts import host_order
from app.control.vacating import longest_ms
from app.core.gang_offers import COMING, EmptyPool, LackingGang
from app.core.gang_wishes import concerns_gangs, no_longer_wanted, wants_more
from app.core.gangs import RESERVE_AFTER_MS, Claim, ComingTogether, GatheredGangs, gather, without_gangs
from app.core.model.health import Chore
from app.core.model.job import PLACEABLE_JOB_STATES, JobState
from app.core.model.node import Tier
from app.core.model.plan import ProvisionGang, Release, Waiting
from app.core.model.pool import JOINED
from app.core.model.snapshot import JobView, Snapshot, versions_of
from app.core.pools import offers_of
from app.core.set_aside import SetAside
from app.core.topology import domains_of
from app.db.connection import Connection
from app.db.decisions.enactment import set_wait_reasons
from app.db.defragmentation.defragmentations import coming_together
from app.db.pools.hosts import seen_hosts
from app.db.pools.pools import read_pools
from app.db.pools.switches import racks_and_switches
from app.db.runs.members import gang_nodes, rented_together
from app.errors import Fenced, Unavailable
from app.services.decisions.policy_settings import policy_config
from app.services.sizes.resize_nodes import tell_fewer

_TAKEN_BACK = "its job is to stay on one machine"
_AT_ONCE = 100
_RESTS_MS = 60_000  # after not all machines could be had; longer each time in a row
_LONGEST_REST_MS = 900_000
_RESTS_FOR_EACH_MS = 10  # offer that a job which trains has looked at in vain: a few thousand times as long as it took


class GangPlacer:
    """One per control loop. Which jobs could not have all of their machines is remembered for as long as it leads."""

    def __init__(self, context: ControlContext) -> None:
        self._context = context
        self._config = policy_config(context.settings)
        self._rests: dict[str, tuple[int, int]] = {}  # by job: how often in a row, and until when it rests
        self._stays: dict[str, tuple[int, int]] = {}  # the same of those that train, and would have moved
        self._fewer: dict[str, str] = {}  # why those that train do not have more machines, as they were told
        self.kept_hosts: Mapping[str, str] = {}  # for jobs that have waited long, by whose they are
        self.lacking: tuple[LackingGang, ...] = ()  # for which others could leave
        self.wake_at_ms: int | None = None

    async def place(self, seen: Observation, asides: Sequence[SetAside] = ()) -> Observation:
        """The world without jobs on several machines, and without what is theirs. What fails of it is this chore's
        alone: then they wait, and no policy sees them either. `asides`: what others leave for some of them."""
        self.wake_at_ms, self.kept_hosts, self.lacking = None, {}, ()
        gangs = [job for job in seen.snapshot.jobs if concerns_gangs(job)]
        waiting = {job.job_id for job in gangs if job.state in PLACEABLE_JOB_STATES}
        training = {job.job_id for job in gangs} - waiting
        self._rests = {job_id: rest for job_id, rest in self._rests.items() if job_id in waiting}
        self._stays = {job_id: rest for job_id, rest in self._stays.items() if job_id in training}
        self._fewer = {job_id: why for job_id, why in self._fewer.items() if job_id in training}
        given_back = await each_by_itself(
            self._context, Chore.GANGS, [seen], self._give_back, named=lambda _: "machines that nobody wants any more"
        )
        seen = given_back[0] if given_back else seen
        if not gangs:
            return seen
        found = await each_by_itself(
            self._context,
            Chore.GANGS,
            [seen],
            lambda it: self._place(it, gangs, asides),
            named=lambda _: "their placement",
        )
        return replace(seen, snapshot=found[0] if found else without_gangs(seen.snapshot))

    async def _give_back(self, seen: Observation) -> Observation:
        """Machines that come for a job on one, whose owner wanted it on several and does not any more. Others do not
        see them."""
        snapshot = seen.snapshot
        networked = {(one.provider, one.tier) for one in snapshot.traits if one.is_networked}
        coming = [node for node in snapshot.nodes if node.state in COMING and (node.provider, node.tier) in networked]
        if not coming:
            return seen
        async with self._context.database.statement() as connection:
            rented = await rented_together(connection, [node.node_id for node in coming])
        left = no_longer_wanted(snapshot, rented)
        await self._enact(seen, [Release(node.node_id, _TAKEN_BACK, versions_of(node)) for node in left])
        return replace(seen, snapshot=replace(snapshot, nodes=tuple(it for it in snapshot.nodes if it not in left)))

    async def _place(self, seen: Observation, gangs: Sequence[JobView], asides: Sequence[SetAside]) -> Snapshot:
        context, snapshot = self._context, seen.snapshot
        waiting = {job.job_id for job in gangs if job.state in PLACEABLE_JOB_STATES}
        async with context.database.statement() as connection:
            rented = await gang_nodes(connection, {job.job_id for job in gangs})
            pools = await _empty_pools(connection, snapshot.now_ms) if _any_waits_long(gangs, snapshot.now_ms) else []
            chooses = bool(waiting) or any(run.tier is not Tier.OWN for run in snapshot.runs)
            together = await self._coming_together(connection, snapshot.now_ms) if len(waiting) < len(gangs) else []
            chooses = chooses or bool(together) or any(map(wants_more, gangs))
            domains = domains_of(await racks_and_switches(connection)) if chooses else {}
        known = partial(
            gather,
            rented=rented,
            resting=self._resting(),
            pools=pools,
            domains=domains,
            asides=asides,
            config=self._config,
            rule=context.settings.gang_switches,
            together=together,
        )
        gathered = await self._by_the_ranker(snapshot, known) if waiting else None
        if gathered is None:
            gathered = await asyncio.to_thread(self._gather, snapshot, gangs, known)
        self.wake_at_ms, self.kept_hosts = gathered.wake_at_ms, gathered.kept_hosts
        self.lacking = gathered.lacking
        refused = await self._enact(seen, gathered.claims)
        for job_id, offers in gathered.stays.items():
            rests_ms = min(_RESTS_MS, offers * _RESTS_FOR_EACH_MS)
            self._stays[job_id] = self._stays.get(job_id, (0, 0))[0], snapshot.now_ms + rests_ms
        for job_id in {*gathered.given_up, *refused}:
            _let_rest(self._rests if job_id in waiting else self._stays, job_id, snapshot.now_ms)
        await self._tell_fewer({**gathered.fewer, **refused}, gangs, snapshot.now_ms)
        why_not = {job_id: why for job_id, why in {**gathered.waiting, **refused}.items() if job_id in waiting}
        told = [Waiting(job_id, why) for job_id, why in sorted(why_not.items())]
        await in_batches(context, Chore.GANGS, told, set_wait_reasons, at_once=_AT_ONCE)
        return gathered.snapshot

    async def _tell_fewer(self, fewer: Mapping[str, str], gangs: Sequence[JobView], now_ms: int) -> None:
        """Those that train, and are to have more machines than they can have now. Once, as long as that is why."""
        wanting = {job.job_id for job in gangs if wants_more(job) and job.state is JobState.RUNNING}
        news = {job_id: why for job_id, why in fewer.items() if job_id in wanting and self._fewer.get(job_id) != why}

        async def tell(connection: Connection, job_id: str) -> None:
            await tell_fewer(connection, job_id, news[job_id], now_ms=now_ms)
            self._fewer[job_id] = news[job_id]

        await each(self._context, Chore.GANGS, sorted(news), tell)

    async def _coming_together(self, connection: Connection, now_ms: int) -> list[ComingTogether]:
        """Not where nobody carries on what was begun: then what was rented for it is let go."""
        settings = self._context.settings
        if settings.moves != "make_before_break":
            return []
        return await coming_together(connection, since_ms=now_ms - longest_ms(settings))

    async def _by_the_ranker(self, snapshot: Snapshot, known: Callable[..., GatheredGangs]) -> GatheredGangs | None:
        """None where hosts come as they do by default. A ranker that fails stops nobody: then they do, too."""
        try:
            order = await host_order(self._context, snapshot)
            return None if order is None else await asyncio.to_thread(known, snapshot, order=order)
        except (Fenced, Unavailable):
            raise
        except Exception as error:
            self._context.health.failed(Chore.GANGS, "the ranker of hosts", error)
            return None

    def _gather(
        self, snapshot: Snapshot, gangs: Sequence[JobView], known: Callable[[Snapshot], GatheredGangs]
    ) -> GatheredGangs:
        """Of all, or of those alone over which it does not fail: the others wait, unseen by policies."""
        try:
            return known(snapshot)
        except Exception:
            failing = set()
            for job in gangs:
                try:
                    known(replace(snapshot, jobs=(job,)))
                except Exception as error:
                    self._context.health.failed(Chore.GANGS, job.job_id, error)
                    failing.add(job.job_id)
            if not failing:
                raise
            found = known(_without(snapshot, failing))
            return replace(found, snapshot=_without(without_gangs(found.snapshot), failing))

    def _resting(self) -> dict[str, int]:
        return {job_id: until_ms for job_id, (_, until_ms) in {**self._stays, **self._rests}.items()}

    async def _enact(self, seen: Observation, claims: Sequence[Claim]) -> dict[str, str]:
        """Which jobs were not rented what they lack, and why: a limit, or a budget, that counts all machines."""
        if not claims:
            return {}
        claims = due(claims, seen.failures, seen.snapshot.now_ms)
        layouts = await self._context.layouts.of(seen.snapshot, claims)
        dropped = await enact_apart(
            self._context, claims, now_ms=seen.snapshot.now_ms, layouts=layouts, at_once=_AT_ONCE
        )
        await note_outcomes(self._context, claims, dropped, seen.failures)
        return {
            one.action.job_id: f"not all of its machines may be rented: {one.why}"
            for one in dropped
            if isinstance(one.action, ProvisionGang) and one.error is None
        }


def _let_rest(rests: dict[str, tuple[int, int]], job_id: str, now_ms: int) -> None:
    """One that could not have all tries again after a while: else it would try, or rent and end, without end."""
    times = rests.get(job_id, (0, 0))[0] + 1
    rests[job_id] = times, now_ms + min(_RESTS_MS << min(times - 1, 10), _LONGEST_REST_MS)


def _any_waits_long(gangs: Sequence[JobView], now_ms: int) -> bool:
    long_ago_ms = now_ms - RESERVE_AFTER_MS
    return any(job.state in PLACEABLE_JOB_STATES and job.submitted_ms <= long_ago_ms for job in gangs)


async def _empty_pools(connection: Connection, now_ms: int) -> list[EmptyPool]:
    """Pools of which hosts may be kept. Of one with quotas projects are sure of their part: there none is.
    Nor are hosts of which something is reserved: those who have reserved it need nothing else to be kept."""
    pools = [row.pool for row in await read_pools(connection) if row.pool.launcher == JOINED and not row.pool.quotas]
    every = await seen_hosts(connection, now_ms=now_ms)
    hosts = [replace(host, taken=(), awaited={}) for host in every if not host.kept]
    return [EmptyPool(pool.name, tuple(offers_of([pool], hosts, now_ms)), pool.most_gpus) for pool in pools]


def _without(snapshot: Snapshot, job_ids: set[str]) -> Snapshot:
    """As if these jobs, and the machines that they run on, were not there."""
    theirs = {run.node_id for run in snapshot.runs if not job_ids.isdisjoint(run.job_ids)}
    return replace(
        snapshot,
        jobs=tuple(job for job in snapshot.jobs if job.job_id not in job_ids),
        runs=tuple(run for run in snapshot.runs if run.node_id not in theirs),
        nodes=tuple(node for node in snapshot.nodes if node.node_id not in theirs),
    )
