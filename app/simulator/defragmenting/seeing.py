"""A played pool as a defragmentation sees a live one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from app.core.defragmentation import HeldGpus, MoveHabits, NodeFacts, SeenFleet
from app.core.model.job import JobState, Resources
from app.core.model.money import ZERO
from app.core.model.node import BillingRule, BillingStart, NodeState, Tier
from app.core.model.pool import JOINED, HostGpu, OwnHost, Pool
from app.core.model.run import RunState
from app.core.model.snapshot import JobView, NodeView, RunView, Snapshot
from app.core.pools import shared_host
from app.simulator.defragmenting.hosts import PoolHosts
from app.simulator.defragmenting.jobs import HOST_GPUS, PoolJob

KIND, _POOL, _PROJECT = "A100", Pool("lab"), "proj_a"
_GIB = 1024**3
_GPU_BYTES, _CPUS_PER_GPU, _BYTES_PER_GPU = 80 * _GIB, 16, 128 * _GIB
_GPUS = tuple(HostGpu(index, KIND, _GPU_BYTES) for index in range(HOST_GPUS))
_RULE = BillingRule(1_000, BillingStart.READY)
_DAY_MS = 86_400_000
SAVES_AFTER_MS = 600_000  # that a job has run: its first checkpoint


@dataclass(slots=True)
class RunningJob:
    """`done_ms`: what it had done when it came to where it is, at `since_ms`. `target`: the host that it moves to."""

    job: PoolJob
    hosts: tuple[str, ...]
    since_ms: int
    ends_ms: int
    done_ms: int = 0
    target: str | None = None
    turn: int = 0


def place_of(host: str) -> str:
    """As offers name it."""
    return shared_host(host, KIND)


def host_of(place: str) -> str:
    return place.partition("/")[0]


def see(
    hosts: PoolHosts,
    running: Mapping[str, RunningJob],
    waiting: Iterable[PoolJob],
    kept_hosts: Mapping[str, str],
    habits: MoveHabits,
    now_ms: int,
) -> SeenFleet:
    """`waiting`: those that somebody could make room for; `kept_hosts`: of one of them, by place."""
    parts = [part for name in sorted(running) for part in _parts(running[name])]
    nodes = tuple(_node(node_id, gpus) for node_id, _, gpus, _, _ in parts)
    runs = tuple(
        RunView(f"run_{node_id}", (one.job.job_id,), node_id, Tier.OWN, state, 1, 0, one.since_ms)
        for node_id, _, _, state, one in parts
    )
    jobs = [_running(running[name], now_ms) for name in sorted(running)] + [_job(job) for job in waiting]
    return SeenFleet(
        snapshot=Snapshot(now_ms, tuple(sorted(jobs, key=lambda one: one.job_id)), runs, nodes),
        habits=habits,
        pools=(_POOL,),
        hosts=tuple(_host(name, hosts.free[name]) for name in hosts.names),
        held={f"run_{node_id}": HeldGpus(gpus) for node_id, _, gpus, _, _ in parts},
        facts={node_id: NodeFacts(place_of(host), _RULE) for node_id, host, _, _, _ in parts},
        kept_hosts=kept_hosts,
        domains=hosts.domains,
    )


def _parts(one: RunningJob) -> Iterator[tuple[str, str, int, RunState, RunningJob]]:
    """The machines of a job: id, host, GPUs, and what its run there does."""
    for number, host in enumerate(one.hosts):
        yield f"{one.job.job_id}.{number}", host, one.job.part_gpus, RunState.RUNNING, one
    if one.target is not None:
        yield f"{one.job.job_id}.next", one.target, one.job.part_gpus, RunState.STANDBY, one


def _running(one: RunningJob, now_ms: int) -> JobView:
    has_saved = one.done_ms + now_ms - one.since_ms >= SAVES_AFTER_MS
    return _job(one.job, JobState.RUNNING, done_ms=one.done_ms, checkpoint_step=1 if has_saved else None)


def _job(
    job: PoolJob, state: JobState = JobState.QUEUED, done_ms: int = 0, checkpoint_step: int | None = None
) -> JobView:
    return JobView(
        job_id=job.job_id,
        project_id=_PROJECT,
        state=state,
        row_version=1,
        submitted_ms=job.submit_ms,
        deadline_ms=job.submit_ms + _DAY_MS,
        resources=Resources(job.part_gpus, job.part_gpus, nodes=job.parts),
        checkpoint_step=checkpoint_step,
        locked=job.locked,
        done_ms=done_ms,
    )


def _node(node_id: str, gpus: int) -> NodeView:
    return NodeView(
        node_id=node_id,
        project_id=_PROJECT,
        provider=JOINED,
        tier=Tier.OWN,
        state=NodeState.READY,
        row_version=1,
        gpu_type=KIND,
        gpu_count=gpus,
        gpu_memory_bytes=_GPU_BYTES,
        cpus=_CPUS_PER_GPU * gpus,
        memory_bytes=_BYTES_PER_GPU * gpus,
        free_gpus=(),
        price_per_hour=ZERO,
        requested_ms=0,
        expected_ready_ms=0,
        region=_POOL.name,
    )


def _host(name: str, free: int) -> OwnHost:
    taken = tuple(range(HOST_GPUS - free))
    return OwnHost(name, _POOL.name, HOST_GPUS * _CPUS_PER_GPU, HOST_GPUS * _BYTES_PER_GPU, _GPUS, taken)
