"""A range that moves to a machine of another size, through the loop: cheaper once nothing presses, or sooner on GPUs of
a pool that nobody waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, update

from app.core.elastic.range_moves import AGAIN_MS
from app.core.model.job import JobState, PauseReason, Resources
from app.core.model.node import ProviderTraits, Tier
from app.db.tables import allocations, job_events, jobs, moves, nodes, runs
from tests.control.fake_provider import FakeProvider, make_offer
from tests.control.measured_pool import MeasuredPool
from tests.control.world import World
from tests.seeds import resources_json, seed_job, seed_node

CURVE = {1: 0.4, 2: 0.7, 4: 1.0}
GPU_USD = 0.72


def asks(least: int, now: int, most: int) -> dict[str, Any]:
    return resources_json(Resources(gpus_min=now, gpus_max=most)) | {"gpus_least": least}


class Lab(FakeProvider):
    """A pool of one's own, with what is free in it."""

    def traits(self) -> tuple[ProviderTraits, ...]:
        return tuple(replace(one, tier=Tier.OWN) for one in super().traits()[:1])

    def has_free(self, *pieces: int) -> None:
        self.on_offer = [
            replace(
                make_offer("lab", f"lab-{gpus}", Tier.OWN, "0.00", startup_ms=2_000, gpus=gpus),
                host="host_a",
                shared_gpus=max(pieces),
                cpus=8 * gpus,
            )
            for gpus in pieces
        ]


class Range(MeasuredPool):
    """A job with all GPUs of a machine that it has for itself, two hours of steps of a second left."""

    async def open(
        self, held: int, resources: dict[str, Any], *, speeds: dict[int, float] = CURVE,
        node: dict[str, Any] | None = None, **columns: Any,
    ) -> None:  # fmt: skip
        world = self.world
        now_ms = world.clock.now_ms()
        more = {"total_steps": 7_200, "saves_ms": now_ms, "deadline_ms": now_ms + 86_400_000}
        await self.begin(tuple(range(held)), gpu_count=held, resources=resources, **(more | columns))
        self.offers(GPU_USD)
        async with world.database.transaction() as connection:
            kept = {"price_micros_per_hour": round(GPU_USD * held * 1_000_000)} | (node or {})
            await connection.execute(update(nodes).where(nodes.c.id == self.node_id).values(kept))
            await self.measure(connection, speeds)

    async def passes(self, looks: int = 2) -> None:
        for _ in range(looks):
            await self.decide(30_000)

    async def row(self) -> Any:
        async with self.world.database.transaction() as connection:
            return (await connection.execute(select(jobs).where(jobs.c.id == self.lender))).one()

    async def words(self, kind: str) -> list[str]:
        async with self.world.database.transaction() as connection:
            of = job_events.c
            found = select(of.message).where(of.job_id == self.lender, of.kind == kind).order_by(of.position)
            return list((await connection.execute(found)).scalars())

    async def targets(self) -> list[tuple[str, int]]:
        """The machines that it moves to, with their GPUs."""
        async with self.world.database.transaction() as connection:
            rows = await connection.execute(
                select(nodes.c.provider, nodes.c.gpu_count)
                .join(runs, runs.c.id.in_(select(moves.c.target_run_id).where(moves.c.job_id == self.lender)))
                .where(nodes.c.rented_for_job_id == self.lender)
            )
            return [(row.provider, row.gpu_count) for row in rows]


@pytest.fixture
async def pool(world: World) -> Range:
    return Range(world)


async def test_once_nothing_presses_it_moves_to_a_smaller_machine_that_costs_less(pool: Range) -> None:
    """It trains on where it is until the other one is there, and asks for no more than that from then on."""
    await pool.open(4, asks(1, 4, 4), deadline_given=True)
    await pool.passes()
    row = await pool.row()
    assert (row.state, row.resources["gpus_min"], row.resources["gpus_least"]) == (JobState.RUNNING, 1, 1)
    assert await pool.targets() == [("cloud", 1)]
    (told,) = await pool.words("moves_smaller")
    assert told.startswith(
        "is in time with less: moves from 4 GPUs to a machine with 1, where what is left costs about $"
    )
    assert len(await pool.words("move_begun")) == 1


async def test_of_a_deadline_as_much_is_kept_as_it_needs(pool: Range) -> None:
    """Two hours on four GPUs are five on one, and not quite three on two."""
    due_ms = pool.world.clock.now_ms() + 4 * 3_600_000
    await pool.open(4, asks(1, 4, 4), deadline_given=True, deadline_ms=due_ms)
    await pool.passes()
    assert await pool.targets() == [("cloud", 2)]
    assert (await pool.row()).resources["gpus_min"] == 2


async def _idle_machine(pool: Range, **columns: Any) -> str:
    """Another one of the project that was rented with two GPUs, and that nobody is on."""
    more = {"gpu_count": 2, "price_micros_per_hour": round(GPU_USD * 2 * 1_000_000), "ready_ms": 1}
    async with pool.world.database.transaction() as connection:
        project_id = (await connection.execute(select(jobs.c.project_id).where(jobs.c.id == pool.lender))).scalar_one()
        return await seed_node(connection, project_id, **(more | columns))


async def test_a_machine_that_is_there_and_idle_is_taken_where_none_may_be_rented(pool: Range) -> None:
    """Two machines are all that settings allow, and the other one is idle for now."""
    pool.world.settings.serverful_limit = 2
    pool.world.settings.idle_release_s = 600
    await pool.open(4, asks(2, 4, 4))
    idle = await _idle_machine(pool)
    await pool.passes()
    (told,) = await pool.words("moves_smaller")
    assert "moves from 4 GPUs to an idle machine with 2" in told
    async with pool.world.database.transaction() as connection:
        of_target = runs.c.id.in_(select(moves.c.target_run_id).where(moves.c.job_id == pool.lender))
        found = await connection.execute(
            select(allocations.c.node_id, allocations.c.gpu_indices)
            .join(runs, runs.c.id == allocations.c.run_id)
            .where(of_target)
        )
        assert [tuple(row) for row in found] == [(idle, [0, 1])]
    assert (await pool.row()).resources["gpus_min"] == 2


@pytest.mark.parametrize("columns", [{"gpu_type": "H100"}, {"price_micros_per_hour": 9_000_000}, {"gpu_count": 1}])
async def test_an_idle_machine_that_does_not_do_is_left_alone(pool: Range, columns: dict[str, Any]) -> None:
    """Of another kind of GPU, dearer, or with fewer GPUs than it needs."""
    pool.world.settings.serverful_limit = 2
    pool.world.settings.idle_release_s = 600
    await pool.open(4, asks(2, 4, 4))
    await _idle_machine(pool, **columns)
    await pool.passes()
    assert await pool.words("moves_smaller") == []


async def test_what_it_goes_back_to_is_no_reason_to_come_again(pool: Range) -> None:
    """Also where the machine does not come: it is not tried again within the hour, nor by the next leader."""
    await pool.open(4, asks(1, 4, 4))
    await pool.passes()
    assert len(await pool.words("moves_smaller")) == 1
    async with pool.world.database.transaction() as connection:
        target = select(moves.c.target_run_id).where(moves.c.job_id == pool.lender).scalar_subquery()
        await connection.execute(update(runs).where(runs.c.id == target).values(state="ended", ended_ms=1))
        await connection.execute(update(moves).where(moves.c.job_id == pool.lender).values(state="abandoned"))
    await pool.world.restart()
    await pool.passes(6)
    assert len(await pool.words("moves_smaller")) == 1
    assert await pool.words("grows_for_deadline") == await pool.words("moves_larger") == []
    assert AGAIN_MS > 6 * 30_000


@pytest.mark.parametrize(
    ("columns", "more"),
    [
        ({"saves_ms": None}, {}),
        ({"affinity": {"locked": True}}, {}),
        ({"pause_reason": PauseReason.USER}, {}),
        ({"total_steps": None}, {}),
        ({"total_steps": 200}, {}),
        ({}, {"speeds": {4: 1.0}}),
        ({}, {"speeds": {1: 0.24, 2: 0.5, 4: 1.0}}),
        ({}, {"resources": asks(4, 4, 8)}),
        ({}, {"resources": resources_json(Resources(gpus_min=4, gpus_max=4))}),
        ({}, {"node": {"tier": Tier.OWN}}),
        ({"deadline_given": True, "deadline_ms": "soon"}, {}),
    ],
    ids=[
        "does not save", "locked", "about to pause", "no end known", "hardly any left", "nobody knows",
        "its work costs as much", "asks for so many", "no range", "no rented one", "would be late",
    ],
)  # fmt: skip
async def test_else_it_keeps_its_machine(pool: Range, columns: dict[str, Any], more: dict[str, Any]) -> None:
    if columns.get("deadline_ms") == "soon":
        columns = columns | {"deadline_ms": pool.world.clock.now_ms() + 7_300_000}
    await pool.open(4, **({"resources": asks(1, 4, 4)} | more), **columns)
    await pool.passes(3)
    assert await pool.targets() == await pool.words("moves_smaller") == []


async def test_while_settings_allow_no_more_machines_it_stays(pool: Range, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool.world.control.context.settings, "serverful_limit", 1)
    await pool.open(4, asks(1, 4, 4))
    await pool.passes()
    assert await pool.targets() == []


@pytest.fixture
async def lab(world: World) -> Lab:
    """Of the same team."""
    made = Lab(world.clock, name="lab")
    made.on_offer = []
    world.other_clouds.append(made)
    await world.restart()
    return made


async def test_on_a_pool_it_moves_to_a_larger_piece_that_nobody_waits_for(pool: Range, lab: Lab) -> None:
    """What it asks for stays what it was: there it lends, as any range does, what it has above that."""
    await pool.open(1, asks(1, 1, 4), node={"tier": Tier.OWN, "provider": "lab"})
    pool.world.cloud.on_offer = []
    lab.has_free(1, 2, 4)
    await pool.passes()
    (told,) = await pool.words("moves_larger")
    assert told.startswith("nobody waits for GPUs of its pool: moves from 1 GPU to 4 there, and is done about ")
    assert await pool.targets() == [("lab", 4)]
    assert (await pool.row()).resources["gpus_min"] == 1


@pytest.mark.parametrize("why", ["nothing is gained", "little is left", "at its most", "is let in nowhere"])
async def test_else_it_keeps_its_piece(pool: Range, lab: Lab, why: str) -> None:
    speeds = {1: 1.0, 2: 1.0, 4: 1.0} if why == "nothing is gained" else CURVE
    columns: dict[str, Any] = {"total_steps": 150} if why == "little is left" else {}
    most = 1 if why == "at its most" else 4
    lab_has = (1,) if why == "is let in nowhere" else (1, 2, 4)
    own = {"tier": Tier.OWN, "provider": "lab"}
    await pool.open(1, asks(1, 1, most), speeds=speeds, node=own, **columns)
    pool.world.cloud.on_offer = []
    lab.has_free(*lab_has)
    await pool.passes(3)
    assert await pool.words("moves_larger") == await pool.targets() == []


async def test_while_somebody_waits_nobody_moves_to_a_larger_piece(pool: Range, lab: Lab) -> None:
    """Also where that one could not use it: GPUs add up for who waits."""
    await pool.open(1, asks(1, 1, 4), node={"tier": Tier.OWN, "provider": "lab"})
    pool.world.cloud.on_offer = []
    lab.has_free(1, 2, 4)
    eight = resources_json(Resources(gpus_min=8, gpus_max=8))
    async with pool.world.database.transaction() as connection:
        waits = await seed_job(connection, pool.world.project_id, pool.world.app, resources=eight)
    await pool.passes(3)
    assert await pool.words("moves_larger") == []
    async with pool.world.database.transaction() as connection:
        await connection.execute(update(jobs).where(jobs.c.id == waits).values(state=JobState.CANCELLED))
    await pool.passes()
    assert len(await pool.words("moves_larger")) == 1


async def test_what_fails_of_it_is_its_own(pool: Range, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions go on, nothing was written, and it is tried again."""

    async def fails(*_: object, **__: object) -> None:
        raise RuntimeError("disk on fire")

    await pool.open(4, asks(1, 4, 4))
    with monkeypatch.context() as broken:
        broken.setattr("app.control.other_machines.tell_changed_machine", fails)
        await pool.passes()
    assert await pool.targets() == []
    assert (await pool.row()).resources["gpus_min"] == 4
    await pool.passes()
    assert await pool.targets() == [("cloud", 1)]
