"""Rule 7 of `allpass`: how many free nodes are worth their price, from what they would have saved lately."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from app.core.due import begins_ms
from app.core.job_prices import usual_micros
from app.core.model.node import NodeState, Tier
from app.core.model.plan import ActionKind
from app.core.model.snapshot import JobView, NodeView
from app.core.policies.plan_builder import PlanBuilder
from app.core.policy import PolicyState
from app.core.remaining import predicted_ms, remaining_ms

_SEEN, _REUSE = "seen_ms", "reuse/"  # names in the state
_LEAST = 1.0  # micro-dollars per hour: what is less is forgotten


@dataclass(frozen=True, slots=True)
class Flow:
    """What free nodes would have saved lately, in micro-dollars per hour, falling by half every `half_life_ms`."""

    micros_per_hour: float
    half_life_ms: int

    def lasts_ms(self, price_micros: int) -> int:
        """For how long from now it exceeds a price, if no more jobs come."""
        if self.micros_per_hour <= price_micros:
            return 0
        return int(self.half_life_ms * math.log2(self.micros_per_hour / price_micros))


def reuse_flows(desk: PlanBuilder, state: PolicyState) -> tuple[PolicyState, dict[str, Flow]]:
    """By project: every job that arrives adds what a free node of its project would have saved on it. Projects that
    want nothing kept for jobs to come have no flow, and so nothing is."""
    half_life_ms = desk.config.rules.reuse_half_life_ms
    seen_ms = state.get(_SEEN, -1.0)
    faded = 0.5 ** ((desk.now_ms - seen_ms) / half_life_ms) if seen_ms >= 0 else 0.0
    flows = {
        project: value * faded
        for name, value in state.values
        if name.startswith(_REUSE) and (project := name.removeprefix(_REUSE)) not in desk.board.no_ahead
    }
    hours = half_life_ms / math.log(2) / 3_600_000
    for job in desk.board.queued_after(int(seen_ms)):
        if job.resources.base_image is not None or job.project_id in desk.board.no_ahead:
            continue  # a free node helps the next job only when it runs that job's image
        flows[job.project_id] = flows.get(job.project_id, 0.0) + _reuse_saves(desk, job) / hours
    flows = {project: flow for project, flow in flows.items() if flow >= _LEAST}
    others = [(name, value) for name, value in state.values if not name.startswith(_REUSE) and name != _SEEN]
    kept = [*others, (_SEEN, float(desk.now_ms)), *((_REUSE + project, flow) for project, flow in flows.items())]
    return PolicyState(tuple(sorted(kept))), {project: Flow(flow, half_life_ms) for project, flow in flows.items()}


def _reuse_saves(desk: PlanBuilder, job: JobView) -> float:
    """Micro-dollars that a job saves by starting on a free node: the serverless premium, up to what a move costs."""
    serverless, serverful = desk.outlook.serverless.choose(job), desk.outlook.serverful.choose(job)
    if serverless is None or serverful is None or serverful.offer.tier == Tier.OWN or desk.is_patient(job):
        return 0.0
    if serverful.offer.spot_only:
        return 0.0  # such a node is not kept, and one that is rented on demand costs more
    dear, cheap = usual_micros(serverless.offer, job), usual_micros(serverful.offer, job)
    wait_ms = serverful.offer.startup_ms + desk.config.moves.save_ms
    is_known = predicted_ms(job, None, desk.now_ms) is not None
    premium = (dear - cheap) * (remaining_ms(job, None, desk.now_ms) if is_known else wait_ms)
    move = (dear - cheap) * wait_ms + cheap * desk.config.moves.load_ms
    return max(0.0, min(premium, move) + dear * begins_ms(serverless.offer)) / 3_600_000


def size_pool(desk: PlanBuilder, flows: Mapping[str, Flow]) -> None:
    """Rule 7: of a project's free nodes, ready ones before those that boot and cheap ones first, the k-th is used once
    k jobs have come; so it is worth its price while what free nodes save per hour is more than k times that.

    Projects share the fleet where it is limited: none rents ahead beyond its share, and none keeps more free while
    the fleet is full.
    """
    nothing = Flow(0.0, desk.config.rules.reuse_half_life_ms)
    share = _share(desk, flows)
    unneeded = [*desk.fleet.unneeded()[::-1], *desk.fleet.unneeded_coming()[::-1]]
    free = [node for node in unneeded if _is_kept(node)]
    for node in unneeded:
        if not _is_kept(node):
            _release_or_keep(desk, node, 1, nothing)
    left = Counter(node.project_id for node in free)
    in_use = {project_id: desk.board.nodes_of(project_id) - count for project_id, count in left.items()}
    kept: Counter[str] = Counter()
    for node in free:
        project_id = node.project_id
        kept[project_id] += 1
        crowds = desk.outlook.fleet_is_full() and in_use[project_id] + kept[project_id] > share
        _release_or_keep(desk, node, kept[project_id], nothing if crowds else flows.get(project_id, nothing))
    newest: dict[str, JobView] = {}
    for job in sorted(desk.arrived(), key=lambda job: (job.submitted_ms, job.job_id)):
        newest[job.project_id] = job
    for project_id, job in newest.items():
        if desk.fleet.nodes_of(project_id) < share:
            _rent_ahead(desk, job, kept[project_id], flows.get(project_id, nothing))


def _is_kept(node: NodeView) -> bool:
    """Whether a free node may wait for jobs to come. One with an image helps no job but those that name it; one of the
    team's own is there again at once, and other projects' jobs may need it; one that is bid for may be gone by then."""
    return not node.image and node.tier != Tier.OWN and not node.spot_only


def _share(desk: PlanBuilder, flows: Mapping[str, Flow]) -> int:
    """How many nodes each project may have before it rents ahead: an equal part of the limit, rounded up, among those
    whose jobs have come lately or that have nodes."""
    projects = desk.board.projects_with_nodes().union(flows)
    return math.ceil(desk.config.serverful_limit / max(1, len(projects)))


# Of the nodes that come only those that boot are given back: a create call under way is not crossed by an end.
def _release_or_keep(desk: PlanBuilder, node: NodeView, rank: int, flow: Flow) -> None:
    keep_ms = flow.lasts_ms(node.price_per_hour.micros * rank)
    if node.idle_since_ms is not None:
        keep_ms = min(keep_ms, node.idle_since_ms + desk.config.rules.warm_most_ms - desk.now_ms)
    if keep_ms > 0:
        desk.wake(desk.now_ms + keep_ms)
    elif desk.outlook.may(ActionKind.RELEASE) and (node.state == NodeState.BOOTING or node.idle_since_ms is not None):
        desk.release(node, _why_released(desk, node))


def _why_released(desk: PlanBuilder, node: NodeView) -> str:
    if node.project_id in desk.board.no_ahead:
        return "no job needs it, and its project has switched keeping machines for jobs to come off"
    return "no job needs it, and jobs that could use it come too seldom to keep it"


def _rent_ahead(desk: PlanBuilder, newest: JobView, free: int, flow: Flow) -> None:
    """For the jobs to come, in the name of the newest that came now."""
    choice = desk.outlook.serverful.choose(newest)
    if choice is None or choice.offer.tier == Tier.OWN or newest.resources.base_image is not None:
        return
    if choice.offer.spot_only:
        return
    worth = desk.config.rules.ahead_gain * choice.offer.price_per_hour.micros
    if flow.micros_per_hour > worth * (free + 1):
        desk.provision(newest, "jobs come so often that the next ones will use it", ahead=True)
