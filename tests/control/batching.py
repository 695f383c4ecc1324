"""A small crowded world and a plan about it, drawn at random, and all that enacting it wrote.

Everything happens in one transaction of one connection, which is taken back: each way of enacting a plan begins with
the very same rows, and makes its ids from the same numbers.
"""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from app.control.context import ControlContext
from app.core.model.budget import Budget, Period
from app.core.model.job import Resources
from app.core.model.merge import MergeMode
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.model.plan import Action, Assign, Demote, Merge, Provision, Release, Start
from app.core.model.run import RunPurpose
from app.db import tables as t
from app.db.money.budgets import set_budget
from app.db.money.limits import DAY_MICROS, MACHINES, change_limits
from app.db.tables import merges, metadata
from tests.conftest import CountingIds, ManualClock
from tests.control.fake_provider import make_offer
from tests.seeds import new_id, resources_json, seed_app, seed_job, seed_node, seed_project, seed_run

REAL = "vast"  # this provider asks for real money
_KEYS = ("key_a", "key_b", None)
_STATES = ("queued",) * 9 + ("waiting", "running", "running", "starting", "paused", "cancelled")
_NODE_STATES = ("ready",) * 9 + ("booting", "draining", "terminating")
_PLACED = ("running", "starting")
# A machine costs at least 1, 200, 584, 12,000 or 35,000 of these: a budget is passed by the first, or by a later one.
_MICROS = (0, 1, 2, 250, 900, 13_000, 40_000, 10**9)
_WAKES = (
    "CREATE TABLE wakes (channel text, payload text)",
    """CREATE FUNCTION public.pg_notify(text, text) RETURNS void LANGUAGE sql
       AS 'INSERT INTO public.wakes VALUES ($1, $2)'""",
    "SET LOCAL search_path TO public, pg_catalog",
)
_MADE = re.compile(r"(node|run|aloc|op|merge)_[0-9A-Z]{20}")
_NOT_COMPARED = {"leader_leases", "changed_rows"}  # hold the time of the database's own clock

Enacting = Callable[[AsyncConnection], Awaitable[Sequence[Any]]]


@dataclass(frozen=True)
class ToldLayout:
    """As much of a layout as enacting reads."""

    number: int

    def in_words(self) -> str:
        return f"laid out in way {self.number}"

    def as_json(self) -> dict[str, Any]:
        return {"way": self.number}


@dataclass
class Ground:
    """What there is. `runs`: by job, of those that have one."""

    projects: list[str] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    runs: dict[str, str] = field(default_factory=dict)
    free: dict[str, int] = field(default_factory=dict)  # GPUs of each node that no run holds
    versions: dict[str, int] = field(default_factory=dict)


@asynccontextmanager
async def taken_back(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A transaction of which nothing stays, whose wake-ups are rows of `wakes`."""
    async with engine.connect() as connection, connection.begin() as transaction:
        for statement in _WAKES:
            await connection.execute(text(statement))
        yield connection
        await transaction.rollback()


async def lay(connection: AsyncConnection, chance: random.Random, clock: ManualClock) -> Ground:
    """Jobs, of which some run, some are merged and some are over, nodes with GPUs that are held, limits and budgets."""
    ground = Ground([await seed_project(connection) for _ in range(2)])
    apps = [await seed_app(connection, one) for one in ground.projects]
    for _ in range(2):
        gpus = chance.randint(1, 4)
        node_id = await seed_node(
            connection, ground.projects[0], provider="cloud", gpu_count=gpus, state=chance.choice(_NODE_STATES),
            idle_since_ms=chance.choice((None, clock.now_ms())),
        )  # fmt: skip
        ground.nodes.append(node_id)
        ground.free[node_id] = gpus
    for _ in range(chance.randint(4, 10)):
        await _lay_job(connection, chance, ground, apps)
    await _lay_merges(connection, chance, ground, clock)
    await _lay_money(connection, chance, ground, clock)
    for table in (t.jobs, t.runs, t.nodes):
        rows = await connection.execute(select(table.c.id, table.c.row_version))
        ground.versions |= {row.id: row.row_version for row in rows}
    return ground


async def _lay_job(
    connection: AsyncConnection, chance: random.Random, ground: Ground, apps: Sequence[tuple[str, str]]
) -> None:
    whose = chance.choice((0, 0, 1))
    state, epoch = chance.choice(_STATES), chance.randint(0, 3)
    image = chance.choice((None, None, "my/image:1"))
    job_id = await seed_job(
        connection, ground.projects[whose], apps[whose], state=state, epoch=epoch, key_id=chance.choice(_KEYS),
        resources=resources_json(Resources(base_image=image)), plan=chance.choice((None, "needs 9 GB")),
        wait_reason=chance.choice((None, "waits")), event_position=chance.choice((0, 4)),
        pause_reason=chance.choice((None, None, "user")),
    )  # fmt: skip
    ground.jobs.append(job_id)
    place = next((node_id for node_id in ground.nodes if ground.free[node_id]), None)
    if state in _PLACED and place is not None:
        ground.free[place] -= 1
        run = {"epoch": epoch, "gpu_indices": (ground.free[place],), "state": state.replace("starting", "assigned")}
        ground.runs[job_id] = await seed_run(connection, ground.projects[whose], job_id, place, **run)
    elif chance.random() < 0.3:  # what it had before; of a move that was given up, with an epoch above its own
        ended = {"state": "ended", "epoch": epoch + 2, "gpu_indices": ()}
        await seed_run(connection, ground.projects[whose], job_id, ground.nodes[0], **ended)


async def _lay_merges(connection: AsyncConnection, chance: random.Random, ground: Ground, clock: ManualClock) -> None:
    some = chance.sample(ground.jobs, len(ground.jobs) // 2 * 2)
    for lead, companion in list(zip(some[::2], some[1::2], strict=True))[: chance.randint(0, 2)]:
        row = {"id": new_id("merge"), "project_id": ground.projects[0], "lead_job_id": lead}
        row |= {"companion_job_id": companion, "mode": chance.choice(list(MergeMode)), "gpus": 1, "state": "open"}
        row |= {"score": 0.9, "gain": 0.2, "begun_ms": clock.now_ms(), "reason": "they help each other"}
        await connection.execute(merges.insert().values(row))


async def _lay_money(connection: AsyncConnection, chance: random.Random, ground: Ground, clock: ManualClock) -> None:
    now_ms = clock.now_ms()
    limits = {MACHINES: chance.choice((0, 1, 2, 3, None)), DAY_MICROS: chance.choice((*_MICROS, None))}
    await change_limits(connection, limits, now_ms=now_ms)
    for number in range(chance.randint(0, 3)):
        budget = Budget(
            f"bud_{number}",
            chance.choice((None, *ground.projects)),
            chance.choice(_KEYS),
            chance.choice((None, "cloud", REAL)),
            chance.choice(list(Period)),
            Money(chance.choice(_MICROS)),
        )
        await set_budget(connection, budget, set_by="key_a", now_ms=now_ms)


def plan_about(chance: random.Random, ground: Ground) -> list[Action]:
    """An action for each job, and for some a second one: many are in each other's way, or have come too late."""
    turns = chance.sample(ground.jobs, len(ground.jobs))
    others = [chance.choice((*ground.jobs, "job_gone")) for _ in range(chance.randint(0, 5))]
    return [_action(chance, ground, job_id) for job_id in chance.sample(turns + others, len(turns + others))]


def layouts_for(chance: random.Random, ground: Ground) -> dict[str, Any]:
    return {job_id: ToldLayout(number) for number, job_id in enumerate(ground.jobs) if chance.random() < 0.4}


def _action(chance: random.Random, ground: Ground, job_id: str) -> Action:
    node_id = chance.choice((*ground.nodes, "node_gone")) if chance.random() < 0.1 else chance.choice(ground.nodes)
    why, none = f"reason {chance.randint(0, 99)}", ()
    purpose = chance.choice((RunPurpose.TRAIN, RunPurpose.TRAIN, RunPurpose.PROFILE))
    action: Action
    match chance.choice("SSSSSSAAAAAAPPPPRDM"):
        case "S":
            action = Start(job_id, _offer(chance, Tier.SERVERLESS), why, none, purpose=purpose)
        case "A":
            gpus = tuple(sorted(chance.sample(range(3), chance.choice((1, 1, 1, 2)))))
            action = Assign(job_id, node_id, gpus, why, none, purpose=purpose)
        case "P":
            ahead, tier = chance.random() < 0.3, chance.choice((Tier.MARKETPLACE, Tier.CONVENTIONAL))
            project_id = chance.choice((ground.projects[0], *ground.projects))
            action = Provision(project_id, job_id, _offer(chance, tier), why, none, ahead=ahead)
        case "R":
            action = Release(node_id, why, none)
        case "D":
            action = Demote(job_id, ground.runs.get(job_id, "run_gone"), why, none)
        case _:
            other = chance.choice([one for one in ground.jobs if one != job_id])
            action = Merge(job_id, other, MergeMode.TOGETHER, 1, 0.9, 0.2, why, none)
    return replace(action, versions=_versions(chance, ground, action))


def _offer(chance: random.Random, tier: Tier) -> Offer:
    provider = chance.choice(("cloud",) * 5 + (REAL,) * 5 + ("gone",))
    price, gpus = chance.choice(("0.72", "2.10")), chance.choice((1, 1, 2))
    return make_offer(provider, f"{provider}-{tier}", tier, price, startup_ms=2_000, gpus=gpus)


def _versions(chance: random.Random, ground: Ground, action: Action) -> tuple[tuple[str, int], ...]:
    """Mostly those that there are; sometimes none, or one that has moved on."""
    named = [getattr(action, name, None) for name in ("job_id", "for_job_id", "node_id")]
    stale = chance.random() < 0.05
    found = [(row_id, ground.versions.get(row_id, 1) + stale) for row_id in named if row_id is not None]
    return tuple(sorted(found)) if chance.random() < 0.7 else ()


async def written(
    connection: AsyncConnection, context: ControlContext, clock: ManualClock, enacting: Enacting
) -> tuple[list[Any], dict[str, list[str]]]:
    """What was dropped and why, and every row that there is then, with whom was woken; it is taken back."""
    object.__setattr__(context, "ids", CountingIds(clock))
    async with connection.begin_nested() as savepoint:
        dropped = [(one.action, one.why, one.error is None) for one in await enacting(connection)]
        rows = {}
        for table in metadata.sorted_tables:
            if table.name not in _NOT_COMPARED:
                found = await connection.execute(text(f"SELECT t::text FROM {table.name} AS t ORDER BY 1"))
                rows[table.name] = list(found.scalars())
        woken = await connection.execute(text("SELECT channel, payload FROM wakes"))
        names = {f"{channel} {name}" for channel, payload in woken for name in payload.split(",")}
        rows["wakes"] = sorted(names)
        await savepoint.rollback()
    return dropped, rows


def with_ranks(rows: dict[str, list[str]]) -> dict[str, list[str]]:
    """With ids as numbers by their order: of two ways, one may have used up some that it took back."""
    made = sorted({found[0] for lines in rows.values() for line in lines for found in _MADE.finditer(line)})
    rank = {row_id: f"{row_id.partition('_')[0]}_{number}" for number, row_id in enumerate(made)}
    return {name: [_MADE.sub(lambda found: rank[found[0]], line) for line in lines] for name, lines in rows.items()}
