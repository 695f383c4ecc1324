"""Jobs whose own code fails and that are begun again as often as their owner says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.core.model.node import Tier
from app.core.model.run import RunEnd
from app.db import tables as t
from tests.control.fake_provider import make_offer
from tests.control.test_out_of_memory import OOM, started
from tests.control.world import World


async def fail(world: World, job_id: str, step: int = 0, **how: Any) -> None:
    """Its next run comes to this step, and fails."""
    world.clock.advance(s=300)  # whatever it waits for is over
    node_id = await started(world, job_id)
    kept = (await world.job(job_id)).checkpoint_step or 0
    await world.report(node_id, "running", step=kept)
    await world.report(node_id, "exited", step=step, **{"exit_code": 1, "last_lines": "ValueError: bad row\n", **how})


async def told(world: World, kind: str) -> list[str]:
    return [row.message for row in await world.rows(t.job_events) if row.kind == kind]


async def test_a_script_that_fails_twice_and_then_passes(world: World) -> None:
    """It is begun again each time, says so, and succeeds; no fault is counted."""
    job_id = await world.submit(retries=2)
    await fail(world, job_id, step=10)
    job = await world.job(job_id)
    again = "is begun again from its beginning, as it has no checkpoint, at once (retry 1 of 2)"
    assert (job.state, job.retried, job.faults) == ("waiting", 1, 0)
    assert job.wait_reason is None or again in job.wait_reason
    await fail(world, job_id, step=20)
    world.clock.advance(s=300)
    node_id = await started(world, job_id)
    await world.report(node_id, "running")
    await world.report(node_id, "exited", step=30, exit_code=0)
    job = await world.job(job_id)
    assert (job.state, job.retried, job.faults) == ("succeeded", 2, 0)
    first, second = await told(world, "retry")
    assert first == f"failed: exit code 1: ValueError: bad row; {again}"
    assert second.endswith("in 10 s (retry 2 of 2)")
    await world.check_invariants()


async def test_a_script_that_always_fails(world: World) -> None:
    """When its retries are used up it has failed, with its own last words and how often it was tried."""
    job_id = await world.submit(retries=2)
    for step in (5, 7, 9):
        await fail(world, job_id, step)
    job = await world.job(job_id)
    assert (job.state, job.end_reason, job.retried) == ("failed", "user_code_failed", 2)
    assert job.end_message == "exit code 1: ValueError: bad row; it is not begun again (2 of 2 retries used)"
    await world.check_invariants()


async def test_a_script_that_never_says_a_step_has_all_its_tries(world: World) -> None:
    """Nobody knows how far it came, so the number alone decides."""
    job_id = await world.submit(retries=3)
    for _ in range(4):
        await fail(world, job_id)
    assert (await world.job(job_id)).retried == 3
    assert (await world.job(job_id)).state == "failed"


async def test_two_failures_at_one_step_are_enough(world: World) -> None:
    """A row that no try gets past is told after two, though ten were allowed."""
    job_id = await world.submit(retries=10)
    for _ in range(2):
        await fail(world, job_id, step=42)
    job = await world.job(job_id)
    assert (job.state, job.retried) == ("failed", 1)
    assert "the second time at step 42" in job.end_message
    await world.check_invariants()


async def test_it_waits_before_a_second_try_and_says_so(world: World) -> None:
    """The first is at once, while its machine is there; the next is not, and its reason is no failed start."""
    job_id = await world.submit(retries=3)
    await fail(world, job_id, step=1)
    assert (await world.job(job_id)).not_before_ms <= world.clock.now_ms()
    await fail(world, job_id, step=2)
    await world.decide()
    assert (await world.job(job_id)).wait_reason == "its last run failed: tries again in 10 s"


async def test_without_a_word_of_its_owner_nothing_is_tried_again(world: World) -> None:
    """As ever: a failure of the code is the end."""
    job_id = await world.submit()
    await fail(world, job_id, step=10)
    job = await world.job(job_id)
    assert (job.state, job.end_message) == ("failed", "exit code 1: ValueError: bad row")


async def test_what_machines_do_is_not_counted(world: World) -> None:
    """A process that is killed from outside uses the budget of faults, not the retries."""
    job_id = await world.submit(retries=1)
    await fail(world, job_id, step=5, exit_code=None, signal=9)
    job = await world.job(job_id)
    assert (job.state, job.retried, job.faults) == ("waiting", 0, 1)


async def test_a_limit_on_money_comes_before_retries(world: World) -> None:
    """A job that has cost all it may is paused where it would be begun again, not started once more."""
    job_id = await world.submit(retries=5, max_cost_micros=1_000)
    await fail(world, job_id, step=5)
    await world.set_job(job_id, spent_micros=1_000)
    await world.meter()
    job = await world.job(job_id)
    assert (job.state, job.pause_reason) == ("paused", "cost_cap")
    await world.decide()
    assert len(await world.rows(t.runs)) == 1
    await world.check_invariants()


async def test_a_job_whose_time_is_up_has_failed(world: World) -> None:
    """There is no time left in which it could be tried again: it is told as what it is, a failure."""
    job_id = await world.submit(retries=5, max_duration_ms=1_000)
    node_id = await started(world, job_id)
    await world.report(node_id, "running")
    world.clock.advance(s=2)
    await world.report(node_id, "exited", step=5, exit_code=1, last_lines="ValueError: bad row\n")
    job = await world.job(job_id)
    assert (job.state, job.end_message) == ("failed", "exit code 1: ValueError: bad row")


async def out_of_memory(world: World, job_id: str, step: int) -> None:
    await fail(world, job_id, step, last_lines=f"Traceback ...\n{OOM}\n")


async def test_want_of_memory_is_one_of_its_failures(world: World) -> None:
    """Tried where there is more while that is offered, and where it is not, on what there is: each counts."""
    small = make_offer("cloud", "small", Tier.SERVERLESS, "2.10", startup_ms=2_000)
    more = make_offer("cloud", "large", Tier.MARKETPLACE, "1.90", startup_ms=30_000)
    world.cloud.on_offer = [small, replace(more, gpu_type="H100", gpu_memory_bytes=80 * 1024**3)]
    job_id = await world.submit(retries=2)
    await out_of_memory(world, job_id, 5)
    assert (await world.job(job_id)).retried == 1
    await out_of_memory(world, job_id, 6)
    job = await world.job(job_id)
    assert (job.state, job.retried) == ("waiting", 2)
    await out_of_memory(world, job_id, 7)
    job = await world.job(job_id)
    assert (job.state, job.end_reason) == ("failed", "out_of_memory")
    assert job.end_message.endswith("it is not begun again (2 of 2 retries used)")
    await world.check_invariants()


@pytest.mark.parametrize("retries", [0, None])
async def test_zero_is_never_and_nothing_is_the_default(world: World, retries: int | None) -> None:
    """After running out of memory a job is tried once where there is more, unless its owner says never."""
    small = make_offer("cloud", "small", Tier.SERVERLESS, "2.10", startup_ms=2_000)
    more = make_offer("cloud", "large", Tier.MARKETPLACE, "1.90", startup_ms=30_000)
    world.cloud.on_offer = [small, replace(more, gpu_type="H100", gpu_memory_bytes=80 * 1024**3)]
    job_id = await world.submit(retries=retries)
    await out_of_memory(world, job_id, 5)
    job = await world.job(job_id)
    assert job.state == ("waiting" if retries is None else "failed")
    assert (await world.rows(t.runs))[0].end_reason == RunEnd.FAILED
