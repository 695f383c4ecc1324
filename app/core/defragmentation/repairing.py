"""What a job that comes together does next, on the fleet as it is now (ADR 0123). Pure.

Its plan was made on rows that have moved on since. What is not so any more drops it: the job trains on where it is, and
what was rented for it is let go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.core.defragmentation.closer import is_closer, reached
from app.core.defragmentation.deciding import PlannedRelease, ReleaseState
from app.core.defragmentation.execution import MOST_TRIES, STALE_MS, Deciding
from app.core.defragmentation.repairs import GangHere, Repairs, RepairState, SwitchRepair, under
from app.core.defragmentation.seen_fleet import SeenFleet
from app.core.defragmentation.staying import Stays
from app.core.model.job import PLACEABLE_JOB_STATES, JobState
from app.core.model.node import NodeState
from app.core.model.plan import ProvisionGang
from app.core.model.snapshot import JobView, NodeView, versions_of
from app.core.policies.reasons import duration
from app.core.topology import Domain, spread

_PATIENCE_MS = 60_000  # for others that wait
_ON_ITS_WAY = frozenset({JobState.CHECKPOINTING, JobState.STARTING, *PLACEABLE_JOB_STATES})
_COMING = frozenset({NodeState.REQUESTED, NodeState.BOOTING, NodeState.UNKNOWN, NodeState.READY})


@dataclass(frozen=True, slots=True)
class NextRepairs:
    """`changed`: those of which something has become, as they are now. `begin`: what is rented for those that begin."""

    changed: tuple[SwitchRepair, ...] = ()
    begin: Mapping[str, ProvisionGang] = field(default_factory=dict)


def next_repairs(
    known: Sequence[SwitchRepair],
    seen: SeenFleet,
    deciding: Deciding,
    longest_ms: int,
    told: str,
    releases: Sequence[PlannedRelease] = (),
) -> NextRepairs:
    """`longest_ms`: that one may take from the moment when its machines are rented. `told`: what they are part of.
    `releases`: of hosts; those that are for one of these jobs come before its own move."""
    repairs, jobs = Repairs(seen), {job.job_id: job for job in seen.snapshot.jobs}
    first = {one.job_id: [it for it in releases if it.for_job_id == one.job_id] for one in known}
    now = [_caught_up(one, repairs, jobs.get(one.job_id), deciding, longest_ms, first[one.job_id]) for one in known]
    room = deciding.at_once - sum(one.state is RepairState.MOVING for one in now)
    begin: dict[str, ProvisionGang] = {}
    pools: set[str] = set()  # one each time: the next one sees what it has left
    for number, one in enumerate(now):
        gang = repairs.trains(jobs[one.job_id]) if one.state is RepairState.WAITING else None
        if gang is None or room <= 0 or gang.pool.name in pools or _has_to_wait(one, repairs, gang, first[one.job_id]):
            continue
        found = _begins(one, repairs, gang, told)
        if isinstance(found, str):
            now[number] = _dropped(one, found)
        else:
            begin[one.job_id], room = found, room - 1
            pools.add(gang.pool.name)
    changed = tuple(after for before, after in zip(known, now, strict=True) if after != before)
    return NextRepairs(changed, begin)


def _has_to_wait(repair: SwitchRepair, repairs: Repairs, gang: GangHere, first: Sequence[PlannedRelease]) -> bool:
    """For hosts that are vacated for it, for others that wait, or for room within its pool's limit."""
    left = repairs.left_in(gang.pool)
    return (
        any(not one.is_over for one in first)
        or repairs.is_waited_for(gang.pool, gang.kind)
        or (left is not None and left < len(repair.places) * repair.gpus)
    )


def _caught_up(
    repair: SwitchRepair,
    repairs: Repairs,
    job: JobView | None,
    deciding: Deciding,
    longest_ms: int,
    first: Sequence[PlannedRelease],
) -> SwitchRepair:
    if repair.is_over:
        return repair
    if job is None:
        return _dropped(repair, "the job is over")
    gang = repairs.trains(job)
    if repair.state is RepairState.WAITING:
        why = _not_begun(repair, repairs, gang, deciding, first)
        return repair if why is None else _dropped(repair, why)
    trains = gang if job.state is JobState.RUNNING else None
    if trains is not None and trains.lead.run_id != repair.run_id:
        return _arrived(repair, trains)
    why = _given_up(repair, repairs, job, deciding.now_ms, longest_ms, is_here=trains is not None)
    return repair if why is None else _dropped(repair, why)


def _given_up(
    repair: SwitchRepair, repairs: Repairs, job: JobView, now_ms: int, longest_ms: int, *, is_here: bool
) -> str | None:
    """Why one whose machines are rented goes no further. `is_here`: it has not left yet."""
    if job.leaving or (job.state is not JobState.RUNNING and job.state not in _ON_ITS_WAY):
        return "the job was paused, or ended"
    if is_here and not is_complete(repair.places, repairs.beside(job.job_id)):
        return "not all of its next machines came"
    is_late = now_ms - (repair.begun_ms or 0) > longest_ms
    return f"it took longer than {duration(longest_ms)}" if is_late else None


def begun(repair: SwitchRepair, now_ms: int) -> SwitchRepair:
    return replace(repair, state=RepairState.MOVING, begun_ms=now_ms)


def not_begun(repair: SwitchRepair, why: str) -> SwitchRepair:
    """It is tried again, a few times."""
    tried = replace(repair, tries=repair.tries + 1, why=why)
    return _dropped(tried, why) if tried.tries >= MOST_TRIES else tried


def is_complete(places: Sequence[str], beside: Sequence[tuple[str, NodeView]]) -> bool:
    """Whether all machines that were rented are there or coming. `beside`: by place, views of nodes."""
    there = {place for place, node in beside if node.state in _COMING}
    return there >= set(places)


def _not_begun(
    repair: SwitchRepair,
    repairs: Repairs,
    gang: GangHere | None,
    deciding: Deciding,
    first: Sequence[PlannedRelease],
) -> str | None:
    """Why one that waits for its turn is dropped. Who has only just come to wait has a place by the next decision."""
    if deciding.cancelled:
        return "it was called off"
    if any(one.state is ReleaseState.DROPPED for one in first):
        return "not all of the hosts that it needs could be vacated"
    if gang is None or gang.lead.run_id != repair.run_id:
        return "it is not where it was any more"
    stays = repairs.why_it_stays(gang)
    if stays is Stays.WAITED_FOR and not repairs.is_waited_for(gang.pool, gang.kind, _PATIENCE_MS):
        stays = None
    begun_ms = max((one.settled_ms or one.begun_ms or 0 for one in first), default=0)
    old_ms = deciding.now_ms - max(deciding.planned_ms, begun_ms)
    if stays is None and old_ms > STALE_MS:
        return f"its plan is {duration(old_ms)} old"
    return None if stays is None else f"it has to stay: it {stays}"


def _begins(repair: SwitchRepair, repairs: Repairs, gang: GangHere, told: str) -> ProvisionGang | str:
    """What is rented; or why it is dropped."""
    job = gang.job
    free, rule = repairs.free(gang), repairs.rule_for(job)
    if not free.keys() >= set(repair.places):
        return "what it was to move to is not free any more"
    before = Counter(gang.here.values())
    after = reached(rule, gang.here, repairs.domains(repair.places), job.most_under_one.by_level)
    if after is None or not is_closer(after, before):
        return "it would be no closer there: labels, or its machines, have changed"
    offers = tuple(free[place] for place in repair.places)
    versions = tuple(sorted([*versions_of(job), (gang.lead.run_id, gang.lead.row_version)]))
    count = len(offers)
    what = f"rents {count} machines at once" if count > 1 else "rents another machine"
    why = f"{what} while it trains, to come together: {repair.in_words} ({told})"
    return ProvisionGang(job.job_id, offers, why, versions, chosen_by=rule.value)


def _arrived(repair: SwitchRepair, gang: GangHere) -> SwitchRepair:
    """It trains elsewhere than it did: closer, or it has begun again after something happened to it on its way."""
    after = Counter[Domain](gang.here.values())
    if _spread_of(after) < repair.spread - 1e-4:
        return replace(repair, state=RepairState.DONE, there=under(after), spread_there=_spread_of(after))
    return _dropped(repair, f"the job began again otherwise: its machines are {under(after)}")


def _spread_of(counts: Mapping[Domain, int]) -> float:
    return round(spread(counts), 4)


def _dropped(repair: SwitchRepair, why: str) -> SwitchRepair:
    return replace(repair, state=RepairState.DROPPED, why=why)
