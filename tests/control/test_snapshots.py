"""What a decision sees: everything that matters, at one moment, and nothing stale."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.control.back_off import back_off_ms
from app.control.prices import refresh_offers
from app.core.model.job import NO_AFFINITY, Affinity
from app.core.model.node import NodeState, Tier
from app.core.model.snapshot import Snapshot
from app.db.decisions.changed_rows import Looked, has_news, look
from app.db.decisions.job_views import AVOID_OFFER_MS
from app.db.decisions.snapshots import freeze, read_snapshot
from app.db.offers.listed import replace_offers
from app.errors import Transient
from app.services.kit.node_tokens import TokenMint
from tests.control.fake_provider import make_offer
from tests.control.world import World
from tests.seeds import seed_node


async def _see(world: World, *, max_age_ms: int = 300_000) -> Snapshot:
    async with world.database.transaction() as connection:
        await freeze(connection)
        traits = world.control.context.traits()
        return await read_snapshot(connection, world.clock.now_ms(), traits, max_age_ms)


async def test_a_snapshot_shows_the_unfinished_and_leaves_out_what_is_over(world: World) -> None:
    """A running job with its run and node; after its end none of them."""
    job_id, node_id = await world.run_on_serverless()
    await world.submit(state="succeeded")
    seen = await _see(world)
    assert [job.job_id for job in seen.jobs] == [job_id]
    (run,) = seen.runs
    assert (run.job_ids, run.node_id, run.running_since_ms) == ((job_id,), node_id, world.clock.now_ms())
    (node,) = seen.nodes
    assert (node.node_id, node.free_gpus) == (node_id, ())
    await world.report(node_id, "exited", exit_code=0)
    await world.work()
    seen = await _see(world)
    assert (seen.jobs, seen.runs, seen.nodes) == ((), (), ())


async def test_every_tuple_is_sorted(world: World) -> None:
    """The order is that of the ids, whatever order rows were written in."""
    for number in (3, 1, 2):
        await world.submit(id=f"job_0000000000000000000{number}")
    seen = await _see(world)
    assert [job.job_id[-1] for job in seen.jobs] == ["1", "2", "3"]
    assert list(seen.offers) == sorted(seen.offers, key=lambda offer: offer.key)
    assert list(seen.traits) == sorted(seen.traits, key=lambda trait: (trait.provider, trait.tier))


async def test_a_frozen_transaction_does_not_see_what_commits_meanwhile(world: World) -> None:
    """All queries of one snapshot belong to one moment."""
    async with world.database.transaction() as connection:
        await freeze(connection)
        before = await look(connection)
        await world.submit()
        assert not await has_news(connection, before)
        seen = await read_snapshot(connection, world.clock.now_ms(), (), 0)
        assert seen.jobs == ()


async def test_news_is_what_a_decision_depends_on_and_nothing_else(world: World) -> None:
    """A new job and a change of state are news; progress and heartbeats are not."""

    async def moment() -> Looked:
        async with world.database.transaction() as connection:
            return await look(connection)

    async def is_news(since: Looked) -> bool:
        async with world.database.transaction() as connection:
            return await has_news(connection, since)

    empty = await moment()
    assert not await is_news(empty)
    job_id, node_id = await world.run_on_serverless()
    assert await is_news(empty)
    running = await moment()
    await world.set_job(job_id, step=12)
    await world.beat(node_id)
    assert not await is_news(running)
    await world.report(node_id, "exited", exit_code=0)
    assert await is_news(running)


async def test_offers_come_and_go_with_the_listing_and_with_age(world: World) -> None:
    """An offer that is not listed any more is gone at once; without listings all of them age out."""
    assert len((await _see(world)).offers) == 2
    dearer = replace(world.cloud.on_offer[1], price_per_hour=world.cloud.on_offer[0].price_per_hour)
    world.cloud.on_offer = [dearer]
    await refresh_offers(world.control.context)
    assert (await _see(world)).offers == (dearer,)
    world.cloud.listing_error = Transient("down")
    world.clock.advance(s=299)
    await refresh_offers(world.control.context)
    assert (await _see(world)).offers == (dearer,)
    world.clock.advance(s=2)
    assert (await _see(world)).offers == ()


async def test_offers_that_nobody_here_could_rent_are_not_shown(world: World) -> None:
    """Rows left by a provider that is not configured any more."""
    left_over = replace(world.cloud.on_offer[0], provider="gone")
    async with world.database.transaction() as connection:
        assert await replace_offers(connection, "gone", [left_over], now_ms=world.clock.now_ms())
    assert [offer.provider for offer in (await _see(world)).offers] == ["cloud", "cloud"]


@pytest.mark.parametrize("state", list(NodeState))
async def test_a_single_host_is_not_offered_while_it_is_being_rented(world: World, state: NodeState) -> None:
    """From the intent on, whichever process carries it out, until its machine is up or over. What names no host can
    be rented again, and so can a host of that name elsewhere."""
    offer = make_offer("cloud", "5", Tier.MARKETPLACE, "0.70", startup_ms=1)
    on_host = [replace(offer, offer_id=name, host=host) for name, host in (("6", "h-1"), ("7", "h-1"), ("8", "h-2"))]
    async with world.database.transaction() as connection:
        await replace_offers(connection, "cloud", [offer, *on_host], now_ms=world.clock.now_ms())
        await seed_node(connection, world.project_id, provider="cloud", host="h-1", state=state)
        await seed_node(connection, world.project_id, provider="cloud", host="", state=state)
        await seed_node(connection, world.project_id, provider="elsewhere", host="h-2", state=state)
    on_trial = state in {NodeState.REQUESTED, NodeState.UNKNOWN, NodeState.BOOTING}
    expected = ["5", "8"] if on_trial else ["5", "6", "7", "8"]
    assert [seen.offer_id for seen in (await _see(world)).offers] == expected


async def test_a_snapshot_tells_labels_where_a_job_asks_for_them(world: World) -> None:
    """Whose labels they are and who is to be beside or apart from them; where nobody asks, nobody's are told."""
    await world.submit(id="job_one", labels={"app": "x"})
    await world.submit(id="job_stays", affinity={"affinity": {}, "anti_affinity": {}, "locked": True})
    assert {job.affinity for job in (await _see(world)).jobs} == {NO_AFFINITY}
    await world.submit(
        id="job_two", affinity={"affinity": {"app": "x"}, "anti_affinity": {"app": "y"}, "locked": False}
    )
    seen = {job.job_id: job for job in (await _see(world)).jobs}
    assert seen["job_one"].affinity == Affinity(own=frozenset({"app=x"}))
    assert seen["job_two"].affinity == Affinity(beside=frozenset({"app=x"}), apart=frozenset({"app=y"}))
    assert {job_id: job.locked for job_id, job in seen.items()} == {
        "job_one": False, "job_stays": True, "job_two": False,
    }  # fmt: skip


async def test_a_failed_offer_is_avoided_for_a_while_only(world: World) -> None:
    """What failed a job is remembered from its back-off on, then forgotten."""
    now_ms = world.clock.now_ms()
    await world.submit(avoided_offers=["cloud/market-a100"], not_before_ms=now_ms)
    assert (await _see(world)).jobs[0].avoided_offers == {"cloud/market-a100"}
    world.clock.advance(ms=AVOID_OFFER_MS)
    assert (await _see(world)).jobs[0].avoided_offers == frozenset()


@given(st.integers(min_value=0, max_value=10_000))
def test_back_offs_grow_and_are_bounded(attempts: int) -> None:
    """Never shorter than a second, never longer than a minute, never shrinking."""
    assert 1_000 <= back_off_ms(attempts) <= back_off_ms(attempts + 1) <= 60_000


@given(st.text(min_size=1), st.text(min_size=1), st.text(min_size=1))
def test_a_node_has_one_token_and_no_other_node_has_it(secret: str, one: str, two: str) -> None:
    """The same for the same node and secret; different when either differs, and never a join token of its."""
    token = TokenMint(secret).token(one)
    assert token == TokenMint(secret).token(one)
    assert len(token) == 64
    assert (TokenMint(secret).token(two) == token) == (one == two)
    assert TokenMint(secret + "x").token(one) != token
    joins = {TokenMint(secret).join_token(one, attempt) for attempt in range(3)}
    assert len(joins | {token}) == 4
