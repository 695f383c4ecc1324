"""Budgets in the database: sums that the ledger keeps by itself, whoever writes it, and what counts against each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.budgets import begins_ms
from app.core.calendar import DAY_MS, HOUR_MS, on_the_calendar_ms
from app.core.model.budget import Budget, Period
from app.core.model.money import Money
from app.db.decisions.enactment import jobs_to_place
from app.db.engine import Database, make_engine
from app.db.migrate import downgrade, upgrade
from app.db.money.budgets import (
    INSTALLATION,
    budgets_now,
    count_budgets,
    delete_budget,
    find_budget,
    list_budgets,
    set_budget,
    unfinished_jobs_of,
)
from app.db.tables import budgets, ledger, nodes, spending
from app.db.unreadable import RowReading
from tests.seeds import T0_MS, new_id, seed_job, seed_node, seed_project

MONTH_END_MS = int(datetime(2027, 2, 1, tzinfo=UTC).timestamp() * 1000)
# Around ends of hours, days and months, and where a clock was off.
moments = st.one_of(
    st.sampled_from([T0_MS, MONTH_END_MS, MONTH_END_MS - HOUR_MS, MONTH_END_MS - DAY_MS, 0, 2**61]),
    st.integers(T0_MS, T0_MS + 100 * DAY_MS),
)
lines = st.tuples(
    st.integers(0, 1),  # project
    st.integers(0, 2),  # job: none, or of which key
    st.integers(0, 1),  # provider
    moments,
    st.integers(0, 2 * DAY_MS),  # how long
    st.one_of(st.integers(0, 10**7), st.just(2**62)),
)
stories = st.lists(st.lists(lines, min_size=1, max_size=5), max_size=5)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Database]:
    """For a test that runs a loop of its own for each example."""
    database = Database(make_engine(url, pool_size=4, timeout_s=30))
    try:
        yield database
    finally:
        await database.close()


def a_line(project_id: str, node_id: str, job_id: str | None, from_ms: int, ms: int, micros: int) -> dict[str, Any]:
    times = {"from_ms": from_ms, "to_ms": from_ms + ms, "amount_micros": micros}
    return {"project_id": project_id, "node_id": node_id, "job_id": job_id, "payer": "boot", **times}


async def sums(connection: AsyncConnection) -> Counter[tuple[Any, ...]]:
    """What is in `spending`, but for what is nothing."""
    rows = await connection.execute(select(spending))
    found: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        found[row.period, row.begins_ms, row.project_id, row.key_id, row.provider] += int(row.amount_micros)
    return +found


async def by_hand(connection: AsyncConnection, keys: dict[str | None, str]) -> Counter[tuple[Any, ...]]:
    """The same, from every line of the ledger."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in await connection.execute(select(ledger, nodes.c.provider).join(nodes, nodes.c.id == ledger.c.node_id)):
        last_ms = on_the_calendar_ms(max(row.from_ms, row.to_ms - 1))
        for period in Period:
            whose = row.project_id, keys[row.job_id], row.provider
            found[(period, begins_ms(period, last_ms), *whose)] += row.amount_micros
    return +found


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story=stories, data=st.data())
def test_what_is_spent_is_the_sum_of_the_ledger(
    database_url: str, story: list[list[tuple[int, ...]]], data: st.DataObject
) -> None:
    """To the micro-dollar, whatever is written together, whenever it ends, and where lines are corrected or taken out
    by hand; for each period, project, key and provider."""

    async def play() -> None:
        async with connected(database_url) as database, database.transaction() as connection:
            await connection.execute(delete(ledger))
            assert await sums(connection) == Counter()
            projects = [await seed_project(connection) for _ in range(2)]
            keys = {None: ""} | {
                await seed_job(connection, projects[0], key_id=key): key or "" for key in ("key_1", "key_2", None)
            }
            places = {
                (project, provider): await seed_node(connection, project, provider=provider)
                for project in projects
                for provider in ("vast", "modal")
            }
            jobs = [None, *list(keys)[1:3]]
            for batch in story:
                rows = []
                for project, job, provider, from_ms, ms, micros in batch:
                    node_id = places[projects[project], ("vast", "modal")[provider]]
                    rows.append(a_line(projects[project], node_id, jobs[job], from_ms, ms, micros))
                await connection.execute(insert(ledger).values(rows))
            assert await sums(connection) == await by_hand(connection, keys)
            ids = list((await connection.execute(select(ledger.c.id))).scalars())
            if ids:
                one = data.draw(st.sampled_from(ids))
                await connection.execute(
                    update(ledger).where(ledger.c.id == one).values(amount_micros=7, to_ms=MONTH_END_MS, from_ms=T0_MS)
                )
                await connection.execute(delete(ledger).where(ledger.c.id == data.draw(st.sampled_from(ids))))
            assert await sums(connection) == await by_hand(connection, keys)

    asyncio.run(play())


async def test_a_correction_that_is_negative_is_taken_off(database: Database) -> None:
    """The ledger refuses such lines today; a release that lets them in is counted right by this one's sums."""
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        node_id = await seed_node(connection, project_id, state="terminated", meter_closed=True)
        await connection.execute(text("ALTER TABLE ledger DROP CONSTRAINT ck_ledger_amount_not_negative"))
        rows = [a_line(project_id, node_id, None, T0_MS, 1000, micros) for micros in (500, -200, -400)]
        for row in rows:
            await connection.execute(insert(ledger).values(row))
        found = (await connection.execute(select(spending.c.amount_micros))).scalars().all()
        await set_budget(connection, a_budget(project_id), set_by="key_1", now_ms=T0_MS)
        (now,) = await budgets_now(connection, RowReading(), now_ms=T0_MS)
    assert found == [Decimal(-100)] * 3
    assert (now.left, now.used_up) == (Money(1100), False)


async def test_two_that_write_the_ledger_at_once_wait_for_each_other(database: Database) -> None:
    """However the lines of each are ordered: the sums are locked in one order. Nothing is lost."""
    async with database.transaction() as connection:
        projects = [await seed_project(connection) for _ in range(4)]
        places = [await seed_node(connection, project_id) for project_id in projects]

    async def write(order: int) -> None:
        for _ in range(20):
            async with database.transaction() as connection:
                pairs = list(zip(projects, places, strict=True))[::order]
                rows = [a_line(project_id, node_id, None, T0_MS, 10, 1) for project_id, node_id in pairs]
                await connection.execute(insert(ledger).values(rows))

    await asyncio.gather(write(1), write(-1), write(1), write(-1))
    async with database.transaction() as connection:
        assert set((await sums(connection)).values()) == {80}


# What the migration finds


def test_what_was_spent_before_the_upgrade_in_this_month_counts(database_url: str) -> None:
    """So a budget that is set right after it is right; the way back takes the sums away and leaves the ledger."""
    month_ms = begins_ms(Period.MONTH, int(datetime.now(UTC).timestamp() * 1000))

    async def fill() -> None:
        async with connected(database_url) as database, database.transaction() as connection:
            project_id = await seed_project(connection)
            node_id = await seed_node(connection, project_id)
            rows = [a_line(project_id, node_id, None, month_ms + at, 10, 1) for at in (-40 * DAY_MS, 0, 5)]
            await connection.execute(insert(ledger).values(rows))

    async def look() -> tuple[list[int], int]:
        async with connected(database_url) as database, database.transaction() as connection:
            found = await connection.execute(
                select(spending.c.amount_micros).where(spending.c.period == "month", spending.c.begins_ms == month_ms)
            )
            count = (await connection.execute(text("SELECT count(*) FROM ledger"))).scalar_one()
            return [int(micros) for micros in found.scalars()], count

    asyncio.run(fill())
    before = asyncio.run(look())
    downgrade(database_url, "0028")
    upgrade(database_url, "0029")
    assert asyncio.run(look()) == before == ([2], 3)


# Budgets


def a_budget(project_id: str | None, **changes: Any) -> Budget:
    given = {"key_id": None, "provider": None, "period": Period.DAY, "amount": Money(1000)} | changes
    return Budget(budget_id=new_id("bud"), project_id=project_id, **given)


async def test_only_what_a_budget_names_counts(database: Database) -> None:
    """By project, key, provider and period; another day's lines do not, nor does what machines cost that are gone."""
    async with database.transaction() as connection:
        ours, theirs = [await seed_project(connection) for _ in range(2)]
        mine, yours = [await seed_job(connection, ours, key_id=key) for key in ("key_1", "key_2")]
        vast, modal = [
            await seed_node(connection, ours, provider=name, state="terminated", meter_closed=True)
            for name in ("vast", "modal")
        ]
        other = await seed_node(connection, theirs, provider="vast", state="terminated", meter_closed=True)
        rows = [
            a_line(ours, vast, mine, T0_MS, 10, 1),
            a_line(ours, modal, mine, T0_MS, 10, 10),
            a_line(ours, vast, yours, T0_MS, 10, 100),
            a_line(ours, vast, None, T0_MS, 10, 1000),
            a_line(theirs, other, None, T0_MS, 10, 10_000),
            a_line(ours, vast, mine, T0_MS - DAY_MS, 10, 100_000),
            a_line(ours, vast, mine, T0_MS - HOUR_MS, 10, 1_000_000),
        ]
        await connection.execute(insert(ledger).values(rows))
        asked: dict[str, Budget] = {
            "of the project": a_budget(ours),
            "of a key": a_budget(ours, key_id="key_1"),
            "of a key at a provider": a_budget(ours, key_id="key_1", provider="vast"),
            "at a provider": a_budget(ours, provider="vast"),
            "of the installation": a_budget(None),
            "of an hour": a_budget(ours, period=Period.HOUR),
            "of a month": a_budget(ours, period=Period.MONTH),
        }
        ids = {name: await set_budget(connection, one, set_by="key_1", now_ms=T0_MS) for name, one in asked.items()}
        found = {
            one.budget.budget_id: one.spent.micros for one in await budgets_now(connection, RowReading(), now_ms=T0_MS)
        }
        seen = {
            one.standing.budget.budget_id
            for one in await list_budgets(connection, [ours], before=None, limit=99, now_ms=T0_MS)
        }
        theirs_now = await budgets_now(connection, RowReading(), now_ms=T0_MS, project_ids=[theirs])
    assert {name: found[budget_id] for name, budget_id in ids.items()} == {
        "of the project": 1_001_111,
        "of a key": 1_000_011,
        "of a key at a provider": 1_000_001,
        "at a provider": 1_001_101,
        "of the installation": 1_011_111,
        "of an hour": 1111,
        "of a month": 1_101_111,
    }
    assert seen == set(ids.values()) - {ids["of the installation"]}
    assert [one.budget.budget_id for one in theirs_now] == [ids["of the installation"]]


async def test_of_two_replicas_that_set_the_same_budget_at_once_one_comes_after_the_other(database: Database) -> None:
    """There is one row in the end, with the id of the first and the amount of either; both are answered."""

    async def put(micros: int) -> str:
        async with database.transaction() as connection:
            one = a_budget("proj_raced", amount=Money(micros))
            return await set_budget(connection, one, set_by="key_1", now_ms=T0_MS)

    ids = await asyncio.gather(*(put(micros) for micros in (1, 2, 3, 4)))
    async with database.transaction() as connection:
        assert await count_budgets(connection, "proj_raced") == len(set(ids)) == 1
        row = await find_budget(connection, ids[0], now_ms=T0_MS)
        assert row is not None
        assert row.standing.budget.amount.micros in (1, 2, 3, 4)
        await delete_budget(connection, ids[0])
        assert await find_budget(connection, ids[0], now_ms=T0_MS) is None


async def test_what_a_newer_release_wrote_is_left_out_and_told(database: Database) -> None:
    """A period that nobody here knows, an amount that is none, a machine that no bill can be made of: each alone."""
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        good = await set_budget(connection, a_budget(project_id), set_by="key_1", now_ms=T0_MS)
        for column, value in (("period", "fortnight"), ("amount_micros", -1)):
            bad = await set_budget(connection, a_budget(project_id, provider=column), set_by="k", now_ms=T0_MS)
            await connection.execute(update(budgets).where(budgets.c.id == bad).values({column: value}))
        await seed_node(connection, project_id, billing_unit_ms=0)
        reading = RowReading()
        found = await budgets_now(connection, reading, now_ms=T0_MS)
        listed = await list_budgets(connection, [project_id], before=None, limit=9, now_ms=T0_MS)
        assert await count_budgets(connection, INSTALLATION) == 0
    assert [one.budget.budget_id for one in found] == [good]
    assert [one.standing.budget.budget_id for one in listed] == [good]
    assert Counter(table for table, _ in reading.unread) == {"budgets": 2, "nodes": 1}


async def test_jobs_are_found_by_their_keys(database: Database) -> None:
    """One that an older release has submitted has none; one that is over counts against nothing any more."""
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        told, untold = [await seed_job(connection, project_id, key_id=key) for key in ("key_1", None)]
        await seed_job(connection, project_id, key_id="key_1", state="succeeded")
        await seed_job(connection, project_id, key_id="key_2")
        assert await unfinished_jobs_of(connection, {"key_1"}) == {told: "key_1"}
        assert await unfinished_jobs_of(connection, ()) == {}
        placed = await jobs_to_place(connection, [told, untold, "job_none"])
    assert {job_id: job.key_id for job_id, job in placed.items()} == {told: "key_1", untold: None}
