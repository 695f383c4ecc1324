"""What must hold of every snapshot and of every plan, whatever the policy.

The live loop has each plan judged before it is enacted (`app.core.judging`); the tests of every policy do.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from app.core import queue
from app.core.billing import first_unit
from app.core.market import is_for
from app.core.merging.partners import refusal, refusal_together
from app.core.model.budget import Allowance
from app.core.model.job import PLACEABLE_JOB_STATES, JobState
from app.core.model.merge import MergeMode
from app.core.model.money import ZERO
from app.core.model.node import SERVERFUL_TIERS, NodeState, Tier
from app.core.model.offer import Offer
from app.core.model.plan import Action, Assign, Demote, Merge, Migrate, Plan, Preempt, Provision, Release, Split, Start
from app.core.model.run import PREPARED_RUN_STATES, RunPurpose, RunState
from app.core.model.snapshot import JobView, NodeView, RunView, Snapshot
from app.core.policy import PolicyConfig
from app.core.progress import has_progress
from app.core.spot_places import is_of_its_class

# By which breaches are counted: what monitoring shows before the first one, too.
INVARIANTS = (
    "kind", "version", "once", "limit", "offer", "placing", "gpu", "affinity", "stopping", "release", "merge",
    "profile", "forgotten",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Breach:
    """`invariant` names what is broken, `actions` are the places in the plan of those without which it would hold. None
    of them: nothing can be left out for it (a job was forgotten)."""

    invariant: str
    sentence: str
    actions: tuple[int, ...] = ()


def snapshot_breaches(snapshot: Snapshot) -> list[str]:
    """What is wrong with the world itself: doubly held jobs, runs on no node, GPUs that do not exist."""
    return [*_run_breaches(snapshot), *_node_breaches(snapshot)]


def plan_breaches(snapshot: Snapshot, plan: Plan, config: PolicyConfig) -> list[str]:
    """What of the plan must never be enacted on this snapshot, and which job it has forgotten. Each a sentence."""
    return [breach.sentence for breach in judge(snapshot, plan, config)]


def judge(snapshot: Snapshot, plan: Plan, config: PolicyConfig) -> list[Breach]:
    """As `plan_breaches`, with the invariant and the actions that each is about. Linear in the snapshot and the plan;
    of a plan without actions, only what it forgets is looked at."""
    return [*_action_breaches(snapshot, plan, config), *_forgotten(plan, snapshot, config)]


def _action_breaches(snapshot: Snapshot, plan: Plan, config: PolicyConfig) -> Iterator[Breach]:
    if not plan.actions:
        return
    named = _named(snapshot, plan)
    jobs = {job.job_id: job for job in snapshot.jobs if job.job_id in named}
    nodes = {node.node_id: node for node in snapshot.nodes}
    yield from _kind_breaches(plan, config)
    yield from _version_breaches(snapshot, plan, jobs)
    yield from _once_breaches(plan)
    yield from _limit_breaches(snapshot, plan, config)
    yield from _offer_breaches(snapshot, plan)
    yield from _shared_breaches(plan)
    yield from _placing_breaches(snapshot, plan, jobs)
    yield from _gpu_breaches(plan, jobs, nodes)
    yield from _affinity_breaches(snapshot, plan, jobs)
    yield from _demote_breaches(snapshot, plan, jobs)
    yield from _release_breaches(snapshot, plan, nodes)
    yield from _merge_breaches(snapshot, plan, jobs, config)
    yield from _profile_breaches(snapshot, plan, jobs, config)


def _named(snapshot: Snapshot, plan: Plan) -> set[str]:
    """All rows that the plan is about, and the jobs that run on them: few of very many."""
    rows = {row_id for action in plan.actions for row_id, _ in action.versions}
    rows |= {row_id for action in plan.actions for row_id in _rows_needed(action)}
    return rows.union(*(run.job_ids for run in snapshot.runs if run.node_id in rows))


def job_of(action: Action) -> str | None:
    """The job that an action is for; None for a release."""
    if isinstance(action, Release):
        return None
    return action.for_job_id if isinstance(action, Provision) else action.job_id


def _run_breaches(snapshot: Snapshot) -> Iterator[str]:
    nodes = {node.node_id: node for node in snapshot.nodes}
    started = [run for run in snapshot.runs if run.state not in PREPARED_RUN_STATES]
    holders = Counter(job_id for run in started for job_id in run.job_ids)
    leaving = Counter(job_id for run in started if run.state == RunState.STOPPING for job_id in run.job_ids)
    for job_id, count in sorted(holders.items()):  # the last place of a job that has moved may still be leaving
        if count - min(1, leaving[job_id]) > 1:
            yield f"{count} live runs hold {job_id}"
    for run in snapshot.runs:
        node = nodes.get(run.node_id)
        if node is None:
            yield f"{run.run_id} is live on {run.node_id}, which is gone"
        elif len(node.free_gpus) == node.gpu_count:
            yield f"{run.run_id} is live on {run.node_id}, all of whose GPUs are free"


def _node_breaches(snapshot: Snapshot) -> Iterator[str]:
    for node in snapshot.nodes:
        if len(set(node.free_gpus)) != len(node.free_gpus) or not set(node.free_gpus) <= set(range(node.gpu_count)):
            yield f"{node.node_id} has {node.gpu_count} GPUs, and {list(node.free_gpus)} are said to be free"


def _kind_breaches(plan: Plan, config: PolicyConfig) -> Iterator[Breach]:
    for place, action in enumerate(plan.actions):
        if action.kind not in config.capabilities:
            yield Breach("kind", f"{action.kind} cannot be enacted in this world", (place,))
        if not action.reason:
            yield Breach("kind", f"{action.kind} gives no reason", (place,))


def _version_breaches(snapshot: Snapshot, plan: Plan, jobs: dict[str, JobView]) -> Iterator[Breach]:
    rows: dict[str, int] = {job.job_id: job.row_version for job in jobs.values()}
    rows |= {run.run_id: run.row_version for run in snapshot.runs}
    rows |= {node.node_id: node.row_version for node in snapshot.nodes}
    rows |= {merge.merge_id: merge.row_version for merge in snapshot.merges}
    for place, action in enumerate(plan.actions):
        if list(action.versions) != sorted(set(action.versions)) or not action.versions:
            yield Breach("version", f"{action.kind} names its rows out of order, twice or not at all", (place,))
        missing = _rows_needed(action) - {row_id for row_id, _ in action.versions}
        for row_id in sorted(missing):
            yield Breach("version", f"{action.kind} does not say which version of {row_id} it saw", (place,))
        for row_id, version in action.versions:
            if rows.get(row_id) != version:
                yield Breach(
                    "version",
                    f"{action.kind} was decided on version {version} of {row_id}, which has {rows.get(row_id)}",
                    (place,),
                )


def _rows_needed(action: Action) -> set[str]:
    if isinstance(action, Assign):
        return {action.job_id, action.node_id}
    if isinstance(action, Migrate):
        return {action.job_id, action.run_id, action.node_id}
    if isinstance(action, Demote | Preempt):
        return {action.job_id, action.run_id}
    if isinstance(action, Merge):
        return {action.job_id, action.companion_id}
    if isinstance(action, Split):
        return {action.merge_id}
    return {action.node_id} if isinstance(action, Release) else {job_of(action) or ""}


def _once_breaches(plan: Plan) -> Iterator[Breach]:
    places: dict[str | None, list[int]] = {}
    for place, action in enumerate(plan.actions):
        if not isinstance(action, Provision | Release):
            places.setdefault(job_of(action), []).append(place)
        if isinstance(action, Merge | Split):
            places.setdefault(action.companion_id, []).append(place)
    for job_id, given in places.items():
        if len(given) > 1:
            yield Breach("once", f"{job_id} is given {len(given)} actions", tuple(given[1:]))


def _limit_breaches(snapshot: Snapshot, plan: Plan, config: PolicyConfig) -> Iterator[Breach]:
    serverless = sum(node.tier == Tier.SERVERLESS for node in snapshot.nodes)
    starts = [place for place, action in enumerate(plan.actions) if isinstance(action, Start) and not _is_own(action)]
    room = max(0, config.serverless_limit - serverless)
    if len(starts) > room:
        told = f"{serverless} + {len(starts)} serverless nodes are more than {config.serverless_limit}"
        yield Breach("limit", told, tuple(starts[room:]))
    serverful = sum(node.tier in SERVERFUL_TIERS and node.tier != Tier.OWN for node in snapshot.nodes)
    rents = [
        place for place, action in enumerate(plan.actions) if isinstance(action, Provision) and not _is_own(action)
    ]
    room = max(0, config.serverful_limit - serverful)
    if len(rents) > room:
        told = f"{serverful} + {len(rents)} serverful nodes are more than {config.serverful_limit}"
        yield Breach("limit", told, tuple(rents[room:]))


def _is_own(action: Start | Provision) -> bool:
    return action.offer.tier == Tier.OWN


def _shared_breaches(plan: Plan) -> Iterator[Breach]:
    """A host's GPUs are given out once, however many of its offers name them."""
    taken: Counter[tuple[str, str]] = Counter()
    for place, action in enumerate(plan.actions):
        if isinstance(action, Start | Provision) and action.offer.shared_gpus:
            host = action.offer.provider, action.offer.host
            taken[host] += action.offer.gpu_count
            if taken[host] > action.offer.shared_gpus:
                told = f"{taken[host]} GPUs of {host[1]} are given out, {action.offer.shared_gpus} are free"
                yield Breach("offer", told, (place,))


def _offer_breaches(snapshot: Snapshot, plan: Plan) -> Iterator[Breach]:
    rents = [(place, action) for place, action in enumerate(plan.actions) if isinstance(action, Start | Provision)]
    on_offer = frozenset(snapshot.offers) if rents else frozenset()
    for place, action in rents:
        if action.offer not in on_offer:
            told = f"{job_of(action)} is given {action.kind} of {action.offer.key}, which is not on offer like that"
            yield Breach("offer", told, (place,))


def _placing_breaches(snapshot: Snapshot, plan: Plan, jobs: dict[str, JobView]) -> Iterator[Breach]:
    for place, action in enumerate(plan.actions):
        job = jobs.get(job_of(action) or "")
        if isinstance(action, Release) or job is None:
            continue
        if isinstance(action, Start | Assign):
            if job.state not in PLACEABLE_JOB_STATES:
                yield Breach("placing", f"{job.job_id} is {job.state} and is given a place", (place,))
            if job.not_before_ms > snapshot.now_ms:
                yield Breach("placing", f"{job.job_id} backs off and is given a place", (place,))
        if (
            not isinstance(action, Demote | Preempt)
            and job.caps.max_cost is not None
            and job.spent >= job.caps.max_cost
        ):
            yield Breach("placing", f"{job.job_id} has reached its cost cap and is given {action.kind}", (place,))
        if not isinstance(action, Demote | Preempt) and (budget := queue.used_up_budget(job)) is not None:
            yield Breach("placing", f"{job.job_id} is given {action.kind}, and {budget.name} is used up", (place,))
        if isinstance(action, Start | Provision):
            yield from (Breach("placing", told, (place,)) for told in _renting_breaches(snapshot, job, action))


def _renting_breaches(snapshot: Snapshot, job: JobView, action: Start | Provision) -> Iterator[str]:
    """Why the job may not have a machine of this offer."""
    given = f"{job.job_id} is given {action.offer.key}"
    if _first_unit_breaks_cap(snapshot, job, action.offer):
        yield f"{job.job_id} is given {action.kind} of {action.offer.key}, whose first billing unit breaks its cap"
    if not job.caps.allows_hourly(action.offer.price_per_hour.micros):
        yield f"{given}, beyond its max_hourly"
    if budget := _refusing_budget(snapshot, job, action.offer):
        yield f"{given}, beyond {budget.name}"
    if _image_cannot_go_there(snapshot, job, action.offer):
        yield f"{job.job_id} wants image {job.resources.base_image} and is given {action.offer.key}, no container"
    if not is_for(job, action.offer):
        whom = "other projects" if is_of_its_class(job, action.offer) else "spot jobs that can go on"
        yield f"{given}, which is for {whom}"
    if isinstance(action, Provision) and action.project_id != job.project_id:
        yield f"{job.job_id} belongs to {job.project_id}; the node would belong to {action.project_id}"


def _first_unit_breaks_cap(snapshot: Snapshot, job: JobView, offer: Offer) -> bool:
    rules = {(trait.provider, trait.tier): trait.billing for trait in snapshot.traits}
    rule = rules.get((offer.provider, offer.tier))
    if rule is None or job.caps.max_cost is None:
        return False
    return job.spent + first_unit(rule, offer.price_per_hour) > job.caps.max_cost


def _refusing_budget(snapshot: Snapshot, job: JobView, offer: Offer) -> Allowance | None:
    rules = {(trait.provider, trait.tier): trait.billing for trait in snapshot.traits} if job.allowances else {}
    rule = rules.get((offer.provider, offer.tier))
    return job.refused_by(offer.provider, ZERO if rule is None else first_unit(rule, offer.price_per_hour))


def _image_cannot_go_there(snapshot: Snapshot, job: JobView, offer: Offer) -> bool:
    where = offer.provider, offer.tier
    plain = any((trait.provider, trait.tier) == where and not trait.takes_images for trait in snapshot.traits)
    return plain and job.resources.base_image is not None


def _gpu_breaches(plan: Plan, jobs: dict[str, JobView], nodes: dict[str, NodeView]) -> Iterator[Breach]:
    taken: set[tuple[str, int]] = set()
    for place, action in enumerate(plan.actions):
        if not isinstance(action, Assign | Migrate) or action.node_id not in nodes or action.job_id not in jobs:
            continue
        node, job = nodes[action.node_id], jobs[action.job_id]
        places = {(node.node_id, index) for index in action.gpu_indices}
        if places & taken or len(places) < len(action.gpu_indices):
            yield Breach("gpu", f"GPUs of {node.node_id} are given twice", (place,))
        taken |= places
        if not set(action.gpu_indices) <= set(node.free_gpus):
            yield Breach("gpu", f"{job.job_id} is given GPUs of {node.node_id} that are not free", (place,))
        if len(action.gpu_indices) < job.resources.gpus_min:
            yield Breach(
                "gpu",
                f"{job.job_id} needs {job.resources.gpus_min} GPUs and is given {len(action.gpu_indices)}",
                (place,),
            )
        if node.state != NodeState.READY:
            yield Breach("gpu", f"{job.job_id} is given {node.node_id}, which is {node.state}", (place,))
        if node.image != (job.resources.base_image or ""):
            yield Breach(
                "gpu",
                f"{job.job_id} wants image {job.resources.base_image} and is given {node.node_id} with {node.image}",
                (place,),
            )
        if not job.may_run_at(node.provider):
            yield Breach("gpu", f"{job.job_id} is given {node.node_id}, and a budget there is used up", (place,))
        if not is_of_its_class(job, node):
            yield Breach(
                "gpu", f"{job.job_id} is given {node.node_id}, which is for spot jobs that can go on", (place,)
            )
        if node.project_id != job.project_id:
            yield Breach("gpu", f"{job.job_id} of {job.project_id} is given a node of {node.project_id}", (place,))


def _affinity_breaches(snapshot: Snapshot, plan: Plan, jobs: dict[str, JobView]) -> Iterator[Breach]:
    there: dict[str, set[str]] = {node.node_id: set() for node in snapshot.nodes}
    for run in snapshot.runs:
        if run.node_id in there:
            there[run.node_id].update(run.job_ids)
    looked_at = {run.run_id for run in snapshot.runs if run.purpose == RunPurpose.PROFILE}  # its job gets no further
    for place, action in enumerate(plan.actions):
        if isinstance(action, Assign | Migrate) and action.job_id in jobs and action.node_id in there:
            there[action.node_id].add(action.job_id)
            job, others = jobs[action.job_id], there[action.node_id] - {action.job_id}
            for other in sorted(others & jobs.keys()):
                if job.affinity.forbids(jobs[other].affinity):
                    yield Breach(
                        "affinity", f"{job.job_id} is to be apart from {other} and is given {action.node_id}", (place,)
                    )
        if not isinstance(action, Demote | Migrate | Preempt) or action.run_id in looked_at:
            continue
        if action.job_id in jobs and jobs[action.job_id].stays:
            yield Breach("affinity", f"{action.job_id} is to stay where it is and is given {action.kind}", (place,))


def _demote_breaches(snapshot: Snapshot, plan: Plan, jobs: dict[str, JobView]) -> Iterator[Breach]:
    runs = {run.run_id: run for run in snapshot.runs}
    for place, action in enumerate(plan.actions):
        if not isinstance(action, Demote | Migrate | Preempt):
            continue
        run, job = runs.get(action.run_id), jobs.get(action.job_id)
        if run is None or job is None or not _runs(run, job):
            yield Breach("stopping", f"{action.run_id} of {action.job_id} is no running run of it", (place,))
        elif isinstance(action, Demote) and run.tier != Tier.SERVERLESS and run.purpose == RunPurpose.TRAIN:
            yield Breach("stopping", f"{action.run_id} of {action.job_id} is not serverless and is demoted", (place,))
        elif isinstance(action, Preempt) and run.tier == Tier.SERVERLESS:
            yield Breach("stopping", f"{action.run_id} of {action.job_id} is serverless and is preempted", (place,))
        elif isinstance(action, Migrate) and (len(run.job_ids) > 1 or run.purpose == RunPurpose.PROFILE):
            yield Breach(
                "stopping",
                f"{action.run_id} of {action.job_id} is {run.purpose} of {len(run.job_ids)} jobs and is moved",
                (place,),
            )
        elif isinstance(action, Migrate) and action.node_id == run.node_id:
            yield Breach("stopping", f"{action.run_id} of {action.job_id} is moved to where it is", (place,))


def _runs(run: RunView, job: JobView) -> bool:
    return run.state == RunState.RUNNING and job.state == JobState.RUNNING and job.job_id in run.job_ids


def _release_breaches(snapshot: Snapshot, plan: Plan, nodes: dict[str, NodeView]) -> Iterator[Breach]:
    occupied = {run.node_id for run in snapshot.runs}
    occupied |= {action.node_id for action in plan.actions if isinstance(action, Assign | Migrate)}
    released: set[str] = set()
    for place, action in enumerate(plan.actions):
        if not isinstance(action, Release):
            continue
        node = nodes.get(action.node_id)
        if action.node_id in released:
            yield Breach("release", f"{action.node_id} is released twice", (place,))
        released.add(action.node_id)
        if action.node_id in occupied or (node is not None and len(node.free_gpus) < node.gpu_count):
            yield Breach("release", f"{action.node_id} holds a run and is released", (place,))


def _merge_breaches(snapshot: Snapshot, plan: Plan, jobs: dict[str, JobView], config: PolicyConfig) -> Iterator[Breach]:
    merges = {merge.merge_id: merge for merge in snapshot.merges}
    merged = {job_id for merge in snapshot.merges for job_id in (merge.lead_id, merge.companion_id)}
    begun = {job_id for run in snapshot.runs for job_id in run.job_ids}
    for place, action in enumerate(plan.actions):
        if isinstance(action, Split) and action.merge_id not in merges:
            yield Breach("merge", f"{action.merge_id} is no open merge and is split", (place,))
        if not isinstance(action, Merge):
            continue
        both = [job for job_id in (action.job_id, action.companion_id) if (job := jobs.get(job_id)) is not None]
        for job in both:
            if job.job_id in merged:
                yield Breach("merge", f"{job.job_id} is merged already", (place,))
        if len(both) != 2 or (why := refusal(*both)) is not None:
            yield Breach(
                "merge",
                f"{action.job_id} and {action.companion_id} are merged: {why if len(both) == 2 else 'one is gone'}",
                (place,),
            )
        if action.companion_id in begun or (action.mode == MergeMode.TOGETHER and action.job_id in begun):
            yield Breach(
                "merge",
                f"{action.job_id} and {action.companion_id} are merged {action.mode} when one has a place",
                (place,),
            )
        if action.mode not in config.merge_modes:
            yield Breach(
                "merge", f"{action.job_id} and {action.companion_id} are merged {action.mode}, which is off", (place,)
            )
        if len(both) == 2:
            yield from _mode_breaches(place, action, *both)


def _mode_breaches(place: int, action: Merge, lead: JobView, companion: JobView) -> Iterator[Breach]:
    together = action.mode == MergeMode.TOGETHER
    for job in (lead, companion) if together else (companion,):
        if has_progress(job):
            yield Breach("merge", f"{job.job_id} has progress and is merged {action.mode}", (place,))
    if together and refusal(lead, companion) is None and (why := refusal_together(lead, companion)) is not None:
        yield Breach("merge", f"{lead.job_id} and {companion.job_id} are merged {action.mode}: {why}", (place,))


def _profile_breaches(
    snapshot: Snapshot, plan: Plan, jobs: dict[str, JobView], config: PolicyConfig
) -> Iterator[Breach]:
    profiles = [
        (place, action)
        for place, action in enumerate(plan.actions)
        if isinstance(action, Start | Assign) and action.purpose == RunPurpose.PROFILE
    ]
    live = sum(run.purpose == RunPurpose.PROFILE for run in snapshot.runs)
    room = max(0, config.rules.merge_profile_most - live)
    if len(profiles) > room:
        told = f"{live} + {len(profiles)} jobs are profiled at once; {config.rules.merge_profile_most} may be"
        yield Breach("profile", told, tuple(place for place, _ in profiles[room:]))
    merged = {job_id for merge in snapshot.merges for job_id in (merge.lead_id, merge.companion_id)}
    for place, action in profiles:
        job = jobs.get(action.job_id)
        if job is None:
            continue
        if not config.merging or job.recipe is None or not job.recipe.shares or job.job_id in merged:
            yield Breach("profile", f"{job.job_id} cannot be merged and is profiled", (place,))
        elif job.recipe.pull or job.recipe.profile_tries or has_progress(job):
            told = f"{job.job_id} is profiled already, or was in vain, or has progress, and is profiled"
            yield Breach("profile", told, (place,))


def _forgotten(plan: Plan, snapshot: Snapshot, config: PolicyConfig) -> Iterator[Breach]:
    """Of those that are told in this decision: of a crowd, not all are."""
    told = {job_of(action) for action in plan.actions} | {
        action.companion_id for action in plan.actions if isinstance(action, Merge | Split)
    }
    told |= {waiting.job_id for waiting in plan.waiting if waiting.reason}
    for job in _told_now(snapshot, config):
        if job.state in PLACEABLE_JOB_STATES and job.job_id not in told:
            yield Breach("forgotten", f"{job.job_id} is {job.state} and is told nothing")


def _told_now(snapshot: Snapshot, config: PolicyConfig) -> Iterable[JobView]:
    if not config.told:
        return snapshot.jobs
    by_id = attrgetter("job_id")
    ends = [
        (bisect_left(snapshot.jobs, first, key=by_id), bisect_right(snapshot.jobs, last, key=by_id))
        for first, last in config.told
    ]
    return [job for begin, end in ends for job in snapshot.jobs[begin:end]]
