"""The control process may die after any of its statements while spot jobs leave for a guaranteed one: all of them are
asked or none, and the job begins once. By default it dies after every seventh statement, with `--sweep` after each."""

from __future__ import annotations

from app.db.engine import make_engine
from tests.control.dying import DyingDatabase, KilledError
from tests.control.test_evictions import Machine, gpus
from tests.control.world import World


async def _decides_though_it_dies(world: World, machine: Machine, database_url: str, stride: int) -> int:
    """Until a process lives long enough for a whole decision; how many have died."""
    engine, alive = make_engine(database_url, pool_size=4, timeout_s=60), world.database
    died = 0
    try:
        for lifetime in range(1, 2_000, stride):
            world.seen_by_control = DyingDatabase(engine, lifetime)
            try:
                await world.restart()
                await machine.decide()
                break
            except KilledError:
                died += 1
                await world.check_invariants()
    finally:
        world.seen_by_control = alive
        await world.restart()
        await engine.dispose()
    return died


async def test_all_are_asked_or_none_and_the_job_begins_once(world: World, database_url: str, sweep: bool) -> None:
    machine, stride = Machine(world), 1 if sweep else 7
    await machine.begin()
    spot = [await machine.trains(0, 1), await machine.trains(2, 3)]
    job_id = await world.submit(resources=gpus(4))
    assert await _decides_though_it_dies(world, machine, database_url, stride) > 5 // stride
    assert await machine.states(*spot, job_id) == ["checkpointing", "checkpointing", "queued"]
    assert (await world.events(job_id)).count("evicts") == 1
    for one in spot:
        await machine.leaves(one)
    other = await world.submit(resources=gpus(1))
    await _decides_though_it_dies(world, machine, database_url, stride)
    assert await machine.states(*spot, job_id, other) == ["waiting", "waiting", "starting", "queued"]
    assert await machine.held() == 4
    assert [(await world.job(one)).evictions for one in spot] == [1, 1]
