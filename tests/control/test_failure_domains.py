"""Each chore of the leader with two items, of which one fails: the other gets through."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from app.control.each import each, in_batches
from app.core.board import Board
from app.core.defragmentation import Goal
from app.core.model.health import CHORE_FAILS, Chore, PartHealth
from app.core.model.money import Money
from app.core.model.plan import ActionKind, Plan
from app.core.model.run import RunState
from app.core.policies import policy_named
from app.core.policy import PolicyConfig, PolicyState
from app.db import tables as t
from app.db.connection import Connection
from app.db.decisions.health import read_health
from app.db.jobs.caps import capped_jobs, jobs_near_a_cap
from app.db.offers.image_builds import want_image
from app.db.offers.provider_states import refuse, set_configured
from app.db.tables import image_builds, provider_states
from app.errors import Fenced, Unavailable
from app.ports.objects import content_key
from app.services.defragmentation.ask_defragmentation import ask_defragmentation
from app.services.reservations.reserve import reserve
from app.storage.directory import DirectoryStore
from tests.control.fake_provider import FakeProvider
from tests.control.lending_pool import HOUR_MS, LendingPool
from tests.control.poison import heal, poison
from tests.control.test_evictions import Machine, gpus
from tests.control.test_gangs import Gang
from tests.control.test_lending import Pool
from tests.control.world import World
from tests.seeds import seed_job, seed_node, seed_project, seed_run

DAY_MS = 86_400_000


@dataclass(frozen=True)
class Poisoned:
    """What to look at after the round: whether the sound item got through."""

    got_through: Callable[[], Awaitable[bool]]


async def _nodes(world: World, count: int = 2, **columns: Any) -> list[str]:
    async with world.database.transaction() as connection:
        return [
            await seed_node(
                connection, world.project_id, **{"provider": "cloud", "requested_ms": world.clock.now_ms()} | columns
            )
            for _ in range(count)
        ]


def _node_is(world: World, node_id: str, state: str) -> Poisoned:
    async def look() -> bool:
        return bool((await world.node(node_id)).state == state)

    return Poisoned(look)


async def _strange(world: World) -> FakeProvider:
    """A second provider, whose adapter does not understand what it is told."""
    other = FakeProvider(world.clock, name="a-strange-one")  # asked first

    def stumble(call: str) -> None:
        raise KeyError(call)

    other.before_call = stumble
    world.other_clouds = [other]
    await world.restart()
    return other


async def _prices(world: World) -> Poisoned:
    """An offer that no row can hold; and a provider whose offers nobody understands."""
    await _strange(world)
    good = replace(world.cloud.on_offer[0], offer_id="good")
    world.cloud.on_offer = [replace(good, offer_id="bad", price_per_hour=Money(2**70)), good]

    async def look() -> bool:
        return [row.offer_id for row in await world.rows(t.offers)] == ["good"]

    return Poisoned(look)


async def _fall_silent(world: World) -> None:
    """Nobody is heard for longer than a node may be silent, while somebody listens."""
    for _ in range(4):
        await world.check_heartbeats()
        world.clock.advance(s=world.settings.unreachable_after_s / 3)


async def _heartbeats(world: World) -> Poisoned:
    bad, good = await _nodes(world)
    await poison(world, "nodes", bad)
    await _fall_silent(world)
    return _node_is(world, good, "unreachable")


async def _moves(world: World) -> Poisoned:
    """Two moves whose targets take too long."""
    targets = []
    nodes = await _nodes(world, 4)
    async with world.database.transaction() as connection:
        for source_node, target_node in (nodes[:2], nodes[2:]):
            job_id = await seed_job(connection, world.project_id, world.app, state="running", epoch=1)
            source = await seed_run(connection, world.project_id, job_id, source_node)
            target = await seed_run(
                connection, world.project_id, job_id, target_node, epoch=2, state=RunState.STANDBY, running_ms=None
            )
            move = {"id": world.ids.new("move"), "job_id": job_id, "source_run_id": source, "target_run_id": target}
            begun = {"state": "preparing", "reason": "because", "begun_ms": world.clock.now_ms()}
            await connection.execute(t.moves.insert().values(**move, **begun))
            targets.append(target)
    await poison(world, "runs", targets[0])
    world.clock.advance(s=world.settings.move_timeout_s + 1)

    async def look() -> bool:
        return bool((await world._row(t.runs, targets[1])).state == "ended")

    return Poisoned(look)


async def _lifetimes(world: World) -> Poisoned:
    bad, good = await _nodes(world, ends_ms=world.clock.now_ms() + 60_000, requested_ms=world.clock.now_ms() - DAY_MS)
    await poison(world, "nodes", bad)
    return _node_is(world, good, "terminating")


async def _sweep(world: World) -> Poisoned:
    """Two nodes that are to end and that nobody sees to; and a provider whose listing nobody understands."""
    await _strange(world)
    bad, good = await _nodes(world, state="terminating")
    await poison(world, "provider_operations", bad)

    async def look() -> bool:
        return [row.node_id for row in await world.rows(t.provider_operations)] == [good]

    return Poisoned(look)


async def _housekeeping(world: World) -> Poisoned:
    """Answers that cannot be forgotten; entries of the audit log that can."""
    old = {"project_id": world.project_id, "route": "r"}
    long_ago_ms = world.clock.now_ms() - 10_000 * DAY_MS
    async with world.database.transaction() as connection:
        answer = {"key": "k", "body_sha256": b"", "status": 201, "response": {}, "created_ms": long_ago_ms}
        await connection.execute(t.idempotency_keys.insert().values(**old, **answer))
        entry = {"at_ms": long_ago_ms, "key_id": "key_1", "request_id": "r", "status": 200}
        await connection.execute(t.audit_log.insert().values(**old, **entry))
    await poison(world, "idempotency_keys", world.project_id)

    async def look() -> bool:
        return await world.rows(t.audit_log) == []

    return Poisoned(look)


async def _learn(world: World) -> Poisoned:
    """What a run told of itself is no number: nothing is learned from it, and it is not looked at again."""
    (node_id,) = await _nodes(world, 1)
    template = {"model": {"name": "llama-3.2-1b"}, "training": {"batch": 8, "sequence": 2048, "method": "lora"}}
    run_ids = []
    async with world.database.transaction() as connection:
        for epoch, facts in enumerate(({"micro_batch": {"no": "number"}}, {"micro_batch": 4}), start=1):
            job_id = await seed_job(connection, world.project_id, world.app, template=template, state="succeeded")
            ended: dict[str, Any] = {"state": RunState.ENDED, "ended_ms": world.clock.now_ms(), "facts": facts}
            run_ids.append(await seed_run(connection, world.project_id, job_id, node_id, epoch=epoch, **ended))

    async def look() -> bool:
        return all(row.learned for row in await world.rows(t.runs))

    await poison(world, "runs", run_ids[0])

    async def good_is_learned() -> bool:
        return {row.id: row.learned for row in await world.rows(t.runs)} == dict(
            zip(run_ids, (False, True), strict=True)
        )

    return Poisoned(good_is_learned)


async def _metered_nodes(world: World) -> list[str]:
    now_ms = world.clock.now_ms()
    node_ids = await _nodes(world, billed_from_ms=now_ms, ready_ms=now_ms)
    world.clock.advance(s=3600)
    for node_id in node_ids:
        await world.beat(node_id)
    return node_ids


async def _meter(world: World) -> Poisoned:
    bad, good = await _metered_nodes(world)
    await poison(world, "ledger", bad)

    async def look() -> bool:
        return {row.node_id for row in await world.rows(t.ledger)} == {good}

    return Poisoned(look)


async def _caps(world: World) -> Poisoned:
    bad, good = [await world.submit(max_cost_micros=5, spent_micros=5) for _ in range(2)]
    await poison(world, "jobs", bad)

    async def look() -> bool:
        return [(await world.job(job_id)).state for job_id in (bad, good)] == ["queued", "paused"]

    return Poisoned(look)


async def _limits(world: World) -> Poisoned:
    """Two jobs that a limit has paused, which does not hold them any more."""
    bad, good = [await world.submit(state="paused", pause_reason="day_limit") for _ in range(2)]
    await poison(world, "jobs", bad)

    async def look() -> bool:
        return [(await world.job(job_id)).state for job_id in (bad, good)] == ["paused", "queued"]

    return Poisoned(look)


async def _budgets(world: World) -> Poisoned:
    """Two jobs that a budget has paused, which is there no more."""
    bad, good = [await world.submit(state="paused", pause_reason="budget") for _ in range(2)]
    await poison(world, "jobs", bad)

    async def look() -> bool:
        return [(await world.job(job_id)).state for job_id in (bad, good)] == ["paused", "queued"]

    return Poisoned(look)


async def _stored(world: World, folder: Path, *, known: bool) -> tuple[DirectoryStore, str, str]:
    """A store with content of two projects that nothing refers to; of which the database knows, or not."""
    store = DirectoryStore(folder, "http://127.0.0.1:1", "k" * 40, max_object_bytes=2**20, clock=world.clock)
    sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"  # of the word below
    async with world.database.transaction() as connection:
        other = await seed_project(connection)
        for project_id in (world.project_id, other):
            await store.put(content_key(project_id, sha256), b"test", sha256=sha256)
            if known:
                row = {"project_id": project_id, "sha256": sha256, "size_bytes": 4, "verified_ms": 0}
                await connection.execute(t.objects.insert().values(**row))
    world.control._objects = store
    await poison(world, "objects", world.project_id)
    return store, content_key(other, sha256), other


async def _garbage(world: World, folder: Path) -> Poisoned:
    store, key, _ = await _stored(world, folder, known=True)

    async def look() -> bool:
        return await store.head(key) is None

    return Poisoned(look)


async def _strays(world: World, folder: Path) -> Poisoned:
    _, _, other = await _stored(world, folder, known=False)

    async def look() -> bool:
        return [row.project_id for row in await world.rows(t.objects)] == [other]

    return Poisoned(look)


async def _doors(world: World, folder: Path) -> Poisoned:
    """Two deleted files of clients of OpenAI; the first one's row cannot be deleted."""
    await _stored(world, folder, known=False)
    row = {"filename": "a", "purpose": "batch", "sha256": "a" * 64, "size_bytes": 1, "state": "deleted"}
    async with world.database.transaction() as connection:
        for file_id in ("file-1", "file-2"):
            values = {**row, "id": file_id, "project_id": world.project_id, "created_ms": 0}
            await connection.execute(t.door_files.insert().values(**values))
    await poison(world, "door_files", "file-1")

    async def look() -> bool:
        return [one.id for one in await world.rows(t.door_files)] == ["file-1"]

    return Poisoned(look)


async def _providers(world: World) -> Poisoned:
    """Both refuse our credentials; the first one's acceptance cannot be written."""
    world.other_clouds = [FakeProvider(world.clock, name="another")]
    await world.restart()
    async with world.database.transaction() as connection:
        await set_configured(connection, ["another", "cloud"])
        for name in ("another", "cloud"):
            await refuse(connection, name, "no", now_ms=world.clock.now_ms())
    await poison(world, "provider_states", "another")

    async def look() -> bool:
        rows = {row.provider: row.refused_ms for row in await world.rows(provider_states)}
        return rows["another"] is not None and rows["cloud"] is None

    return Poisoned(look)


async def _images(world: World) -> Poisoned:
    """Two images are to be built; that the first one is begun cannot be written."""
    world.cloud.image_builds = {}
    world.settings.prepare_images = False
    now_ms = world.clock.now_ms()
    async with world.database.transaction() as connection:
        for image in ("bad:1", "good:1"):
            await want_image(connection, "cloud", image, now_ms=now_ms)
    await poison(world, "image_builds", "bad:1")

    async def look() -> bool:
        return [row.state for row in await world.rows(image_builds)] == ["wanted", "building"]

    return Poisoned(look)


async def _operations(world: World) -> Poisoned:
    """Two machines are to be rented; the first one's node cannot be written."""
    jobs = [await world.submit() for _ in range(2)]
    await world.decide()
    bad, good = [await world.node_of(job_id) for job_id in jobs]
    await poison(world, "nodes", bad)
    workers = world.control.workers
    for operation in await workers.of_all.claim(10):
        await workers.of_all.guarded(operation)
    return _node_is(world, good, "booting")


class Refusing:
    """A policy that raises when it sees one job."""

    name = "fixed-threshold"
    uses = frozenset[ActionKind]()

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id

    def decide(self, board: Board, state: PolicyState, config: PolicyConfig) -> tuple[Plan, PolicyState]:
        if self.job_id in board.jobs:
            raise ZeroDivisionError
        return policy_named("fixed-threshold").decide(board, state, config)


async def _decide(world: World) -> Poisoned:
    bad, good = [await world.submit() for _ in range(2)]
    world.control.loop._policy = Refusing(bad)
    await world.decide()

    async def look() -> bool:
        return [(await world.job(job_id)).state for job_id in (bad, good)] == ["queued", "starting"]

    return Poisoned(look)


async def _tell(world: World) -> Poisoned:
    """Both jobs fail to start; that the first one does cannot be written down."""
    bad, good = [await world.submit() for _ in range(2)]
    await poison(world, "run_jobs", "job_")
    await poison(world, "item_failures", bad)
    await world.decide()

    async def look() -> bool:
        return "action_failed" in await world.events(good)

    return Poisoned(look)


async def _lend(world: World) -> Poisoned:
    """A machine for each of two that wait; what the first one lends cannot be written down."""
    bad, good = Pool(world), Pool(world)
    for pool in (bad, good):
        await pool.begin()
    for pool in (bad, good):
        await pool.asks()
    await poison(world, "runs", bad.run_id)
    await world.decide()

    async def look() -> bool:
        return [(await pool.size())[0] for pool in (bad, good)] == [4, 3]

    return Poisoned(look)


async def _evict(world: World) -> Poisoned:
    """A machine for each of two that wait; what leaves for the first one cannot be written down."""
    bad, good = Machine(world), Machine(world)
    leaving = []
    for machine, number in ((bad, 1), (good, 2)):
        await machine.begin(number)
        leaving.append(await machine.trains(*range(number)))
        await world.submit(resources=gpus(number))
    await poison(world, "runs", bad.runs[leaving[0]])
    await world.decide()

    async def look() -> bool:
        return [(await world.job(job_id)).state for job_id in leaving] == ["running", "checkpointing"]

    return Poisoned(look)


async def _gangs(world: World) -> Poisoned:
    """Two jobs on two machines each, which are not to be had; why the first one waits cannot be written down."""
    bad, good = [await Gang(world).submit() for _ in range(2)]
    world.cloud.on_offer = []
    await poison(world, "jobs", bad)
    await world.decide()

    async def look() -> bool:
        reasons = [(await world.job(job_id)).wait_reason for job_id in (bad, good)]
        return reasons[0] is None and "waits for 2 machines" in str(reasons[1])

    return Poisoned(look)


async def _reservations(world: World) -> Poisoned:
    """Two whose windows are over; that the first one is closed cannot be written down."""
    pool = LendingPool(world)
    await pool.open()
    now_ms = world.clock.now_ms()
    asked = {"pool": "lab", "gpu_type": "A100", "gpus": 1, "from_ms": None, "until_ms": now_ms + HOUR_MS}
    async with world.database.transaction() as connection:
        ids = [
            (await reserve(connection, world.ids, world.project_id, **asked, now_ms=now_ms)).reservation_id
            for _ in range(2)
        ]
    await world.decide()
    world.clock.advance(ms=HOUR_MS)
    await poison(world, "reservations", ids[0])
    await world.decide()

    async def look() -> bool:
        return {row.id: row.ended_ms is None for row in await world.rows(t.reservations)} == dict(
            zip(ids, (True, False), strict=True)
        )

    return Poisoned(look)


async def _standby(world: World) -> Poisoned:
    """Two whose windows are over; that the first one is called back cannot be written down."""
    pool = LendingPool(world)
    await pool.open()
    job_ids = [await pool.runs(1), await pool.runs(1)]
    for job_id in job_ids:
        await pool.stands_by(job_id)
    bad = next(row.id for row in await world.rows(t.standbys) if row.job_id == job_ids[0])
    world.clock.advance(ms=8 * HOUR_MS)
    await pool.beat()
    await poison(world, "standbys", bad)
    await world.decide()

    async def look() -> bool:
        return [row.called_ms is None for row in await world.rows(t.standbys)] == [True, False]

    return Poisoned(look)


async def _defrag(world: World) -> Poisoned:
    """Two that are asked for; that the first one is planned cannot be written down."""
    asked = []
    for goal in Goal:
        async with world.database.transaction() as connection:
            row = await ask_defragmentation(
                connection, world.ids, world.settings, goal, None, 20, now_ms=world.clock.now_ms()
            )
        asked.append(row.id)
    await poison(world, "defragmentations", asked[0])

    async def look() -> bool:
        states = {row.id: row.state for row in await world.rows(t.defragmentations)}
        return [states[one] for one in asked] == ["asked", "moving"]

    return Poisoned(look)


POISONS: dict[Chore, Callable[..., Awaitable[Poisoned]]] = {
    Chore.DECIDE: _decide,
    Chore.TELL: _tell,
    Chore.LEND: _lend,
    Chore.EVICT: _evict,
    Chore.GANGS: _gangs,
    Chore.STANDBY: _standby,
    Chore.RESERVE: _reservations,
    Chore.PRICES: _prices,
    Chore.HEARTBEATS: _heartbeats,
    Chore.MOVES: _moves,
    Chore.DEFRAG: _defrag,
    Chore.LIFETIMES: _lifetimes,
    Chore.SWEEP: _sweep,
    Chore.HOUSEKEEPING: _housekeeping,
    Chore.LEARN: _learn,
    Chore.METER: _meter,
    Chore.CAPS: _caps,
    Chore.LIMITS: _limits,
    Chore.BUDGETS: _budgets,
    Chore.GARBAGE: _garbage,
    Chore.STRAYS: _strays,
    Chore.DOORS: _doors,
    Chore.PROVIDERS: _providers,
    Chore.IMAGES: _images,
    Chore.OPERATIONS: _operations,
}
# The decision has them in it, and the tests of it: `tests.control.test_failing_decisions`.
OF_THE_LOOP = {Chore.DECIDE, Chore.TELL, Chore.LEND, Chore.EVICT, Chore.GANGS, Chore.STANDBY, Chore.RESERVE}
NEEDS_A_STORE = {Chore.GARBAGE, Chore.STRAYS, Chore.DOORS}


def test_every_chore_is_poisoned_here(world: World) -> None:
    """A new chore without its poison fails this test; so does one that has no turn, or no words."""
    assert POISONS.keys() == set(Chore) == CHORE_FAILS.keys()
    turns = [chore for turn in world.control._timetable().values() for chore in turn.chores]
    assert sorted(turns) == sorted(set(Chore) - OF_THE_LOOP)


@pytest.mark.parametrize("chore", POISONS)
async def test_of_two_items_the_sound_one_gets_through(world: World, chore: Chore, tmp_path: Path) -> None:
    """What fails of one is counted and left behind; the health of the chore is kept where every process can read it."""
    given = (world, tmp_path) if chore in NEEDS_A_STORE else (world,)
    poisoned = await POISONS[chore](*given)
    if chore not in OF_THE_LOOP:
        assert await world.control.do(chore) >= 1
    assert await poisoned.got_through()
    if chore is Chore.DECIDE:
        return  # a decision that is made without a job has not failed
    async with world.database.transaction() as connection:
        (kept,) = [part for part in await read_health(connection) if part.name == chore and part.kind == "chore"]
    assert kept.failures >= 1
    assert kept.failing_since_ms == world.clock.now_ms()


async def test_limits_are_kept_although_no_meter_can_be_read(world: World) -> None:
    """The whole of the metering fails; the same turn of the timetable holds the job that is over its limit."""
    await _metered_nodes(world)
    job_id = await world.submit(max_cost_micros=5, spent_micros=5)
    await poison(world, "ledger", "node_")
    await world.control._take_turn("meter", world.control._timetable()["meter"])
    assert (await world.job(job_id)).state == "paused"
    assert await world.rows(t.ledger) == []


async def test_a_chore_that_works_again_says_so(world: World) -> None:
    """Its failures stay counted; it does not fail any more, from the next round on."""
    await _caps(world)

    async def health() -> PartHealth:
        async with world.database.transaction() as connection:
            (caps,) = [part for part in await read_health(connection) if part.name == Chore.CAPS]
        return caps

    began_ms = world.clock.now_ms()
    for _ in range(2):
        await world.control.do(Chore.CAPS)
        world.clock.advance(s=10)
    failing = await health()
    assert (failing.failures, failing.in_a_row, failing.failing_since_ms) == (2, 2, began_ms)
    await heal(world, "jobs")
    await world.control.do(Chore.CAPS)
    works = await health()
    assert (works.failures, works.in_a_row, works.failing_since_ms) == (2, 0, None)


async def test_a_machine_of_a_node_in_a_state_of_a_newer_release_is_left_alone(world: World) -> None:
    """It has an owner, and is no orphan, and nothing has failed; a machine of nobody in the same listing is ended."""
    _job_id, node_id = await world.run_on_serverless()
    orphan = world.cloud.plant(await world.own_label(), created_ms=world.clock.now_ms())
    async with world.database.transaction() as connection:
        await connection.execute(update(t.nodes).where(t.nodes.c.id == node_id).values(state="of a newer release"))
    world.clock.advance(s=world.settings.orphan_grace_s + 1)
    assert await world.control.do(Chore.SWEEP) == 0
    await world.work()
    assert world.cloud.told_to_end == [orphan]


async def test_a_strange_machine_in_a_listing_stops_nothing(world: World) -> None:
    """It has no price and no time: it is left behind, and the orphan beside it is ended."""
    strange = world.cloud.plant(await world.own_label(), created_ms=world.clock.now_ms())
    machine = world.cloud.rented[strange].machine
    world.cloud.rented[strange].machine = replace(machine, created_ms=None)  # type: ignore[arg-type]  # as it came
    orphan = world.cloud.plant(await world.own_label(), created_ms=world.clock.now_ms())
    world.clock.advance(s=world.settings.orphan_grace_s + 1)
    assert await world.control.do(Chore.SWEEP) >= 1
    await world.work()
    assert world.cloud.told_to_end == [orphan]


async def test_a_node_whose_offer_cannot_be_read_is_looked_after_to_its_end(world: World) -> None:
    """Metered, found silent, released and terminated: for that its own columns suffice."""
    _job_id, node_id = await world.run_on_serverless()
    async with world.database.transaction() as connection:
        broken = {"offer": {"of": "a newer release"}, "tier": "of a newer release"}
        await connection.execute(update(t.nodes).where(t.nodes.c.id == node_id).values(**broken))
    world.clock.advance(s=10)
    await world.beat(node_id)
    assert await world.control.do(Chore.METER) == 0
    assert await world.ledger_sum() > 0
    world.cloud.die(node_id)
    await _fall_silent(world)
    for _ in range(2):
        assert await world.control.do(Chore.HEARTBEATS) == 0
    assert (await world.node(node_id)).state == "terminating"
    await world.work()
    assert (await world.node(node_id)).state == "terminated"
    assert await world.ledger_sum() == world.cloud.bill().micros


# The helper itself


async def test_each_goes_on_after_anything_but_a_lost_lead_and_a_database_that_is_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fenced ends the round; so does Unavailable when the database does not answer; when it does, somebody has locked
    that one row, and the next one follows, three times in a row at most."""
    context = world.control.context
    seen: list[int] = []

    async def stumble(connection: Connection, item: int) -> int:
        seen.append(item)
        if item in errors:
            raise errors[item]
        return item

    errors: dict[int, Exception] = {1: KeyError("x"), 2: Unavailable("locked"), 4: ValueError()}
    assert await each(context, Chore.CAPS, range(6), stumble) == [0, 3, 5]
    for error, answers, expected in (
        (Fenced("lost"), True, [0, 1]),
        (Unavailable("gone"), False, [0, 1]),
    ):
        errors = {1: error}
        seen.clear()
        with monkeypatch.context() as patched:

            async def told(_database: object, answers: bool = answers) -> bool:
                return answers

            patched.setattr(type(context.database), "answers", told)
            with pytest.raises(type(error)):
                await each(context, Chore.CAPS, range(6), stumble)
        assert seen == expected
    errors = dict.fromkeys(range(6), Unavailable("locked"))
    seen.clear()
    with pytest.raises(Unavailable):
        await each(context, Chore.CAPS, range(6), stumble)
    assert seen == [0, 1, 2]


async def test_a_batch_that_fails_is_done_one_by_one(world: World) -> None:
    """Two hundred at a time, until one of them fails: then it alone is left out."""
    sizes: list[int] = []

    async def act(connection: Connection, items: Any) -> list[int]:
        sizes.append(len(items))
        if 3 in items:
            raise KeyError(3)
        return list(items)

    done = await in_batches(world.control.context, Chore.METER, range(6), act, at_once=2)
    assert [item for some in done for item in some] == [0, 1, 2, 4, 5]
    assert sizes == [2, 2, 1, 1, 2]


async def test_what_keeps_failing_has_its_traceback_in_the_log_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A job that fails every second for a week must not fill the disk."""
    await _caps(world)
    for _ in range(4):
        await world.control.do(Chore.CAPS)
    told = [record for record in caplog.records if record.name == "app.control.health"]
    assert [record.exc_info is not None for record in told] == [True, False, False, False]


async def test_a_call_that_only_a_newer_release_knows_keeps_no_other_from_being_made(world: World) -> None:
    """After a release was rolled back: it stays as it is, for the release that wrote it."""
    job_id = await world.submit()
    await world.decide()
    unknown = {"id": "op_0", "node_id": await world.node_of(job_id), "provider": "cloud", "kind": "of a newer release"}
    async with world.database.transaction() as connection:
        row = t.provider_operations.insert().values(**unknown, state="pending", not_before_ms=0, created_ms=0)
        await connection.execute(row)
    await world.work()
    assert {row.kind: row.state for row in await world.rows(t.provider_operations)} == {
        "create": "done",
        "of a newer release": "pending",
    }


@pytest.mark.parametrize("column", ["spent_micros", "max_cost_micros", "max_duration_ms", "first_running_ms"])
@pytest.mark.parametrize("value", [2**63 - 1, -(2**63)])
async def test_an_amount_near_the_largest_holds_up_no_other_jobs_limit(world: World, column: str, value: int) -> None:
    """Limits are looked at in one statement over all jobs: none of their sums may be out of range."""
    now_ms, limits = world.clock.now_ms(), {"max_cost_micros": 10, "max_duration_ms": 1_000}
    going_on = {"state": "running", "first_running_ms": now_ms, **limits}
    await world.submit(**{**going_on, column: value})
    over = await world.submit(max_cost_micros=5, spent_micros=5)
    async with world.database.transaction() as connection:
        assert over in await capped_jobs(connection, now_ms=now_ms)
        near_its_limit = await world.submit(**{**going_on, "spent_micros": 9})
        assert near_its_limit in await jobs_near_a_cap(connection, now_ms=now_ms)
