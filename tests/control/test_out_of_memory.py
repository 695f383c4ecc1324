"""A process that runs out of memory: tried once more on a larger GPU, visibly, and then no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core.model.node import Tier
from app.core.model.pool import Pool
from app.db import tables as t
from app.db.pools.hosts import HostRow, add_host
from app.db.pools.machines import HostMachine, add_machine
from app.db.pools.pools import PoolRow, add_pool
from tests.control.fake_provider import GIB, make_offer
from tests.control.world import World

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.39 GiB"
SMALL_GIB, LARGE_GIB = 40, 80


def offers(*, larger: bool = True) -> list[object]:
    small = make_offer("cloud", "small", Tier.SERVERLESS, "2.10", startup_ms=2_000)
    market = make_offer("cloud", "market-small", Tier.MARKETPLACE, "0.72", startup_ms=30_000)
    found = [replace(one, gpu_memory_bytes=SMALL_GIB * GIB) for one in (small, market)]
    if larger:
        more = make_offer("cloud", "large", Tier.MARKETPLACE, "1.90", startup_ms=30_000)
        found.append(replace(more, gpu_type="H100", gpu_memory_bytes=LARGE_GIB * GIB))
    return list(found)


async def train(world: World, node_id: str, needs_gib: int) -> None:
    """What a machine with so much memory does to a script that needs `needs_gib`."""
    node = await world.node(node_id)
    await world.report(node_id, "running")
    if node.gpu_memory_bytes < needs_gib * GIB:
        await world.report(node_id, "exited", exit_code=1, last_lines=f"Traceback ...\n{OOM}\n")
    else:
        await world.report(node_id, "exited", exit_code=0)


async def started(world: World, job_id: str) -> str:
    """Decide and boot until the job holds a node whose agent is there."""
    for _ in range(4):
        await world.decide()
        await world.work()
        if (await world.job(job_id)).state == "starting":
            node_id = await world.node_of(job_id)
            if (await world.node(node_id)).state != "ready":
                await world.boot(node_id)
            return node_id
        newest = await world.newest_node()
        if newest.state == "booting":
            world.clock.advance(s=30)
            await world.boot(newest.id)
    raise AssertionError(f"it did not start: {(await world.job(job_id)).wait_reason}")


async def test_the_second_try_is_on_a_gpu_with_more_and_succeeds(world: World) -> None:
    """The end is recognised, the job asks for more than it had, and the larger GPU, which was never needed before, is
    rented; the story is in its events, and no fault is counted."""
    world.cloud.on_offer = offers()  # type: ignore[assignment]  # the seam
    job_id = await world.submit()
    first = await started(world, job_id)
    await train(world, first, needs_gib=60)
    job = await world.job(job_id)
    assert (job.state, job.faults, job.memory_retries) == ("waiting", 0, 1)
    assert job.resources["gpu_memory_bytes_min"] == SMALL_GIB * GIB + 1
    second = await started(world, job_id)
    node = await world.node(second)
    assert (node.gpu_type, node.gpu_memory_bytes) == ("H100", LARGE_GIB * GIB)
    await train(world, second, needs_gib=60)
    assert (await world.job(job_id)).state == "succeeded"
    (told,) = [row for row in await world.rows(t.job_events) if row.kind == "memory_retry"]
    assert told.message == (
        "ran out of GPU memory on A100 with 40 GiB: is tried once more where there is more, such as cloud H100"
    )
    await world.check_invariants()


async def test_the_second_end_is_the_last(world: World) -> None:
    """Where the larger GPU is too small as well, the job has failed and says what would help."""
    world.cloud.on_offer = offers()  # type: ignore[assignment]  # the seam
    job_id = await world.submit()
    for _ in range(2):
        await train(world, await started(world, job_id), needs_gib=100)
    job = await world.job(job_id)
    assert (job.state, job.end_reason) == ("failed", "out_of_memory")
    assert job.end_message.startswith("ran out of GPU memory on H100 with 80 GiB, again")
    assert "gradient checkpointing" in job.end_message
    await world.check_invariants()


@pytest.mark.parametrize(("larger", "gpu_type"), [(False, None), (True, "A100")])
async def test_no_second_try_where_nothing_larger_will_come(world: World, larger: bool, gpu_type: str | None) -> None:
    """Nothing larger is offered, or not of the type that the job insists on: it fails at once, not by waiting."""
    world.cloud.on_offer = offers(larger=larger)  # type: ignore[assignment]  # the seam
    job_id = await world.submit()
    job = await world.job(job_id)
    await world.set_job(job_id, resources=job.resources | {"gpu_type": gpu_type})
    await train(world, await started(world, job_id), needs_gib=60)
    job = await world.job(job_id)
    assert (job.state, job.end_reason, job.memory_retries) == ("failed", "out_of_memory", 0)


async def test_a_large_enough_node_of_the_project_counts(world: World) -> None:
    """What is rented already need not be offered any more."""
    world.cloud.on_offer = offers()  # type: ignore[assignment]  # the seam
    other = await world.submit()
    resources = (await world.job(other)).resources
    await world.set_job(other, resources=resources | {"gpu_memory_bytes_min": 60 * GIB}, start="when-cheap")
    large = await started(world, other)
    await world.report(large, "running")
    world.cloud.on_offer = offers(larger=False)  # type: ignore[assignment]  # the seam
    job_id = await world.submit()
    await train(world, await started(world, job_id), needs_gib=60)
    assert (await world.job(job_id)).state == "waiting"


async def on_shared_host(world: World, node_id: str, *, busy: list[int], heard_s: int = 5) -> None:
    """As if the node were GPU 1 of somebody's workstation, on whose GPUs `busy` others compute."""
    now_ms = world.clock.now_ms()
    gpus = [{"index": each, "type": "A100", "memory_bytes": SMALL_GIB * GIB, "busy": each in busy} for each in (0, 1)]
    host = HostRow("host_1", "lab", "box", "", {"gpus": gpus}, {}, 0, now_ms - heard_s * 1000, None, None, None, 1)
    async with world.database.transaction() as connection:
        await add_pool(connection, PoolRow(Pool("lab"), "", {}, 0))
        await add_host(connection, host, nonce_sha256=b"")
        await add_machine(connection, HostMachine("mach_1", "host_1", node_id, [1], 0, 0))


async def test_memory_that_a_colleague_took_is_not_the_jobs_to_answer_for(world: World) -> None:
    """It goes on elsewhere as it was, as after any fault of a machine, and nothing is learned of what it takes."""
    world.cloud.on_offer = offers()  # type: ignore[assignment]  # the seam
    job_id = await world.submit()
    node_id = await started(world, job_id)
    await on_shared_host(world, node_id, busy=[1])
    asked = (await world.job(job_id)).resources
    await train(world, node_id, needs_gib=60)
    job = await world.job(job_id)
    assert (job.state, job.faults, job.memory_retries, job.resources) == ("waiting", 1, 0, asked)
    (told,) = [row for row in await world.rows(t.job_events) if row.kind == "process_exited"]
    assert told.message.startswith("ran out of GPU memory beside processes of others on its GPU (fault 1 of ")
    assert all(row.facts is None for row in await world.rows(t.runs))
    await world.check_invariants()


@pytest.mark.parametrize(("busy", "heard_s"), [([0], 5), ([], 5), ([1], 600)])
async def test_others_on_another_gpu_or_long_ago_explain_nothing(world: World, busy: list[int], heard_s: int) -> None:
    world.cloud.on_offer = offers()  # type: ignore[assignment]  # the seam
    job_id = await world.submit()
    node_id = await started(world, job_id)
    await on_shared_host(world, node_id, busy=busy, heard_s=heard_s)
    await train(world, node_id, needs_gib=60)
    job = await world.job(job_id)
    assert (job.state, job.faults, job.memory_retries) == ("waiting", 0, 1)


async def test_main_memory_is_another_matter(world: World) -> None:
    """Exit code 137 asks for a machine with more main memory, not for a larger GPU."""
    world.cloud.on_offer = offers()  # type: ignore[assignment]  # the seam
    roomy = make_offer("cloud", "roomy", Tier.MARKETPLACE, "3.00", startup_ms=30_000)
    world.cloud.on_offer.append(replace(roomy, memory_bytes=roomy.memory_bytes * 4))
    job_id = await world.submit()
    node_id = await started(world, job_id)
    await world.report(node_id, "running")
    await world.report(node_id, "exited", exit_code=137, last_lines="Killed\n")
    job = await world.job(job_id)
    assert (job.state, job.resources["gpu_memory_bytes_min"]) == ("waiting", 0)
    assert job.resources["memory_bytes_min"] == (await world.node(node_id)).memory_bytes + 1


async def test_a_start_names_the_plan_of_a_stated_job(world: World) -> None:
    """Beside why it starts there, what it needs there; a job that states nothing is told as ever."""
    stated = await world.submit(plan="llama-3-8b by qlora needs at least 16.4 GB")
    silent = await world.submit()
    await world.decide()
    told = {row.job_id: row.message for row in await world.rows(t.job_events) if row.kind == "starting"}
    assert told[stated] == told[silent] + "; llama-3-8b by qlora needs at least 16.4 GB"
