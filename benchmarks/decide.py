"""One decision of the default policy about many jobs, on a board that is built already.

    python -m benchmarks.decide [--rounds 9] [--jobs 100000] [--nodes 2000] [--burst 2000]

2,000 rented nodes are busy, as many jobs as may be are on serverless, and the rest wait. In every round a job ends, and
what `Policy.decide` takes is measured: it gives the node to the job that comes first and looks at everything else that
its rules look at. The value is the median in milliseconds. Beside it: the same with a reason in words for every job
that gets nothing, building the board from a snapshot, and one decision in a burst: so many jobs wait as nodes boot, or
are ready, and each is given one. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace

from app.core.board import Board
from app.core.model.job import JobState, Resources, StartRule
from app.core.model.money import Money
from app.core.model.node import NodeState, Tier
from app.core.model.offer import Offer
from app.core.model.plan import ActionKind, Assign
from app.core.model.run import RunState
from app.core.model.snapshot import JobView, NodeView, RunView, Snapshot
from app.core.policies import policy_named
from app.core.policy import PolicyConfig, PolicyState

GOAL_MS = 100.0
NOW_MS = 1_800_000_000_000
GIB = 1024**3
SERVERLESS = 50
OFFERS = tuple(
    Offer("cloud", tier.value, tier, "A100", 1, 80 * GIB, 8, 64 * GIB, Money.usd(price), startup_ms)
    for tier, price, startup_ms in (
        (Tier.SERVERLESS, "2.10", 4_000),
        (Tier.MARKETPLACE, "0.74", 36_000),
        (Tier.CONVENTIONAL, "1.29", 256_000),
    )
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=2_000)
    parser.add_argument("--burst", type=int, default=2_000)
    options = parser.parse_args()
    seen = crowded(options.jobs, options.nodes)
    config = PolicyConfig(frozenset(ActionKind), 300_000, SERVERLESS, options.nodes, 0, explains=False)
    began = time.perf_counter()
    board = Board.of(seen)
    built_ms = 1e3 * (time.perf_counter() - began)
    silent_ms = decisions_ms(board, config, options.rounds)
    told_ms = decisions_ms(board, replace(config, explains=True), 3)
    detail = {
        "jobs": options.jobs,
        "nodes": options.nodes,
        "with_reasons_ms": statistics.median(told_ms),
        "build_board_ms": built_ms,
        "worst_ms": max(silent_ms),
        "burst_booting_ms": burst_ms(options.burst, NodeState.BOOTING),
        "burst_ready_ms": burst_ms(options.burst, NodeState.READY),
    }
    value = statistics.median(silent_ms)
    print(json.dumps({"name": "decide", "value": value, "goal": GOAL_MS, "unit": "ms", "detail": detail}))


def decisions_ms(board: Board, config: PolicyConfig, rounds: int) -> list[float]:
    policy, state, times_ms = policy_named("allpass"), PolicyState(), []
    for number in range(rounds + 1):
        board.now_ms += config.tick_ms
        node_id = f"node_{number:06d}"
        end_run_on(board, node_id)
        began = time.perf_counter()
        plan, state = policy.decide(board, state, config)
        if number:
            times_ms.append(1e3 * (time.perf_counter() - began))
        assert [action.node_id for action in plan.actions if isinstance(action, Assign)] == [node_id]
        put_on(board, board.jobs[f"job_{number:06d}"], board.nodes[node_id])
    return times_ms


def burst_ms(count: int, state: NodeState) -> float:
    """One decision about as many waiting jobs as nodes that are ready or boot: the median of three."""
    jobs = tuple(replace(waiting_job(number), start=StartRule.WHEN_CHEAP) for number in range(count))
    ready_ms = NOW_MS - 1_000 if state == NodeState.READY else NOW_MS + 30_000
    nodes = tuple(
        replace(busy_node(number, Tier.MARKETPLACE), state=state, free_gpus=(0,), expected_ready_ms=ready_ms + number)
        for number in range(count)
    )
    config = PolicyConfig(frozenset(ActionKind), 300_000, 0, count, 0, explains=False)
    times_ms = []
    for _ in range(3):
        board = Board.of(Snapshot(NOW_MS, jobs, (), nodes, OFFERS))
        began = time.perf_counter()
        plan, _state = policy_named("allpass").decide(board, PolicyState(), config)
        times_ms.append(1e3 * (time.perf_counter() - began))
        assert len(plan.actions) == (count if state == NodeState.READY else 0), len(plan.actions)
    return statistics.median(times_ms)


def crowded(job_count: int, node_count: int) -> Snapshot:
    jobs, runs, nodes = [], [], []
    for number in range(job_count):
        tier = Tier.MARKETPLACE if number < node_count else Tier.SERVERLESS
        runs_now = number < node_count + SERVERLESS
        jobs.append(waiting_job(number))
        if runs_now:
            jobs[-1] = replace(jobs[-1], state=JobState.RUNNING)
            nodes.append(busy_node(number, tier))
            runs.append(
                RunView(f"run_{number:06d}", (jobs[-1].job_id,), nodes[-1].node_id, tier, RunState.RUNNING, 1, 0, 0)
            )
    return Snapshot(NOW_MS, tuple(jobs), tuple(runs), tuple(nodes), OFFERS)


def waiting_job(number: int) -> JobView:
    return JobView(
        job_id=f"job_{number:06d}",
        project_id="project",
        state=JobState.QUEUED,
        row_version=1,
        submitted_ms=NOW_MS - 60_000,
        deadline_ms=NOW_MS + 600_000 + 7_919 * number % 86_400_000,
        resources=Resources(),
        start=StartRule.AUTO,
        total_run_ms=NOW_MS if number % 2 else NOW_MS + 3_600_000,
    )


def busy_node(number: int, tier: Tier) -> NodeView:
    price = OFFERS[1 if tier == Tier.MARKETPLACE else 0].price_per_hour
    return NodeView(
        node_id=f"node_{number:06d}",
        project_id="project",
        provider="cloud",
        tier=tier,
        state=NodeState.READY,
        row_version=1,
        gpu_type="A100",
        gpu_count=1,
        gpu_memory_bytes=80 * GIB,
        cpus=8,
        memory_bytes=64 * GIB,
        free_gpus=(),
        price_per_hour=price,
        requested_ms=NOW_MS - 3_600_000,
        expected_ready_ms=NOW_MS - 3_500_000,
    )


def end_run_on(board: Board, node_id: str) -> None:
    for run in board.runs_on(node_id):
        board.drop_run(run.run_id)
        board.put_job(replace(board.jobs[run.job_ids[0]], state=JobState.PAUSED))
    board.put_node(replace(board.nodes[node_id], free_gpus=(0,), idle_since_ms=board.now_ms))


def put_on(board: Board, job: JobView, node: NodeView) -> None:
    """As it was, for the next round: the same job is back on its node."""
    board.put_node(replace(node, free_gpus=(), idle_since_ms=None))
    board.put_job(replace(job, state=JobState.RUNNING))
    run_id = "run_" + job.job_id.removeprefix("job_")
    board.put_run(RunView(run_id, (job.job_id,), node.node_id, node.tier, RunState.RUNNING, 1, 0, 0))


if __name__ == "__main__":
    main()
