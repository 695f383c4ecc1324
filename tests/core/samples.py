"""Core values for tests: short makers with plain defaults, and Hypothesis strategies for whole snapshots."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from app.core.gpu_speeds import UNKNOWN_SPEEDS, GpuSpeeds
from app.core.model.job import NO_AFFINITY, Affinity, Caps, JobKind, JobState, Resources, StartRule
from app.core.model.money import Money
from app.core.model.node import GONE_NODE_STATES, NodeState, Tier
from app.core.model.offer import Offer
from app.core.model.plan import STOP_AND_GO, ActionKind
from app.core.model.run import RunState
from app.core.model.snapshot import JobView, NodeView, QueueMeans, RunView, Snapshot
from app.core.policy import AllpassRules, PolicyConfig

GIB = 1024**3
NOW_MS = 1_000_000
# Of the policy `allpass`, so that examples worked out by hand stay right when its defaults are tuned.
RULES = AllpassRules(
    move_gain=1.25,
    move_pause_share=1.0,
    least_run_ms=60_000,
    patience_ms=60_000,
    patience_share=0.1,
    patience_run_share=0.5,
    patience_extra_share=0.02,
    chase_drop=0.1,
    chase_pause_share=0.005,
    park_slack_ms=600_000,
    reuse_half_life_ms=60_000,
    ahead_gain=1.0,
    warm_most_ms=600_000,
)
CONFIG = PolicyConfig(
    STOP_AND_GO, serverless_budget_ms=300_000, serverless_limit=5, serverful_limit=4, idle_release_ms=0, rules=RULES
)


def job(job_id: str = "job_a", state: JobState = JobState.QUEUED, **changes: Any) -> JobView:
    values: dict[str, Any] = {
        "project_id": "proj_a",
        "row_version": 1,
        "submitted_ms": 0,
        "deadline_ms": 10_000_000,
        "resources": Resources(),
    }
    return JobView(job_id=job_id, state=state, **(values | changes))


def run(run_id: str, job_id: str, node_id: str, state: RunState = RunState.RUNNING, **changes: Any) -> RunView:
    values: dict[str, Any] = {"tier": Tier.SERVERLESS, "row_version": 1, "created_ms": 0, "running_since_ms": 0}
    return RunView(run_id=run_id, job_ids=(job_id,), node_id=node_id, state=state, **(values | changes))


def node(node_id: str, tier: Tier = Tier.MARKETPLACE, state: NodeState = NodeState.READY, **changes: Any) -> NodeView:
    count = changes.get("gpu_count", 1)
    values: dict[str, Any] = {
        "project_id": "proj_a",
        "provider": "local",
        "row_version": 1,
        "gpu_type": "A100",
        "gpu_count": 1,
        "gpu_memory_bytes": 40 * GIB,
        "cpus": 8 * count,
        "memory_bytes": 64 * GIB * count,
        "free_gpus": tuple(range(count)),
        "price_per_hour": Money.usd("0.70"),
        "requested_ms": 0,
        "expected_ready_ms": NOW_MS + 20_000,
        "idle_since_ms": None,
    }
    return NodeView(node_id=node_id, tier=tier, state=state, **(values | changes))


def offer(offer_id: str, tier: Tier = Tier.SERVERLESS, price: str = "2.10", **changes: Any) -> Offer:
    values: dict[str, Any] = {
        "provider": "local",
        "gpu_type": "A100",
        "gpu_count": 1,
        "gpu_memory_bytes": 40 * GIB,
        "cpus": 8,
        "memory_bytes": 64 * GIB,
        "startup_ms": 3_000,
    }
    return Offer(offer_id=offer_id, tier=tier, price_per_hour=Money.usd(price), **(values | changes))


SERVERLESS = offer("fn", Tier.SERVERLESS, "2.10")
MARKET = offer("ask", Tier.MARKETPLACE, "0.74", startup_ms=36_000)
CLOUD = offer("vm", Tier.CONVENTIONAL, "1.29", startup_ms=180_000)
OFFERS = (SERVERLESS, MARKET, CLOUD)


def on_serverless(job_view: JobView, ran_ms: int, **run_changes: Any) -> tuple[RunView, NodeView]:
    """A run of this job on a serverless node of its own, whose code has run for `ran_ms`."""
    suffix = job_view.job_id.removeprefix("job_")
    held = node(
        f"node_{suffix}",
        Tier.SERVERLESS,
        free_gpus=(),
        price_per_hour=Money.usd("2.10"),
        project_id=job_view.project_id,
    )
    return run(
        f"run_{suffix}", job_view.job_id, held.node_id, **({"running_since_ms": NOW_MS - ran_ms} | run_changes)
    ), held


def snapshot(**parts: Any) -> Snapshot:
    """At NOW_MS, with everything sorted by id, as an observer promises."""
    ids = {"jobs": "job_id", "runs": "run_id", "nodes": "node_id", "offers": "key"}
    ordered: dict[str, Any] = {
        name: tuple(sorted(parts[name], key=lambda row: getattr(row, ids[name]))) for name in ids if name in parts
    }
    others: dict[str, Any] = {name: parts[name] for name in ("no_ahead", "queue_means") if name in parts}
    return Snapshot(now_ms=parts.get("now_ms", NOW_MS), **others, **ordered)


ALL_ACTIONS = frozenset(ActionKind)
needs = st.builds(
    Resources,
    gpus_min=st.sampled_from([1, 1, 1, 2, 4]),
    gpu_type=st.sampled_from([None, None, "A100", "h100"]),
    gpu_memory_bytes_min=st.sampled_from([0, 24 * GIB, 80 * GIB]),
    cpus_min=st.sampled_from([1, 1, 4]),
    memory_bytes_min=st.sampled_from([0, 16 * GIB]),
    base_image=st.sampled_from([None, None, None, "own:1"]),
)
images = st.sampled_from(["", "", "", "own:1", "own:2"])
projects = st.sampled_from(["proj_a", "proj_b"])
prices = st.integers(1, 5_000_000).map(Money)
_means_s = st.floats(1e-3, 1e9)
queue_means = st.builds(QueueMeans, projects, _means_s, _means_s)
machines: dict[str, Any] = {
    "gpu_type": st.sampled_from(["A100", "H100"]),
    "gpu_count": st.sampled_from([1, 1, 2, 4]),
    "gpu_memory_bytes": st.sampled_from([24 * GIB, 40 * GIB, 80 * GIB]),
    "cpus": st.sampled_from([2, 8, 32]),
    "memory_bytes": st.sampled_from([8 * GIB, 64 * GIB]),
    "price_per_hour": prices,
    "mean_life_ms": st.sampled_from([0, 0, 0, 600_000, 7_200_000]),
}
offer_lists = st.lists(
    st.builds(
        Offer,
        provider=st.sampled_from(["x", "y"]),
        offer_id=st.sampled_from(["1", "2", "3"]),
        tier=st.sampled_from(list(Tier)),
        startup_ms=st.integers(0, 60_000),
        **machines,
    ),
    max_size=6,
    unique_by=lambda drawn: drawn.key,
)
configs = st.builds(
    PolicyConfig,
    capabilities=st.just(STOP_AND_GO) | st.just(ALL_ACTIONS) | st.frozensets(st.sampled_from(ActionKind)),
    serverless_budget_ms=st.sampled_from([0, 60_000, 300_000]),
    serverless_limit=st.integers(0, 4),
    serverful_limit=st.integers(0, 6),
    idle_release_ms=st.sampled_from([0, 30_000]),
)


SPEEDS = (
    GpuSpeeds("a100", (("h100", 450),)),
    GpuSpeeds("h100", (("a100", 5_000),), trains_there=True),
    GpuSpeeds("a100", trains_there=True, linked=True),
)
labels = st.frozensets(st.sampled_from(["app=x", "app=y"]), max_size=2)
affinities = st.just(NO_AFFINITY) | st.builds(Affinity, own=labels, beside=labels, apart=labels)


# Made once: a strategy that is made for each draw is checked anew each time, which takes longer than what is tested.
_job_fields: dict[str, st.SearchStrategy[Any]] = {
    "project_id": projects,
    "row_version": st.integers(1, 9),
    "submitted_ms": st.sampled_from([0, 1, 2, NOW_MS - 70_000, NOW_MS - 1, NOW_MS]),
    "deadline_ms": st.sampled_from([0, NOW_MS, NOW_MS + 200_000, 2_000_000, NOW_MS + 36_000_000]),
    "kind": st.sampled_from(JobKind),
    "total_run_ms": st.sampled_from([None, 1_000, 100_000, 3_600_000, 72_000_000]),
    "done_ms": st.sampled_from([0, 0, 50_000]),
    "resources": needs,
    "start": st.sampled_from([StartRule.NOW, StartRule.AUTO, StartRule.AUTO, StartRule.WHEN_CHEAP]),
    "caps": st.sampled_from([Caps(), Caps(max_cost=Money(5)), Caps(max_cost=Money(50))]),
    "spent": st.integers(0, 20).map(Money),
    "serverless_used_ms": st.sampled_from([0, 0, 59_000, 400_000]),
    "not_before_ms": st.sampled_from([0, 0, NOW_MS + 5_000]),
    "affinity": affinities,
    "locked": st.sampled_from([False, False, False, True]),
    "saves": st.sampled_from([True, True, True, False]),
    "never_saves": st.sampled_from([False, False, True]),
    "deadline_given": st.sampled_from([True, True, False]),
    "speeds": st.sampled_from([None, None, UNKNOWN_SPEEDS, *SPEEDS]),
    "avoided_offers": st.frozensets(st.sampled_from(["x/1", "x/2", "y/1", "y/2"]), max_size=3),
}
_tiers = st.sampled_from(list(Tier))
_node_states = st.sampled_from(sorted(set(NodeState) - GONE_NODE_STATES))
_unplaced_states = st.sampled_from(
    [JobState.QUEUED, JobState.WAITING, JobState.QUEUED, JobState.WAITING, JobState.PAUSED]
)
_placed_states = st.sampled_from([JobState.STARTING, JobState.RUNNING, JobState.RUNNING, JobState.CHECKPOINTING])
_orders = {count: st.permutations(range(count)) for count in (1, 2, 4)}


def _drawn_job(draw: st.DrawFn, job_id: str, state: JobState) -> JobView:
    return job(job_id, state, **{name: draw(strategy) for name, strategy in _job_fields.items()})


@st.composite
def job_views(draw: st.DrawFn, job_id: str, state: JobState) -> JobView:
    return _drawn_job(draw, job_id, state)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Any consistent snapshot: nodes in every state that is not gone, some with runs of some jobs on them."""
    nodes, runs, jobs = [], [], []
    for index in range(draw(st.integers(0, 5))):
        drawn = {name: draw(strategy) for name, strategy in machines.items()}
        state = draw(_node_states)
        placed: dict[str, Any] = {"project_id": draw(projects), "image": draw(images)}
        view = node(f"node_{index}", draw(_tiers), state, **placed, **drawn)
        busy = draw(st.integers(0, view.gpu_count)) if state in (NodeState.READY, NodeState.UNREACHABLE) else 0
        if busy:
            owner = _holder(draw, f"job_r{index}", busy, view)
            jobs.append(owner)
            runs.append(_run_of(draw, owner, view))
        free = tuple(draw(_orders[view.gpu_count])[busy:])
        idle = NOW_MS - draw(st.integers(0, 60_000)) if state is NodeState.READY and not busy else None
        nodes.append(replace(view, free_gpus=tuple(sorted(free)), idle_since_ms=idle))
    for index in range(draw(st.integers(0, 8))):
        jobs.append(_drawn_job(draw, f"job_{index}", draw(_unplaced_states)))
    means = tuple(draw(st.lists(queue_means, max_size=2, unique_by=lambda one: one.project_id)))
    known = tuple(sorted(means, key=lambda one: one.project_id))
    return snapshot(jobs=jobs, runs=runs, nodes=nodes, offers=draw(offer_lists), queue_means=known)


def _holder(draw: st.DrawFn, job_id: str, gpus: int, on: NodeView) -> JobView:
    held = Resources(gpus_min=gpus, gpus_max=gpus, base_image=on.image or None)
    return replace(_drawn_job(draw, job_id, draw(_placed_states)), project_id=on.project_id, resources=held)


def _run_of(draw: st.DrawFn, owner: JobView, on: NodeView) -> RunView:
    states = {JobState.STARTING: RunState.STARTING, JobState.RUNNING: RunState.RUNNING}
    state = states.get(owner.state, RunState.STOPPING)
    since = None if state is RunState.STARTING else NOW_MS - draw(st.integers(0, 400_000))
    name = f"run_{owner.job_id.removeprefix('job_')}"
    return run(name, owner.job_id, on.node_id, state, tier=on.tier, running_since_ms=since)
