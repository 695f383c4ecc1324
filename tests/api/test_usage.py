"""Usage and offers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, update

from allpass.wire.usage import Offer as WireOffer
from allpass.wire.usage import Usage
from app.api.context import ApiContext
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.model.run import RunState
from app.db.offers.listed import replace_offers
from app.db.tables import allocations, api_keys, jobs, ledger, nodes, pools, runs
from app.services.access.create_key import create_key
from tests.api.builders import add_job, add_run
from tests.api.conftest import Tenant, error_of
from tests.conftest import ManualClock
from tests.seeds import GIB, T0_MS, seed_node, seed_run

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
GROUPINGS = ("job", "app", "label:team", "key", "day", "provider", "tier", "size")
LINES = st.lists(
    st.tuples(
        st.sampled_from(["run", "boot", "idle"]),
        st.integers(0, 2),  # which job
        st.integers(0, 3 * DAY_MS),  # begins
        st.integers(0, HOUR_MS),  # lasts
        st.integers(0, 10**12),  # micro-dollars
    ),
    max_size=25,
)


async def used(tenant: Tenant, **query: Any) -> Usage:
    response = await tenant.http.get("/v1/usage", params=query)
    assert response.status_code == 200, response.text
    return Usage.model_validate(response.json())


async def fleet(context: ApiContext, tenant: Tenant) -> list[tuple[str, str, str]]:
    """Three jobs with their runs and nodes, of two tiers: (job, run, node)."""
    made = []
    for number in range(3):
        job_id = await add_job(context, tenant, name=f"n{number}", labels={"team": "a"} if number else {})
        tier = Tier.SERVERLESS if number == 0 else Tier.MARKETPLACE
        run_id, node_id = await add_run(context, tenant, job_id, tier=tier, node_gpu_count=4, gpu_indices=(0, 1))
        made.append((job_id, run_id, node_id))
    return made


async def charge(context: ApiContext, tenant: Tenant, place: tuple[str, str, str], payer: str, *numbers: int) -> None:
    job_id, run_id, node_id = place
    begins_ms, lasts_ms, micros = numbers
    async with context.database.transaction() as connection:
        await connection.execute(
            ledger.insert().values(
                project_id=tenant.project_id,
                node_id=node_id,
                run_id=run_id if payer == "run" else None,
                job_id=None if payer == "idle" else job_id,
                payer=payer,
                from_ms=T0_MS + begins_ms,
                to_ms=T0_MS + begins_ms + lasts_ms,
                amount_micros=micros,
            )
        )


@given(lines=LINES, cut_ms=st.integers(1, 3 * DAY_MS), limit=st.integers(1, 5))
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_groups_add_up_to_the_ledger_exactly(
    tenant: Tenant, context: ApiContext, lines: list[tuple[str, int, int, int, int]], cut_ms: int, limit: int
) -> None:
    """For every grouping: lines and rest are the total, that is the ledger's, and two adjoining times give it too."""
    async with context.database.transaction() as connection:
        await connection.execute(ledger.delete().where(ledger.c.project_id == tenant.project_id))
    places = await fleet(context, tenant)
    for payer, number, *numbers in lines:
        await charge(context, tenant, places[number], payer, *numbers)
    async with context.database.transaction() as connection:
        kept = select(func.coalesce(func.sum(ledger.c.amount_micros), 0)).where(
            ledger.c.project_id == tenant.project_id
        )
        total = int((await connection.execute(kept)).scalar_one())
    cut = f"{_iso(T0_MS + cut_ms)}"
    for grouping in GROUPINGS:
        whole = await used(tenant, group_by=grouping, limit=limit)
        assert whole.cost == total
        assert sum(line.cost for line in whole.lines) + whole.rest.cost == total
        assert sum(line.gpu_ms for line in whole.lines) + whole.rest.gpu_ms == whole.gpu_ms
        assert len(whole.lines) <= limit
        context_of = [await used(tenant, **{"group_by": grouping, name: cut}) for name in ("to", "from")]
        assert sum(part.cost for part in context_of) == total
    payers = Counter[str]()
    for line in (await used(tenant, group_by="provider")).lines:
        payers[line.payer] += line.cost
    expected = Counter[str]()
    for payer, *_, micros in lines:
        expected[payer] += micros
    assert payers == Counter({payer: cost for payer, cost in expected.items() if payer in payers})
    assert sum(payers.values()) == total


async def test_each_grouping_names_its_groups(tenant: Tenant, context: ApiContext) -> None:
    """Keys and names by kind; what boots and what idles are lines of their own, dearest first, days by date."""
    first, second, _ = places = await fleet(context, tenant)
    await charge(context, tenant, first, "run", 0, HOUR_MS, 5_000_000)
    await charge(context, tenant, second, "boot", 0, HOUR_MS, 2_000_000)
    await charge(context, tenant, second, "run", DAY_MS, HOUR_MS, 1_000_000)
    await charge(context, tenant, second, "idle", DAY_MS, HOUR_MS, 3_000_000)
    told = {g: [(x.key, x.payer, x.cost) for x in (await used(tenant, group_by=g)).lines] for g in GROUPINGS}
    assert told["job"] == [
        (first[0], "run", 5_000_000),
        (None, "idle", 3_000_000),
        (second[0], "boot", 2_000_000),
        (second[0], "run", 1_000_000),
    ]
    assert told["label:team"] == [
        (None, "run", 5_000_000),
        (None, "idle", 3_000_000),
        ("a", "boot", 2_000_000),
        ("a", "run", 1_000_000),
    ]
    assert {key for key, payer, _ in told["app"] if payer != "idle"} == {tenant.app_id}
    assert told["tier"][0] == ("serverless", "run", 5_000_000)
    assert {key for key, _, _ in told["provider"]} == {"local"}
    assert told["day"] == [
        ("2027-01-15", "boot", 2_000_000),
        ("2027-01-15", "run", 5_000_000),
        ("2027-01-16", "idle", 3_000_000),
        ("2027-01-16", "run", 1_000_000),
    ]
    by_job = {(line.key, line.payer): line for line in (await used(tenant)).lines}
    assert by_job[first[0], "run"].name == "n0"
    assert len(places) == 3


async def test_costs_by_the_key_that_submitted(tenant: Tenant, context: ApiContext) -> None:
    """By its name, also after it was revoked; idle time follows its job; a job whose key was not noted has none."""
    first, second, third = await fleet(context, tenant)
    async with context.database.transaction() as connection:
        await create_key(connection, tenant.project_id, "old", ("submit",), clock=context.clock, ids=context.ids)
        key = (api_keys.c.project_id == tenant.project_id) & (api_keys.c.name == "old")
        key_id = (await connection.execute(select(api_keys.c.id).where(key))).scalar_one()
        await connection.execute(update(api_keys).where(key).values(revoked_ms=T0_MS))
        await connection.execute(update(jobs).where(jobs.c.id.in_([first[0], second[0]])).values(key_id=key_id))
    for place, micros in ((first, 5), (second, 2), (third, 4)):
        await charge(context, tenant, place, "run", 0, HOUR_MS, micros)
    lines = (await used(tenant, group_by="key")).lines
    assert [(x.key, x.name, x.cost) for x in lines] == [(key_id, "old", 7), (None, None, 4)]


async def test_costs_of_a_job_by_the_number_of_its_gpus(tenant: Tenant, context: ApiContext) -> None:
    """Also where another has had as many. With what it did not hold, it is all that the job cost."""
    first, second, _ = await fleet(context, tenant)
    async with context.database.transaction() as connection:
        whole = update(allocations).where(allocations.c.run_id == first[1])
        await connection.execute(whole.values(from_ms=T0_MS, to_ms=T0_MS + HOUR_MS))
        four = {"run_id": first[1], "node_id": first[2], "gpu_indices": [0, 1, 2, 3], "from_ms": T0_MS + HOUR_MS}
        await connection.execute(allocations.insert().values(id="aloc_4", **four))
    await charge(context, tenant, first, "boot", 0, 0, 7)
    await charge(context, tenant, first, "run", 0, HOUR_MS, 1_000_001)
    await charge(context, tenant, first, "run", HOUR_MS, HOUR_MS, 2_000_002)
    await charge(context, tenant, second, "run", 0, HOUR_MS, 500)
    told = await used(tenant, group_by="size", job=first[0])
    assert [(one.key, one.payer, one.cost, one.gpu_ms // HOUR_MS) for one in told.lines] == [
        ("2", "run", 1_000_001, 2),
        ("4", "run", 2_000_002, 4),
        (None, "boot", 7, 0),
    ]
    assert told.cost == 3_000_010
    everybody = await used(tenant, group_by="size")
    assert [(one.key, one.cost) for one in everybody.lines] == [("2", 1_000_501), ("4", 2_000_002), (None, 7)]
    assert (await used(tenant, group_by="tier", job=second[0])).cost == 500


@pytest.mark.parametrize("job", ["job_01MCC5RM000000000009", "nothing", "x" * 100])
async def test_costs_of_a_job_that_is_not_there(tenant: Tenant, job: str) -> None:
    """Another project's neither."""
    response = await tenant.http.get("/v1/usage", params={"group_by": "size", "job": job})
    assert job in error_of(response, 404, "not_found")["message"]


async def leave(context: ApiContext, place: tuple[str, str, str], at_ms: int) -> None:
    """The run holds its GPUs no more."""
    async with context.database.transaction() as connection:
        ended = update(allocations).where(allocations.c.run_id == place[1]).values(to_ms=T0_MS + at_ms)
        await connection.execute(ended)


async def test_idle_time_is_the_job_s_after_which_it_came(tenant: Tenant, context: ApiContext) -> None:
    """Before any job, that of the one it was rented for; then of whoever left last; rented ahead, nobody's."""
    first, second, third = await fleet(context, tenant)
    later = (*second[:2], first[2])  # comes to the first one's machine
    async with context.database.transaction() as connection:
        await connection.execute(update(allocations).where(allocations.c.run_id == later[1]).values(node_id=later[2]))
        await connection.execute(update(nodes).where(nodes.c.id == first[2]).values(rented_for_job_id=third[0]))
    await leave(context, first, 1000)
    await leave(context, later, 3000)
    await charge(context, tenant, first, "idle", 0, 500, 1)  # ready before the job came
    await charge(context, tenant, first, "run", 500, 500, 100)
    await charge(context, tenant, first, "idle", 1000, 1000, 20)  # kept after the first
    await charge(context, tenant, later, "run", 2000, 1000, 200)
    await charge(context, tenant, first, "idle", 3000, 0, 300)  # after the second, with the rounding up
    await charge(context, tenant, third, "idle", 0, 10, 4000)
    whole = await used(tenant)
    assert {(x.key, x.payer): x.cost for x in whole.lines} == {
        (first[0], "run"): 100, (second[0], "run"): 200, (third[0], "idle"): 1, (first[0], "idle"): 20,
        (second[0], "idle"): 300, (None, "idle"): 4000,
    }  # fmt: skip
    assert (whole.idle_cost, whole.cost) == (4321, 4621)
    assert [(x.key, x.cost) for x in (await used(tenant, group_by="label:team")).lines if x.payer == "idle"] == [
        (None, 4020), ("a", 301),
    ]  # fmt: skip
    for place, idle in ((first, 20), (second, 300), (third, 1)):
        told = (await tenant.http.get(f"/v1/jobs/{place[0]}")).json()
        assert told["idle_cost"] == idle
    assert (await tenant.http.get("/v1/jobs")).json()["data"][0]["idle_cost"] is None


STAYS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 40), st.integers(0, 10)), max_size=8
)  # which job, on which machine, from when, for how long


@given(stays=STAYS, lines=LINES, rented=st.lists(st.integers(0, 3), min_size=3, max_size=3))
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_what_jobs_cost_with_their_idle_time_is_the_bill(
    tenant: Tenant,
    context: ApiContext,
    stays: list[tuple[int, int, int, int]],
    lines: list[tuple[str, int, int, int, int]],
    rented: list[int],
) -> None:
    """Whoever came and went, at once or one after the other: each micro-dollar is one job's or nobody's; a job says
    of itself what the sum says of it."""
    async with context.database.transaction() as connection:
        await connection.execute(ledger.delete().where(ledger.c.project_id == tenant.project_id))
    places = await fleet(context, tenant)
    await _have_stayed(context, tenant, places, stays, rented)
    for payer, number, begins_ms, lasts_ms, micros in lines:
        await charge(context, tenant, places[number], payer, begins_ms % 60, lasts_ms % 60, micros)
    whole = await used(tenant)
    assert whole.cost == sum(line[-1] for line in lines) == sum(line.cost for line in whole.lines)
    assert whole.idle_cost == sum(line[-1] for line in lines if line[0] == "idle")
    told = {line.key: line.cost for line in whole.lines if line.payer == "idle"}
    for job_id, *_ in places:
        assert (await tenant.http.get(f"/v1/jobs/{job_id}")).json()["idle_cost"] == (told.pop(job_id, 0) or None)
    assert set(told) <= {None}


async def _have_stayed(
    context: ApiContext,
    tenant: Tenant,
    places: list[tuple[str, str, str]],
    stays: list[tuple[int, int, int, int]],
    rented: list[int],
) -> None:
    jobs = [job_id for job_id, *_ in places]
    async with context.database.transaction() as connection:
        for (_, run_id, node_id), number in zip(places, rented, strict=True):
            await connection.execute(allocations.delete().where(allocations.c.run_id == run_id))
            owner = jobs[number] if number < len(jobs) else None
            await connection.execute(update(nodes).where(nodes.c.id == node_id).values(rented_for_job_id=owner))
        for epoch, (number, on, from_ms, lasts_ms) in enumerate(stays, start=2):
            run_id = await seed_run(
                connection, tenant.project_id, jobs[number], places[on][2], epoch=epoch, state=RunState.ENDED
            )
            span = {"from_ms": T0_MS + from_ms, "to_ms": T0_MS + from_ms + lasts_ms}
            await connection.execute(update(allocations).where(allocations.c.run_id == run_id).values(**span))


async def test_gpu_time_is_what_was_held(tenant: Tenant, context: ApiContext) -> None:
    """A run's GPUs, all of a booting machine, and of an idle stretch those that no run beside it held."""
    first, *_ = await fleet(context, tenant)
    await charge(context, tenant, first, "boot", 0, 1000, 1)
    await charge(context, tenant, first, "run", 1000, 500, 1)
    await charge(context, tenant, first, "idle", 1000, 500, 1)
    await charge(context, tenant, first, "idle", 1500, 100, 1)
    lines = {line.payer: line.gpu_ms for line in (await used(tenant, group_by="provider")).lines}
    assert lines == {"boot": 4 * 1000, "run": 2 * 500, "idle": 2 * 500 + 4 * 100}


async def test_gpus_that_two_runs_share_are_counted_once(tenant: Tenant, context: ApiContext) -> None:
    """Of runs in one process, each is told as much of the GPUs' time as it pays of their cost."""
    first, second, _ = await fleet(context, tenant)
    mate = (*second[:2], first[2])  # on the first one's node, in its process
    async with context.database.transaction() as connection:
        await connection.execute(update(allocations).where(allocations.c.run_id == mate[1]).values(node_id=mate[2]))
        await connection.execute(update(runs).where(runs.c.id == mate[1]).values(companion_of=first[1]))
    await charge(context, tenant, first, "run", 0, 1000, 3)
    await charge(context, tenant, mate, "run", 0, 1000, 1)
    await charge(context, tenant, first, "idle", 0, 1000, 4)
    await charge(context, tenant, mate, "run", 1000, 500, 2)  # alone
    told = {line.key: line.gpu_ms for line in (await used(tenant)).lines}
    assert told == {first[0]: 1500, mate[0]: 500 + 2 * 500, None: 2 * 1000}


async def test_a_sum_says_whether_it_still_grows(tenant: Tenant, context: ApiContext, clock: ManualClock) -> None:
    """While a machine's bill is open; not for a time that is over, and not once all bills are closed."""
    await fleet(context, tenant)
    assert ((await used(tenant)).so_far, (await used(tenant)).open_nodes) == (True, 3)
    assert not (await used(tenant, to=_iso(clock.now_ms()))).so_far
    async with context.database.transaction() as connection:
        await connection.execute(update(nodes).values(meter_closed=True))
    assert not (await used(tenant)).so_far


async def test_nobody_sees_the_usage_of_others(tenant: Tenant, stranger: Tenant, context: ApiContext) -> None:
    """A project's ledger is its own; an empty one is zero."""
    first, *_ = await fleet(context, tenant)
    await charge(context, tenant, first, "run", 0, 1, 7)
    empty = await used(stranger)
    assert (empty.cost, empty.gpu_ms, empty.lines, empty.rest.lines) == (0, 0, [], 0)


@pytest.mark.parametrize(
    "query",
    [{"group_by": "user"}, {"group_by": "label"}, {"group_by": "label:"}, {"from": "2027-01-15T00:00:00"}, {"to": "x"}],
)
async def test_questions_that_make_no_sense(tenant: Tenant, query: dict[str, str]) -> None:
    """The field is named, and what is accepted."""
    error = error_of(await tenant.http.get("/v1/usage", params=query), 422, "invalid_input")
    assert error["param"] in query
    error_of(await tenant.http.get("/v1/usage", params={"from": _iso(5), "to": _iso(5)}), 422, "invalid_input")


def _iso(at_ms: int) -> str:
    from app.api.views import instant

    return instant(at_ms).isoformat()


def offer(offer_id: str, price: int, **changes: Any) -> Offer:
    values: dict[str, Any] = {
        "provider": "vast",
        "tier": Tier.MARKETPLACE,
        "gpu_type": "A100",
        "gpu_count": 1,
        "gpu_memory_bytes": 40 * GIB,
        "cpus": 8,
        "memory_bytes": 64 * GIB,
        "startup_ms": 36_000,
        "region": "eu",
    }
    return Offer(offer_id=offer_id, price_per_hour=Money(price), **(values | changes))


async def seen(context: ApiContext, provider: str, *offers: Offer, at_ms: int) -> None:
    async with context.database.transaction() as connection:
        await replace_offers(connection, provider, offers, now_ms=at_ms)


async def listed(tenant: Tenant, **query: Any) -> list[str]:
    response = await tenant.http.get("/v1/offers", params=query)
    assert response.status_code == 200, response.text
    return [one["offer_id"] for one in response.json()["data"]]


async def test_offers_of_other_projects_are_not_there(
    tenant: Tenant, stranger: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """Neither what is kept for another one, nor machines of a pool that is for another one: its launcher does not know
    that."""
    async with context.database.transaction() as connection:
        for name, whose in (("theirs", [stranger.project_id]), ("ours", [tenant.project_id]), ("both", [])):
            pool = {"name": name, "launcher": "slurm", "price_micros": 0, "projects": whose, "created_ms": 1}
            await connection.execute(pools.insert().values(**pool))
    own = {"tier": Tier.OWN, "provider": "slurm"}
    shapes = (offer(f"in-{name}", 1_000_000, region=name, **own) for name in ("theirs", "ours", "both", "none"))
    kept = offer("kept", 1_000_000, region="none", projects=(stranger.project_id,), **own)
    await seen(context, "slurm", *shapes, kept, at_ms=clock.now_ms())
    assert sorted(await listed(tenant)) == ["in-both", "in-none", "in-ours"]
    assert sorted(await listed(stranger)) == ["in-both", "in-none", "in-theirs", "kept"]


async def test_offers_are_listed_cheapest_per_gpu_first(
    tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """With their price per GPU (rounded up), start-up time and when they were seen; filtered; in pages."""
    now_ms = clock.now_ms()
    four = offer("four", 2_000_001, gpu_count=4)
    cold = offer("a:b", 900_000, provider="modal", tier=Tier.SERVERLESS, gpu_type="H100")
    await seen(context, "vast", offer("one", 700_000), four, at_ms=now_ms)
    await seen(context, "modal", cold, offer("same", 700_000, provider="modal"), at_ms=now_ms)
    assert await listed(tenant) == ["four", "same", "one", "a:b"]
    assert await listed(tenant, gpu_type="h100") == ["a:b"]
    assert await listed(tenant, tier="serverless") == ["a:b"]
    assert await listed(tenant, provider="vast") == ["four", "one"]
    assert await listed(tenant, max_price=700_000) == ["four", "same", "one"]
    assert await listed(tenant, max_price=700_000, gpu_type="A100", provider="modal") == ["same"]
    first = (await tenant.http.get("/v1/offers", params={"limit": 1})).json()
    told = WireOffer.model_validate(first["data"][0])
    assert (told.price_per_gpu_hour, told.price_per_hour, told.gpu_count) == (500_001, 2_000_001, 4)
    assert told.cpu_architecture == "x86_64"
    assert (told.startup_ms, told.region, told.seen_at.timestamp() * 1000) == (36_000, "eu", now_ms)
    walked, cursor = ["four"], first["next_cursor"]
    while cursor:
        response = await tenant.http.get("/v1/offers", params={"limit": 1, "cursor": cursor})
        assert response.status_code == 200, response.text
        page = response.json()
        walked += [one["offer_id"] for one in page["data"]]
        cursor = page["next_cursor"]
    assert walked == ["four", "same", "one", "a:b"]


async def test_an_offer_says_how_long_such_machines_live(
    tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """As far as it was learned here: of machines that have not failed nothing is said."""
    await seen(
        context, "vast", offer("one", 700_000, mean_life_ms=7_200_000), offer("two", 800_000), at_ms=clock.now_ms()
    )
    told = (await tenant.http.get("/v1/offers")).json()["data"]
    assert [one["mean_life_ms"] for one in told] == [7_200_000, None]


async def test_offers_that_were_not_seen_again_are_gone(
    tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """What a provider no longer tells is not offered, though nobody removed it."""
    await seen(context, "vast", offer("one", 700_000), at_ms=clock.now_ms())
    clock.advance(s=context.settings.prices_s * 5)
    assert await listed(tenant) == ["one"]
    clock.advance(s=1)
    assert await listed(tenant) == []


@pytest.mark.parametrize(
    "query", [{"tier": "cheap"}, {"max_price": -1}, {"cursor": "x"}, {"cursor": "1:"}, {"cursor": ":a:b"}]
)
async def test_offer_questions_that_make_no_sense(tenant: Tenant, query: dict[str, Any]) -> None:
    """Each names its field."""
    assert error_of(await tenant.http.get("/v1/offers", params=query), 422, "invalid_input")["param"] in query


async def test_jobs_are_listed_by_name_and_time(tenant: Tenant, context: ApiContext) -> None:
    """A part of the name in any case, taken literally; times from an instant on and before one; with other filters."""
    old = await add_job(context, tenant, name="Fine-tune 100%", submitted_ms=T0_MS, labels={"team": "a"})
    new = await add_job(context, tenant, name="eval", submitted_ms=T0_MS + 1000)

    async def jobs(**query: Any) -> list[str]:
        response = await tenant.http.get("/v1/jobs", params=query)
        assert response.status_code == 200, response.text
        return [one["id"] for one in response.json()["data"]]

    assert await jobs(name="TUNE") == [old]
    assert await jobs(name="0%") == [old]
    assert await jobs(name="e_al") == []
    assert await jobs(submitted_after=_iso(T0_MS + 1)) == [new]
    assert await jobs(submitted_before=_iso(T0_MS + 1000)) == [old]
    assert await jobs(submitted_after=_iso(T0_MS), submitted_before=_iso(T0_MS + 1001)) == [new, old]
    assert await jobs(submitted_after=_iso(T0_MS), label="team:a", app=tenant.app_id, status="queued") == [old]
    error_of(await tenant.http.get("/v1/jobs", params={"submitted_after": "2027-01-01"}), 422, "invalid_input")


async def test_a_node_without_lines_costs_nothing(tenant: Tenant, context: ApiContext) -> None:
    """Being rented is not being charged: only the ledger counts."""
    async with context.database.transaction() as connection:
        await seed_node(connection, tenant.project_id)
    assert (await used(tenant)).cost == 0
