"""What is known of providers, and what follows from it: who rents to us, who does not, and who is asked again."""

from __future__ import annotations

import pytest

from app.core import codec
from app.core.model.job import Resources
from app.core.model.node import Tier
from app.db import tables as t
from app.db.offers import provider_states as states
from app.db.offers.provider_checks import ask_for_check, read_checks
from app.db.offers.provider_states import ProviderState
from app.db.tables import provider_errors, provider_states
from app.errors import AuthFailed, QuotaExceeded, RateLimited, Transient, Unavailable
from tests.control.fake_provider import FakeProvider, make_offer
from tests.control.world import World

REFUSED = AuthFailed("401 invalid key")


async def _state(world: World, name: str = "cloud") -> ProviderState:
    async with world.database.transaction() as connection:
        return {state.provider: state for state in await states.provider_states_now(connection)}[name]


async def _check(world: World, provider: str = "cloud") -> str:
    """Ask as the API does, answer as a control process does; the id of the request."""
    check_id = world.ids.new("chk")
    now_ms = world.clock.now_ms()
    async with world.database.transaction() as connection:
        await ask_for_check(connection, check_id, provider, now_ms=now_ms, deadline_ms=now_ms + 20_000)
    await world.control.checks.answer_open()
    return check_id


async def test_refused_credentials_stop_renting_until_a_check_succeeds(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """However much time passes, nothing is asked of that account; the job waits, unharmed, and is told why."""
    world.cloud.create_faults = [REFUSED]
    job_id = await world.submit()
    await world.decide()
    await world.work()
    assert "ALARM" in caplog.text
    for _ in range(6):
        world.clock.advance(s=3_600)
        await world.decide()
        await world.work()
    assert world.cloud.creates == 1
    job = await world.job(job_id)
    assert (job.state, job.faults, job.avoided_offers) == ("queued", 0, [])
    assert "cloud refuses our credentials" not in job.wait_reason
    assert "nothing is rented from cloud now: it refuses our credentials (401 invalid key)" in job.wait_reason
    assert "allpass providers check" in job.wait_reason
    await _check(world)
    await world.decide()
    await world.work()
    assert world.cloud.creates == 2
    assert (await world.job(job_id)).state == "starting"


async def test_refused_credentials_leave_running_machines_alone(world: World) -> None:
    """Nothing can be listed or asked for days: the job trains on, and no machine is ended or counted as dead."""
    job_id, node_id = await world.run_on_serverless()
    await world.check_heartbeats()
    world.cloud.listing_error = world.cloud.get_error = REFUSED
    for _ in range(8):
        world.clock.advance(s=10_000)
        await world.beat(node_id)
        await world.sweep()
        await world.check_heartbeats()
    assert (await world.job(job_id)).state == "running"
    assert (await world.node(node_id)).state == "ready"
    assert len(world.cloud.alive()) == 1
    assert (await _state(world)).refused_ms is not None


async def test_other_providers_go_on_and_those_that_wait_for_the_refused_one_wait(world: World) -> None:
    """A job that only the refused provider could hold waits for it; any other takes what is there."""
    other = FakeProvider(world.clock, name="cloud2")
    other.on_offer = [make_offer("cloud2", "fn", Tier.SERVERLESS, "3.10", startup_ms=2_000)]
    world.cloud.on_offer = [make_offer("cloud", "big", Tier.SERVERLESS, "9.00", startup_ms=2_000, gpus=4)]
    world.other_clouds = [other]
    await world.restart()
    world.cloud.listing_error = REFUSED
    large = await world.submit(resources=codec.encode(Resources(4, 4)))
    small = await world.submit()
    await world.decide()
    await world.work()
    assert (await world.job(small)).state == "starting"
    assert "nothing is rented from cloud now" in (await world.job(large)).wait_reason
    assert (world.cloud.creates, other.creates) == (0, 1)


async def test_a_pause_ends_by_itself_and_is_told_to_those_who_wait(world: World) -> None:
    """The account's limit is met: the reason is the provider's own, and no check is needed."""
    world.cloud.create_faults = [QuotaExceeded("10 GPUs at most")]
    job_id = await world.submit()
    await world.decide()
    await world.work()
    world.clock.advance(s=2)
    await world.decide()
    reason = (await world.job(job_id)).wait_reason
    assert "nothing is rented from cloud now: its limit is reached (10 GPUs at most)" in reason
    state = await _state(world)
    assert (state.quota_errors, state.refused_ms) == (1, None)
    assert state.paused_until_ms == world.clock.now_ms() + 118_000
    world.clock.advance(s=119)
    await world.decide()
    await world.work()
    assert (await world.job(job_id)).state == "starting"


@pytest.mark.parametrize("error", [RateLimited("slow down", retry_after_ms=1_000), Transient("502")])
async def test_being_slowed_down_or_failed_is_no_fault_of_the_job_and_closes_no_provider(
    world: World, error: RateLimited | Transient
) -> None:
    """The call is made again; the provider stays open and the failure is on record."""
    world.cloud.create_faults = [error]
    job_id = await world.submit()
    await world.decide()
    await world.work()
    state = await _state(world)
    assert (state.refused_ms, state.paused_until_ms) == (None, None)
    assert state.last_failure is not None
    assert (state.last_failure.call, state.last_failure.code) == ("create", error.error_code)
    world.clock.advance(s=3)
    await world.work()
    assert (await world.job(job_id)).faults == 0
    assert len(world.cloud.alive()) == 1


async def test_states_are_written_when_they_change_and_now_and_then(world: World) -> None:
    """A hundred calls a minute cost one write; a failure and the recovery from it are written at once."""
    await world.decide()
    written = (await _state(world)).last_success_ms
    for _ in range(20):
        world.clock.advance(s=2)
        await world.sweep()
    assert (await _state(world)).last_success_ms == written
    world.clock.advance(s=21)
    await world.sweep()
    assert (await _state(world)).last_success_ms == world.clock.now_ms()
    world.cloud.listing_error = Transient("502")
    for _ in range(5):
        world.clock.advance(s=1)
        await world.sweep()
    failed = (await _state(world)).last_failure
    assert failed is not None
    assert (failed.code, failed.at_ms) == ("provider_transient", world.clock.now_ms() - 4_000)
    world.cloud.listing_error = None
    world.clock.advance(s=1)
    await world.sweep()
    assert (await _state(world)).last_success_ms == world.clock.now_ms()
    (row,) = await world.rows(provider_errors)
    assert tuple(row) == ("cloud", "list", "provider_transient", 5)


async def test_no_secret_of_the_settings_is_in_what_is_kept(world: World) -> None:
    """A provider's own words may repeat the key that it refuses."""
    secret = world.settings.secret_key.get_secret_value()
    world.cloud.listing_error = AuthFailed(f"key {secret} is not known, " + "x" * 5_000)
    await world.sweep()
    state = await _state(world)
    assert state.refused_message is not None
    assert state.refused_message.startswith("key *** is not known")
    assert len(state.refused_message) <= 400
    assert secret not in repr(await world.rows(provider_states))


async def test_what_could_not_be_written_is_written_later(world: World) -> None:
    """Without the database a refusal is kept in mind, and the caller gets the provider's answer all the same."""
    watch = world.control.context.watch

    class Away:
        def transaction(self) -> None:
            raise Unavailable("away")

    database = watch._database
    watch._database = Away()  # type: ignore[assignment]  # the seam
    world.cloud.listing_error = REFUSED
    with pytest.raises(AuthFailed):
        await world.control.context.ask(world.control.context.providers["cloud"].list_owned())
    watch._database = database
    world.cloud.listing_error = None
    world.clock.advance(s=5)
    await world.control.context.ask(world.control.context.providers["cloud"].list_owned())
    assert (await _state(world)).refused_ms is not None


async def test_a_check_lists_and_rents_nothing(world: World) -> None:
    """It tells how many machines and offers there are, and who fails and why."""
    world.cloud.plant("node_x", created_ms=world.clock.now_ms())
    first = await _check(world)
    world.cloud.listing_error = REFUSED
    second = await _check(world)
    async with world.database.transaction() as connection:
        rows = {row.check_id: row.answer for row in await read_checks(connection, [first, second])}
    good, bad = rows[first], rows[second]
    assert good is not None
    assert bad is not None
    assert (good.error_code, good.machines, good.offers) == (None, 1, 2)
    assert (bad.error_code, bad.message) == ("provider_auth_failed", "401 invalid key")
    assert world.cloud.creates == 0


async def test_a_check_is_answered_once_and_not_after_its_deadline(world: World) -> None:
    """Of two control processes one answers; nobody asks a provider for somebody who is gone."""
    check_id = world.ids.new("chk")
    now_ms = world.clock.now_ms()
    async with world.database.transaction() as connection:
        await ask_for_check(connection, check_id, "cloud", now_ms=now_ms, deadline_ms=now_ms + 20_000)
        late = world.ids.new("chk")
        await ask_for_check(connection, late, "cloud", now_ms=now_ms - 30_000, deadline_ms=now_ms - 10_000)
        foreign = world.ids.new("chk")
        await ask_for_check(connection, foreign, "elsewhere", now_ms=now_ms, deadline_ms=now_ms + 20_000)
    assert await world.control.checks.answer_open() == 1
    assert await world.new_control().checks.answer_open() == 0


async def test_a_new_term_tries_refused_credentials_again(world: World) -> None:
    """The settings may have new ones; and a provider that has left the settings is not configured any more."""
    world.cloud.listing_error = REFUSED
    await world.sweep()
    await world.control.checks.recheck_refused()
    assert (await _state(world)).refused_ms is not None
    world.cloud.listing_error = None
    await world.restart()
    await world.control.checks.recheck_refused()
    assert (await _state(world)).refused_ms is None
    object.__setattr__(world.control.context, "providers", {})
    await world.control.checks.recheck_refused()
    async with world.database.transaction() as connection:
        assert await states.provider_states_now(connection) == []


async def test_a_job_whose_node_was_refused_reads_so_in_its_events(world: World) -> None:
    """The event names the provider and its words."""
    world.cloud.on_offer = world.cloud.on_offer[1:]
    world.cloud.create_faults = [REFUSED]
    job_id = await world.submit()
    await world.decide()
    await world.work()
    told = [row.message for row in await world.rows(t.job_events) if row.kind == "node_given_up"]
    assert told == ["cloud did not rent market-a100: 401 invalid key"]
    assert (await world.job(job_id)).state == "queued"
