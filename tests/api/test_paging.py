"""Lists: every one has the same pages, which neither skip nor repeat an item while others are added."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import select

from app.api.context import ApiContext
from app.api.examples import CURSORS
from app.core.memory.calibration import Calibration, TrainingKind
from app.core.model.budget import Budget, Period
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.reserving import GpuReservation
from app.db.learning.calibrations import set_calibration
from app.db.money.budgets import set_budget
from app.db.offers.listed import replace_offers
from app.db.reservations.reservations import ReservationRow, add_reservation
from app.db.tables import allocations, checkpoint_files, job_events
from tests.api.builders import add_artifact, add_checkpoint, add_chunk, add_decision, add_ended_run, add_job, add_metric
from tests.api.conftest import Tenant, error_of, make_tenant
from tests.api.document import named_operations
from tests.core.samples import OFFERS, snapshot
from tests.seeds import GIB, T0_MS, new_id, seed_app, seed_node

LISTS = {
    name: (path, operation)
    for name, (_, path, operation) in named_operations().items()
    if "next_cursor" in operation["responses"].get("200", {}).get("content", {}).get("application/json", {}).get(
        "example", {}
    )
}  # fmt: skip
each_list = pytest.mark.parametrize("name", sorted(LISTS))


@dataclass
class Shelf:
    """What the lists of one project are filled with. `number` orders what is listed by a text or a number."""

    context: ApiContext
    tenant: Tenant
    job_id: str
    run_id: str
    checkpoint_id: str
    positions: itertools.count[int]

    async def app(self, number: int) -> None:
        async with self.context.database.transaction() as connection:
            await seed_app(connection, self.tenant.project_id)

    async def job(self, number: int) -> None:
        await add_job(self.context, self.tenant)

    async def node(self, number: int) -> None:
        async with self.context.database.transaction() as connection:
            await seed_node(connection, self.tenant.project_id)

    async def key(self, number: int) -> None:
        answer = await self.tenant.http.post("/v1/keys", json={"name": str(number), "scopes": ["read"]})
        assert answer.status_code == 201, answer.text

    async def project(self, number: int) -> None:
        answer = await self.tenant.http.post("/v1/projects", json={"name": f"{self.tenant.project_id}-{number}"})
        assert answer.status_code == 201, answer.text

    async def calibration(self, number: int) -> None:
        kind = TrainingKind("llama", "lora", "flash/full", "a100", f"torch 2.{number}")
        async with self.context.database.transaction() as connection:
            row = Calibration(1, 0.1, 0.1, 1)
            await set_calibration(connection, new_id("cal"), self.tenant.project_id, kind, row, now_ms=T0_MS)

    async def tick(self, number: int) -> None:
        await add_decision(self.context, snapshot(offers=OFFERS))

    async def secret(self, number: int) -> None:
        answer = await self.tenant.http.put(f"/v1/secrets/S_{number:03}", json={"value": "123456"})
        assert answer.status_code == 200, answer.text

    async def model_name(self, number: int) -> None:
        answer = await self.tenant.http.put(f"/v1/model-names/m{number:03}", json={"model": "org/name"})
        assert answer.status_code == 200, answer.text

    async def pool(self, number: int) -> None:
        answer = await self.tenant.http.post("/v1/pools", json={"name": f"p{number:03}"})
        assert answer.status_code == 201, answer.text

    async def reservation(self, number: int) -> None:
        answer = await self.tenant.http.post("/v1/pools", json={"name": "lab"})
        assert answer.status_code in {201, 409}, answer.text
        one = GpuReservation(new_id("resv"), self.tenant.project_id, "lab", "A100", 1, T0_MS, T0_MS + 60_000)
        async with self.context.database.transaction() as connection:
            await add_reservation(connection, ReservationRow(one, T0_MS + number))

    async def size(self, number: int) -> None:
        """The run held a GPU for a moment."""
        of = allocations.c
        async with self.context.database.transaction() as connection:
            of_run = select(of.node_id).where(of.run_id == self.run_id).limit(1)
            held = {"id": new_id("aloc"), "run_id": self.run_id, "gpu_indices": [0]}
            at = {"node_id": of_run.scalar_subquery(), "from_ms": T0_MS + 1 + number, "to_ms": T0_MS + 2 + number}
            await connection.execute(allocations.insert().values(**held, **at))

    async def budget(self, number: int) -> None:
        one = Budget(new_id("bud"), self.tenant.project_id, f"key_{number}", None, Period.DAY, Money(1))
        async with self.context.database.transaction() as connection:
            await set_budget(connection, one, set_by=new_id("key"), now_ms=T0_MS)

    async def checkpoint(self, number: int) -> None:
        await add_checkpoint(self.context, self.tenant, self.job_id, self.run_id, number)

    async def checkpoint_file(self, number: int) -> None:
        async with self.context.database.transaction() as connection:
            await connection.execute(
                checkpoint_files.insert().values(checkpoint_id=self.checkpoint_id, path=f"é/{number:03}", size_bytes=1)
            )

    async def artifact(self, number: int) -> None:
        await add_artifact(self.context, self.job_id, self.run_id, f"{number:03} %2F?&#", "d" * 64)

    async def metric(self, number: int) -> None:
        await add_metric(self.context, self.job_id, number, loss=1.0)

    async def event(self, number: int) -> None:
        position = next(self.positions)
        async with self.context.database.transaction() as connection:
            await connection.execute(
                job_events.insert().values(
                    job_id=self.job_id, position=position, at_ms=T0_MS, kind="told", message="m", data={}
                )
            )

    async def log_line(self, number: int) -> None:
        sequence = next(self.positions) - 2
        await add_chunk(self.context, self.tenant, self.job_id, self.run_id, 1, sequence, f"needle {number}\n")

    async def offer(self, number: int) -> None:
        offer = Offer(
            provider=f"p{number}",
            offer_id=f"a:{number}",
            tier=Tier.MARKETPLACE,
            gpu_type="A100",
            gpu_count=1,
            gpu_memory_bytes=40 * GIB,
            cpus=8,
            memory_bytes=64 * GIB,
            price_per_hour=Money(1000 * (number % 3)),
            startup_ms=36_000,
            region="eu",
        )
        async with self.context.database.transaction() as connection:
            await replace_offers(connection, offer.provider, [offer], now_ms=self.context.clock.now_ms())


ADD: dict[str, Callable[[Shelf, int], Awaitable[None]]] = {
    "list_apps": Shelf.app,
    "list_artifacts": Shelf.artifact,
    "list_audit": Shelf.secret,
    "list_budgets": Shelf.budget,
    "list_calibrations": Shelf.calibration,
    "list_checkpoint_files": Shelf.checkpoint_file,
    "list_checkpoints": Shelf.checkpoint,
    "list_events": Shelf.event,
    "list_jobs": Shelf.job,
    "list_job_lines": Shelf.job,
    "list_keys": Shelf.key,
    "list_metrics": Shelf.metric,
    "list_model_names": Shelf.model_name,
    "list_nodes": Shelf.node,
    "list_offers": Shelf.offer,
    "list_pools": Shelf.pool,
    "list_projects": Shelf.project,
    "list_reservations": Shelf.reservation,
    "list_secrets": Shelf.secret,
    "list_sizes": Shelf.size,
    "list_ticks": Shelf.tick,
    "search_log": Shelf.log_line,
}


@pytest.fixture
async def shelf(api: FastAPI, context: ApiContext) -> AsyncIterator[Shelf]:
    async with make_tenant(api, context, ("admin", "owner")) as tenant:
        job_id = await add_job(context, tenant)
        run_id = await add_ended_run(context, tenant, job_id)
        checkpoint_id = await add_checkpoint(context, tenant, job_id, run_id, 1)
        yield Shelf(context, tenant, job_id, run_id, checkpoint_id, itertools.count(2))


async def page(shelf: Shelf, name: str, **query: Any) -> dict[str, Any]:
    answer = await shelf.tenant.http.get(url(shelf, name), params=query | more(name))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def url(shelf: Shelf, name: str) -> str:
    return LISTS[name][0].replace("{job_id}", shelf.job_id).replace("{checkpoint_id}", shelf.checkpoint_id)


def more(name: str) -> dict[str, str]:
    return {"q": "needle"} if name == "search_log" else {}


def names(data: list[dict[str, Any]]) -> list[Any]:
    """What tells the items of any list apart."""
    by = ("id", "path", "position", "step", "offer_id", "name", "line", "from_at")
    if data and "line" in data[0]:
        by = ("line",)
    return [next(item[field] for field in by if field in item) for item in data]


@each_list
async def test_it_takes_the_same_parameters(name: str) -> None:
    """`limit` from 1 to 1000 and `cursor`, both optional."""
    parameters = {parameter["name"]: parameter for parameter in LISTS[name][1]["parameters"]}
    limit = parameters["limit"]["schema"]
    assert (limit["type"], limit["minimum"], limit["maximum"]) == ("integer", 1, 1000)
    assert limit["default"] in (100, 200, 1000)
    assert parameters["cursor"]["schema"]["type"] == "string"
    assert not parameters["limit"]["required"]
    assert not parameters["cursor"]["required"]


@each_list
async def test_pages_neither_skip_nor_repeat_while_items_are_added(name: str, shelf: Shelf) -> None:
    """What was there when a walk began is met once, in order, whatever is added before and behind it meanwhile."""
    assert name in ADD, f"say here how an item of {name} is made"
    for number in (30, 32, 34, 36, 38):
        await ADD[name](shelf, number)
    before = names((await page(shelf, name, limit=1000))["data"])
    assert len(before) >= 5
    walked: list[Any] = []
    cursor: dict[str, Any] = {}
    for turn in range(3 * len(before) + 20):
        found = await page(shelf, name, limit=2, **cursor)
        assert len(found["data"]) <= 2
        walked += names(found["data"])
        if found["next_cursor"] is None:
            break
        cursor = {"cursor": found["next_cursor"]}
        if turn < 5:
            for number in (turn, 31 + 2 * turn, 90 + turn):
                await ADD[name](shelf, number)
    else:
        raise AssertionError(f"the walk does not end: {walked}")
    assert len(walked) == len(set(walked))
    assert [item for item in walked if item in before] == before
    after = names((await page(shelf, name, limit=1000))["data"])
    assert [item for item in after if item in walked] == walked


@each_list
async def test_a_page_that_is_exactly_full_is_the_last_one(name: str, shelf: Shelf) -> None:
    """No cursor leads to an empty page, except in a search, which does not know yet whether there is more."""
    for number in (30, 32):
        await ADD[name](shelf, number)
    count = len((await page(shelf, name, limit=1000))["data"])
    full = await page(shelf, name, limit=count)
    assert len(full["data"]) == count
    assert full["next_cursor"] is None or name == "search_log"
    assert (await page(shelf, name, limit=count - 1))["next_cursor"] is not None


@each_list
async def test_a_wrong_cursor_is_named(name: str, shelf: Shelf) -> None:
    """One of another kind of list, one that was altered, or nonsense: 422, with the cursor and what to do."""
    own = LISTS[name][1]["responses"]["200"]["content"]["application/json"]["example"]["next_cursor"]
    others = {cursor for cursor in CURSORS.values() if kind(cursor) != kind(own)}
    for wrong in sorted(others | {"nonsense", own + "!", "t.AA", "-1", "9" * 30, "²", "job_1"}):
        query = {"cursor": wrong} | more(name)
        error = error_of(await shelf.tenant.http.get(url(shelf, name), params=query), 422, "invalid_input")
        assert error["param"] == "cursor"
        assert "is not a next_cursor of this" in error["message"]
    for unfit in ("", "x" * 5000):
        query = {"cursor": unfit} | more(name)
        error = error_of(await shelf.tenant.http.get(url(shelf, name), params=query), 422, "invalid_input")
        assert error["param"] == "cursor"


def kind(cursor: str) -> str:
    """Texts, numbers, positions, or ids of one kind of thing."""
    if cursor.startswith("t."):
        return "text"
    return "number" if cursor.isdigit() else cursor.partition("_")[0]


async def test_a_cursor_and_a_position_say_the_same(shelf: Shelf) -> None:
    """Events go on behind `cursor` as behind `after`, metrics too; the cursor goes before."""
    for number in (1, 2, 3):
        await shelf.event(number)
        await shelf.metric(number)
    for name in ("list_events", "list_metrics"):
        assert await page(shelf, name, cursor=2) == await page(shelf, name, after=2)
        assert await page(shelf, name, cursor=2, after=0) == await page(shelf, name, after=2)
