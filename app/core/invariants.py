"""What must hold of every snapshot and of every plan, whatever the policy. Each breach is a sentence.

A world may check each plan before it enacts it; the tests of every policy do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from app.core.billing import first_unit
from app.core.merging.partners import refusal, refusal_together
from app.core.model.job import PLACEABLE_JOB_STATES, JobState
from app.core.model.merge import MergeMode
from app.core.model.node import SERVERFUL_TIERS, NodeState, Tier
from app.core.model.offer import Offer
from app.core.model.plan import Action, Assign, Demote, Merge, Migrate, Plan, Preempt, Provision, Release, Split, Start
from app.core.model.run import PREPARED_RUN_STATES, RunPurpose, RunState
from app.core.model.snapshot import JobView, NodeView, RunView, Snapshot
from app.core.policy import PolicyConfig
from app.core.progress import has_progress


def snapshot_breaches(snapshot: Snapshot) -> list[str]:
    """What is wrong with the world itself: doubly held jobs, runs on no node, GPUs that do not exist."""
    return [*_run_breaches(snapshot), *_node_breaches(snapshot)]


def plan_breaches(snapshot: Snapshot, plan: Plan, config: PolicyConfig) -> list[str]:
    """What of the plan must never be enacted on this snapshot, and which job it has forgotten."""
    jobs = {job.job_id: job for job in snapshot.jobs}
    nodes = {node.node_id: node for node in snapshot.nodes}
    return [
        *_kind_breaches(plan, config),
        *_version_breaches(snapshot, plan),
        *_once_breaches(plan),
        *_limit_breaches(snapshot, plan, config),
        *_placing_breaches(snapshot, plan, jobs),
        *_gpu_breaches(plan, jobs, nodes),
        *_affinity_breaches(snapshot, plan, jobs),
        *_demote_breaches(snapshot, plan, jobs),
        *_release_breaches(snapshot, plan, nodes),
        *_merge_breaches(snapshot, plan, jobs, config),
        *_profile_breaches(snapshot, plan, jobs, config),
        *_forgotten(plan, snapshot),
    ]


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


def _kind_breaches(plan: Plan, config: PolicyConfig) -> Iterator[str]:
    for action in plan.actions:
        if action.kind not in config.capabilities:
            yield f"{action.kind} cannot be enacted in this world"
        if not action.reason:
            yield f"{action.kind} gives no reason"


def _version_breaches(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    rows: dict[str, int] = {job.job_id: job.row_version for job in snapshot.jobs}
    rows |= {run.run_id: run.row_version for run in snapshot.runs}
    rows |= {node.node_id: node.row_version for node in snapshot.nodes}
    rows |= {merge.merge_id: merge.row_version for merge in snapshot.merges}
    for action in plan.actions:
        if list(action.versions) != sorted(set(action.versions)) or not action.versions:
            yield f"{action.kind} names its rows out of order, twice or not at all"
        missing = _rows_needed(action) - {row_id for row_id, _ in action.versions}
        yield from (f"{action.kind} does not say which version of {row_id} it saw" for row_id in sorted(missing))
        for row_id, version in action.versions:
            if rows.get(row_id) != version:
                yield f"{action.kind} was decided on version {version} of {row_id}, which has {rows.get(row_id)}"


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


def _once_breaches(plan: Plan) -> Iterator[str]:
    places = [job_of(action) for action in plan.actions if not isinstance(action, Provision | Release)]
    places += [action.companion_id for action in plan.actions if isinstance(action, Merge | Split)]
    yield from (f"{job_id} is given {count} actions" for job_id, count in Counter(places).items() if count > 1)


def _limit_breaches(snapshot: Snapshot, plan: Plan, config: PolicyConfig) -> Iterator[str]:
    serverless = sum(node.tier == Tier.SERVERLESS for node in snapshot.nodes)
    starts = sum(isinstance(action, Start) for action in plan.actions)
    if starts and serverless + starts > config.serverless_limit:
        yield f"{serverless} + {starts} serverless nodes are more than {config.serverless_limit}"
    serverful = sum(node.tier in SERVERFUL_TIERS for node in snapshot.nodes)
    rents = sum(isinstance(action, Provision) for action in plan.actions)
    if rents and serverful + rents > config.serverful_limit:
        yield f"{serverful} + {rents} serverful nodes are more than {config.serverful_limit}"


def _placing_breaches(snapshot: Snapshot, plan: Plan, jobs: dict[str, JobView]) -> Iterator[str]:
    for action in plan.actions:
        job = jobs.get(job_of(action) or "")
        if isinstance(action, Release) or job is None:
            continue
        if isinstance(action, Start | Assign):
            if job.state not in PLACEABLE_JOB_STATES:
                yield f"{job.job_id} is {job.state} and is given a place"
            if job.not_before_ms > snapshot.now_ms:
                yield f"{job.job_id} backs off and is given a place"
        if (
            not isinstance(action, Demote | Preempt)
            and job.caps.max_cost is not None
            and job.spent >= job.caps.max_cost
        ):
            yield f"{job.job_id} has reached its cost cap and is given {action.kind}"
        if isinstance(action, Start | Provision) and _first_unit_breaks_cap(snapshot, job, action.offer):
            yield f"{job.job_id} is given {action.kind} of {action.offer.key}, whose first billing unit breaks its cap"
        if isinstance(action, Start | Provision) and _image_cannot_go_there(snapshot, job, action.offer):
            yield f"{job.job_id} wants image {job.resources.base_image} and is given {action.offer.key}, no container"
        if isinstance(action, Provision) and action.project_id != job.project_id:
            yield f"{job.job_id} belongs to {job.project_id}; the node would belong to {action.project_id}"


def _first_unit_breaks_cap(snapshot: Snapshot, job: JobView, offer: Offer) -> bool:
    rules = {(trait.provider, trait.tier): trait.billing for trait in snapshot.traits}
    rule = rules.get((offer.provider, offer.tier))
    if rule is None or job.caps.max_cost is None:
        return False
    return job.spent + first_unit(rule, offer.price_per_hour) > job.caps.max_cost


def _image_cannot_go_there(snapshot: Snapshot, job: JobView, offer: Offer) -> bool:
    where = offer.provider, offer.tier
    plain = any((trait.provider, trait.tier) == where and not trait.takes_images for trait in snapshot.traits)
    return plain and job.resources.base_image is not None


def _gpu_breaches(plan: Plan, jobs: dict[str, JobView], nodes: dict[str, NodeView]) -> Iterator[str]:
    taken: set[tuple[str, int]] = set()
    for action in plan.actions:
        if not isinstance(action, Assign | Migrate) or action.node_id not in nodes or action.job_id not in jobs:
            continue
        node, job = nodes[action.node_id], jobs[action.job_id]
        places = {(node.node_id, index) for index in action.gpu_indices}
        if places & taken or len(places) < len(action.gpu_indices):
            yield f"GPUs of {node.node_id} are given twice"
        taken |= places
        if not set(action.gpu_indices) <= set(node.free_gpus):
            yield f"{job.job_id} is given GPUs of {node.node_id} that are not free"
        if len(action.gpu_indices) < job.resources.gpus_min:
            yield f"{job.job_id} needs {job.resources.gpus_min} GPUs and is given {len(action.gpu_indices)}"
        if node.state != NodeState.READY:
            yield f"{job.job_id} is given {node.node_id}, which is {node.state}"
        if node.image != (job.resources.base_image or ""):
            yield f"{job.job_id} wants image {job.resources.base_image} and is given {node.node_id} with {node.image}"
        if node.project_id != job.project_id:
            yield f"{job.job_id} of {job.project_id} is given a node of {node.project_id}"


def _affinity_breaches(snapshot: Snapshot, plan: Plan, jobs: dict[str, JobView]) -> Iterator[str]:
    there = {
        node.node_id: {job_id for run in snapshot.runs if run.node_id == node.node_id for job_id in run.job_ids}
        for node in snapshot.nodes
    }
    for action in plan.actions:
        if isinstance(action, Assign | Migrate) and action.job_id in jobs and action.node_id in there:
            there[action.node_id].add(action.job_id)
            job, others = jobs[action.job_id], there[action.node_id] - {action.job_id}
            for other in sorted(others & jobs.keys()):
                if job.affinity.forbids(jobs[other].affinity):
                    yield f"{job.job_id} is to be apart from {other} and is given {action.node_id}"
        if isinstance(action, Demote | Migrate | Preempt) and action.job_id in jobs and jobs[action.job_id].locked:
            yield f"{action.job_id} is to stay where it is and is given {action.kind}"


def _demote_breaches(snapshot: Snapshot, plan: Plan, jobs: dict[str, JobView]) -> Iterator[str]:
    runs = {run.run_id: run for run in snapshot.runs}
    for action in plan.actions:
        if not isinstance(action, Demote | Migrate | Preempt):
            continue
        run, job = runs.get(action.run_id), jobs.get(action.job_id)
        if run is None or job is None or not _runs(run, job):
            yield f"{action.run_id} of {action.job_id} is no running run of it"
        elif isinstance(action, Demote) and run.tier != Tier.SERVERLESS and run.purpose == RunPurpose.TRAIN:
            yield f"{action.run_id} of {action.job_id} is not serverless and is demoted"
        elif isinstance(action, Preempt) and run.tier == Tier.SERVERLESS:
            yield f"{action.run_id} of {action.job_id} is serverless and is preempted"
        elif isinstance(action, Migrate) and (len(run.job_ids) > 1 or run.purpose == RunPurpose.PROFILE):
            yield f"{action.run_id} of {action.job_id} is {run.purpose} of {len(run.job_ids)} jobs and is moved"
        elif isinstance(action, Migrate) and action.node_id == run.node_id:
            yield f"{action.run_id} of {action.job_id} is moved to where it is"


def _runs(run: RunView, job: JobView) -> bool:
    return run.state == RunState.RUNNING and job.state == JobState.RUNNING and job.job_id in run.job_ids


def _release_breaches(snapshot: Snapshot, plan: Plan, nodes: dict[str, NodeView]) -> Iterator[str]:
    occupied = {run.node_id for run in snapshot.runs}
    occupied |= {action.node_id for action in plan.actions if isinstance(action, Assign | Migrate)}
    released = [action.node_id for action in plan.actions if isinstance(action, Release)]
    yield from (f"{node_id} is released twice" for node_id, count in Counter(released).items() if count > 1)
    for node_id in released:
        node = nodes.get(node_id)
        if node_id in occupied or (node is not None and len(node.free_gpus) < node.gpu_count):
            yield f"{node_id} holds a run and is released"


def _merge_breaches(snapshot: Snapshot, plan: Plan, jobs: dict[str, JobView], config: PolicyConfig) -> Iterator[str]:
    merges = {merge.merge_id: merge for merge in snapshot.merges}
    merged = {job_id for merge in snapshot.merges for job_id in (merge.lead_id, merge.companion_id)}
    begun = {job_id for run in snapshot.runs for job_id in run.job_ids}
    for action in plan.actions:
        if isinstance(action, Split) and action.merge_id not in merges:
            yield f"{action.merge_id} is no open merge and is split"
        if not isinstance(action, Merge):
            continue
        both = [job for job_id in (action.job_id, action.companion_id) if (job := jobs.get(job_id)) is not None]
        yield from (f"{job.job_id} is merged already" for job in both if job.job_id in merged)
        if len(both) != 2 or (why := refusal(*both)) is not None:
            yield f"{action.job_id} and {action.companion_id} are merged: {why if len(both) == 2 else 'one is gone'}"
        if action.companion_id in begun or (action.mode == MergeMode.TOGETHER and action.job_id in begun):
            yield f"{action.job_id} and {action.companion_id} are merged {action.mode} when one has a place"
        if action.mode not in config.merge_modes:
            yield f"{action.job_id} and {action.companion_id} are merged {action.mode}, which is off"
        if len(both) == 2:
            yield from _mode_breaches(action, *both)


def _mode_breaches(action: Merge, lead: JobView, companion: JobView) -> Iterator[str]:
    together = action.mode == MergeMode.TOGETHER
    for job in (lead, companion) if together else (companion,):
        if has_progress(job):
            yield f"{job.job_id} has progress and is merged {action.mode}"
    if together and refusal(lead, companion) is None and (why := refusal_together(lead, companion)) is not None:
        yield f"{lead.job_id} and {companion.job_id} are merged {action.mode}: {why}"


def _profile_breaches(snapshot: Snapshot, plan: Plan, jobs: dict[str, JobView], config: PolicyConfig) -> Iterator[str]:
    profiles = [
        action for action in plan.actions if isinstance(action, Start | Assign) and action.purpose == RunPurpose.PROFILE
    ]
    live = sum(run.purpose == RunPurpose.PROFILE for run in snapshot.runs)
    if profiles and live + len(profiles) > config.rules.merge_profile_most:
        yield f"{live} + {len(profiles)} jobs are profiled at once; {config.rules.merge_profile_most} may be"
    merged = {job_id for merge in snapshot.merges for job_id in (merge.lead_id, merge.companion_id)}
    for action in profiles:
        job = jobs.get(action.job_id)
        if job is None:
            continue
        if not config.merging or job.recipe is None or not job.recipe.shares or job.job_id in merged:
            yield f"{job.job_id} cannot be merged and is profiled"
        elif job.recipe.pull or job.recipe.profile_tries or has_progress(job):
            yield f"{job.job_id} is profiled already, or was in vain, or has progress, and is profiled"


def _forgotten(plan: Plan, snapshot: Snapshot) -> Iterator[str]:
    told = {job_of(action) for action in plan.actions} | {
        action.companion_id for action in plan.actions if isinstance(action, Merge | Split)
    }
    told |= {waiting.job_id for waiting in plan.waiting if waiting.reason}
    for job in snapshot.jobs:
        if job.state in PLACEABLE_JOB_STATES and job.job_id not in told:
            yield f"{job.job_id} is {job.state} and is told nothing"
