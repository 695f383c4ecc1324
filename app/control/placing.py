"""Starts, assignments and rentals, any number together: a statement for each kind of row, not for each action.

What they need is read once, under the locks of all their rows. Then each is judged by itself, in their order, against
what was read and what those before it change of that: nobody else can change it meanwhile. What comes of them is
written last, all of it or nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from app.control.begin_run import Held, begin_gang, begin_run
from app.control.context import ControlContext
from app.control.dropping import Dropped, MovedOnError, check_versions, drop_event
from app.control.renting import Rentals, free_place
from app.core.layout import Layout
from app.core.model.job import PLACEABLE_JOB_STATES, JobState
from app.core.model.plan import Assign, AssignGang, Provision, ProvisionGang, Start
from app.core.model.run import RunPurpose
from app.db.connection import Connection
from app.db.decisions.enactment import PlacedJob, Places, attempt, jobs_to_place, places_on
from app.db.decisions.placements import NewNode, NewRun, add_nodes, add_runs, occupy_nodes
from app.db.jobs.steering import change_job
from app.db.merging.merges import MergeRow, open_merges_of
from app.db.transitions import Entry, Event, tell_jobs
from app.errors import Fenced, Unavailable
from app.services.kit.capability import Beginning
from app.services.runs.capabilities import jobs_beside
from app.services.sizes.settle_nodes import begun_on, may_begin_on

Placement = Start | Assign | Provision | AssignGang | ProvisionGang


log = logging.getLogger(__name__)


async def place(
    connection: Connection,
    context: ControlContext,
    actions: Sequence[Placement],
    found: Mapping[str, int],
    layouts: Mapping[str, Layout],
    *,
    now_ms: int,
) -> list[Dropped]:
    """Write them in the same statements; those that were dropped. All that they name is locked; `found`: its row
    versions. Where the statements fail, each half is tried by itself, down to the action that makes them fail: of that
    nothing is written, and all of the others."""
    if not actions:
        return []
    try:
        async with attempt(connection):
            return await _place_together(connection, context, actions, found, layouts, now_ms=now_ms)
    except (Fenced, Unavailable):
        raise
    except Exception as error:
        if connection.closed or connection.invalidated:
            raise  # nothing more can be written here
        if len(actions) == 1:
            return [Dropped(actions[0], "it failed", error)]
        why = str(error).partition("\n")[0]  # without the statement, which has the rows of all of them
        log.warning("%d actions are enacted in halves, for together they fail: %s", len(actions), why)
    middle = len(actions) // 2
    halves = (actions[:middle], actions[middle:])
    return [one for half in halves for one in await place(connection, context, half, found, layouts, now_ms=now_ms)]


async def _place_together(
    connection: Connection,
    context: ControlContext,
    actions: Sequence[Placement],
    found: Mapping[str, int],
    layouts: Mapping[str, Layout],
    *,
    now_ms: int,
) -> list[Dropped]:
    placing = await Placing.read(connection, context, actions, now_ms=now_ms)
    dropped = []
    for action in actions:
        try:
            check_versions(action, found)
            placing.judge(action, layouts.get(job_of(action)))
        except MovedOnError as moved:
            dropped.append(Dropped(action, str(moved)))
            if job_of(action) in found:
                placing.tell(job_of(action), drop_event(action, str(moved)))
        except Exception as error:
            dropped.append(Dropped(action, "it failed", error))
    await placing.write(connection)
    return dropped


@dataclass(slots=True)
class Placing:
    """One batch. `beside`: who begins with a job, in the same process."""

    context: ControlContext
    now_ms: int
    jobs: dict[str, PlacedJob]
    merges: Mapping[str, MergeRow]
    beside: Mapping[Beginning, Sequence[str]]
    places: dict[str, Places]
    rentals: Rentals | None
    _nodes: list[NewNode] = field(default_factory=list)
    _runs: list[NewRun] = field(default_factory=list)
    _told: list[Entry] = field(default_factory=list)
    _occupied: list[str] = field(default_factory=list)
    _asks: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # what jobs ask for from now on

    @classmethod
    async def read(
        cls, connection: Connection, context: ControlContext, actions: Sequence[Placement], *, now_ms: int
    ) -> Placing:
        """What these actions need. All that they name is locked, with the jobs that belong together with theirs."""
        beginning = dict.fromkeys((one.job_id, one.purpose) for one in actions if isinstance(one, Start | Assign))
        beside = await jobs_beside(connection, beginning)
        named = {job_of(one) for one in actions} | {job_id for ids in beside.values() for job_id in ids}
        jobs = await jobs_to_place(connection, named)
        offers = [one.offer for one in actions if isinstance(one, Start | Provision)]
        offers += [offer for one in actions if isinstance(one, ProvisionGang) for offer in one.offers]
        node_ids = {one.node_id for one in actions if isinstance(one, Assign)}
        node_ids |= {place.node_id for one in actions if isinstance(one, AssignGang) for place in one.places}
        projects = {job.project_id for job in jobs.values()}
        return cls(
            context=context,
            now_ms=now_ms,
            jobs=jobs,
            merges=await open_merges_of(connection, {job_id for job_id, _purpose in beginning}),
            beside=beside,
            places=await places_on(connection, node_ids),
            rentals=await Rentals.read(connection, context, offers, projects, now_ms=now_ms) if offers else None,
        )

    def judge(self, action: Placement, layout: Layout | None) -> None:
        """Take the action in, if it may be. Raises MovedOnError, with nothing taken in, if it may not."""
        match action:
            case Start():
                self._start(action, layout)
            case Assign():
                self._assign(action, layout)
            case Provision():
                self._provision(action)
            case AssignGang():
                self._assign_gang(action, layout)
            case ProvisionGang():
                self._provision_gang(action)

    def tell(self, job_id: str, event: Event) -> None:
        """Something happened to a job that is there."""
        self._told.append(Entry(job_id, event))

    async def write(self, connection: Connection) -> None:
        """All that was taken in."""
        await add_nodes(connection, self._nodes, now_ms=self.now_ms)
        await add_runs(connection, self._runs, now_ms=self.now_ms)
        await occupy_nodes(connection, self._occupied)
        await tell_jobs(connection, self._told, now_ms=self.now_ms)
        for job_id, asks in self._asks.items():
            await change_job(connection, job_id, {"resources": asks})

    def _start(self, action: Start, layout: Layout | None) -> None:
        assert self.rentals is not None
        job, offer = self._placeable(action.job_id), action.offer
        why = _reason(action, layout)
        node = self.rentals.rent(job, offer, why)
        facts = {"offer": offer.key, "price_micros_per_hour": offer.price_per_hour.micros}
        held = Held(node.node_id, offer.tier, range(offer.gpu_count), _kept(layout))
        self._begin(job, held, why, facts, action.purpose)
        self._rent(node)

    def _assign(self, action: Assign, layout: Layout | None) -> None:
        job = self._placeable(action.job_id)
        places = self.places.get(action.node_id)
        tier = free_place(action.node_id, places, action.gpu_indices)
        held = Held(action.node_id, tier, action.gpu_indices, _kept(layout))
        facts = {"gpu_indices": list(action.gpu_indices)}
        self._begin(job, held, _reason(action, layout), facts, action.purpose)
        assert places is not None
        self.places[action.node_id] = replace(places, taken=places.taken | set(action.gpu_indices))
        self._occupied.append(action.node_id)

    def _provision(self, action: Provision) -> None:
        assert self.rentals is not None
        job = self.jobs.get(action.for_job_id)
        if job is None or job.project_id != action.project_id:
            raise MovedOnError(f"{action.for_job_id} is not a job of {action.project_id}")
        node = self.rentals.rent(job, action.offer, action.reason, ahead=action.ahead)
        self._rent(node)
        if not action.ahead:
            self.tell(
                job.job_id, Event("node_rented", action.reason, {"node_id": node.node_id, "offer": node.offer.key})
            )

    def _assign_gang(self, action: AssignGang, layout: Layout | None) -> None:
        """All of its machines, or none. How they share the work is the leading run's to say."""
        job = self._placeable(action.job_id)
        if len(action.places) not in may_begin_on(job.resources):
            raise MovedOnError(f"{job.job_id} is not to begin on {len(action.places)} machines any more")
        held = []
        for place in action.places:
            tier = free_place(place.node_id, self.places.get(place.node_id), place.gpu_indices)
            held.append(Held(place.node_id, tier, place.gpu_indices))
        held[0] = replace(held[0], layout=_kept(layout))
        begun = begin_gang(self.context.ids, job, held, _reason(action, layout))
        last = max(run.epoch for run in begun.runs)
        self.jobs[job.job_id] = replace(job, state=JobState.STARTING, next_epoch=last + 1)
        self._runs += begun.runs
        self._told += begun.told
        self._settle_nodes(job, begun.runs)
        for place in action.places:
            places = self.places[place.node_id]
            self.places[place.node_id] = replace(places, taken=places.taken | set(place.gpu_indices))
            self._occupied.append(place.node_id)

    def _settle_nodes(self, job: PlacedJob, runs: Sequence[NewRun]) -> None:
        """What its row says is on how many machines it has begun."""
        changed = begun_on(job.resources, len(runs), runs[0].run_id)
        if changed is not None:
            asks, event = changed
            self._asks[job.job_id] = asks
            self.tell(job.job_id, event)

    def _provision_gang(self, action: ProvisionGang) -> None:
        """Limits and budgets are asked for each, with those before it: where one may not be rented, none is."""
        assert self.rentals is not None
        job = self.jobs.get(action.job_id)
        if job is None or job.state is not JobState.RUNNING:  # one that trains goes there once all of them are ready
            job = self._placeable(action.job_id)
        before = copy(self.rentals)
        rented = []
        try:
            for offer in action.offers:
                rented.append(self.rentals.rent(job, offer, action.reason))
                self.rentals.count(rented[-1])
        except MovedOnError:
            self.rentals = before
            raise
        self._nodes += rented
        nodes = [node.node_id for node in rented]
        told: dict[str, object] = {"node_ids": nodes, "offers": [offer.key for offer in action.offers]}
        if action.chosen_by is not None:
            told["switches_chosen_by"] = action.chosen_by
        self.tell(job.job_id, Event("node_rented", action.reason, told))

    def _placeable(self, job_id: str) -> PlacedJob:
        job = self.jobs.get(job_id)
        if job is None or job.state not in PLACEABLE_JOB_STATES:
            raise MovedOnError(f"{job_id} does not wait for a place")
        merge = self.merges.get(job_id)
        if merge is not None and not merge.leads(job_id):
            raise MovedOnError(f"{job_id} is trained with {merge.lead_id}, or after it")
        return job

    def _with(self, job: PlacedJob, purpose: RunPurpose) -> list[PlacedJob]:
        """Who trains in the same process. They begin when all have left where they were."""
        found = []
        for job_id in self.beside[job.job_id, purpose]:
            other = self.jobs.get(job_id)
            if other is None or other.state not in PLACEABLE_JOB_STATES:
                raise MovedOnError(f"{job_id}, which trains in the same process, has not left its last one")
            found.append(other)
        return found

    def _begin(self, job: PlacedJob, held: Held, why: str, facts: Mapping[str, object], purpose: RunPurpose) -> None:
        begun = begin_run(self.context.ids, job, self._with(job, purpose), held, why, facts, purpose)
        for run in begun.runs:
            placed = self.jobs[run.job_id]
            self.jobs[run.job_id] = replace(placed, state=JobState.STARTING, next_epoch=run.epoch + 1)
        self._runs += begun.runs
        self._told += begun.told
        for run in begun.runs:
            self._settle_nodes(self.jobs[run.job_id], [run])

    def _rent(self, node: NewNode) -> None:
        assert self.rentals is not None
        self.rentals.count(node)
        self._nodes.append(node)


def job_of(action: Placement) -> str:
    """The job that it is for."""
    return action.for_job_id if isinstance(action, Provision) else action.job_id


def _reason(action: Start | Assign | AssignGang, layout: Layout | None) -> str:
    return action.reason if layout is None else f"{action.reason}; {layout.in_words()}"


def _kept(layout: Layout | None) -> Mapping[str, object] | None:
    return None if layout is None else layout.as_json()
