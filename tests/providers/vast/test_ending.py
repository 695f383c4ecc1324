"""Ending contracts that another process has rented, within the little time that an operation may have."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
import respx

from app.core.model.ids import make_id
from app.errors import ProviderError, RateLimited
from app.ports.failures import ProcessHostFailures
from app.ports.pace import ProcessPace
from app.ports.provider import Machine, MachineStatus
from providers.vast.adapter import VastProvider
from providers.vast.options import VastOptions
from providers.vast.wire import SHOW
from tests.providers.vast.clocks import StillClock
from tests.providers.vast_emulator import idle

URL = "http://vast.test"
OPERATION_TIMEOUT_MS = 3_000
GONE = httpx.Response(404, json={"success": False, "error": "no_such_instance", "msg": "Instance 7 not found"})
DONE = httpx.Response(200, json={"success": True})
NOTHING = httpx.Response(200, json={"instances": None})
ROW = {"id": 7, "label": "x", "actual_status": "running", "dph_total": 0.14, "machine_id": 45}
THERE = httpx.Response(200, json={"instances": ROW})


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
async def provider(clock: StillClock) -> AsyncIterator[VastProvider]:
    """As it is wired with an operation timeout of three seconds: nobody waits longer than one for a turn."""
    adapter = VastProvider(
        VastOptions(api_key="k", base_url=URL, timeout_s=OPERATION_TIMEOUT_MS / 3_000),
        clock=clock,
        pace=ProcessPace(clock, patience_ms=OPERATION_TIMEOUT_MS // 3),
        failures=ProcessHostFailures(),
        bootstrap=idle,
    )
    yield adapter
    await adapter.close()


async def _attempt(provider: VastProvider) -> Machine | None:
    """What an operation does to end a machine."""
    await provider.terminate("7")
    return await provider.get("7")


async def test_a_contract_that_is_gone_already_takes_one_look(provider: VastProvider) -> None:
    """A second one in the same attempt would be further away than the operation can wait. That neither the look nor
    the call that destroys finds it says enough."""
    with respx.mock(base_url=URL) as wire:
        look = wire.get("/api/v0/instances/7/").mock(return_value=NOTHING)
        wire.delete("/api/v0/instances/7/").mock(return_value=GONE)
        assert await _attempt(provider) is None
        assert look.call_count == 1


async def test_a_look_that_had_no_answer_is_not_taken_again(provider: VastProvider, clock: StillClock) -> None:
    """It has used up the turn of this attempt; the next one has its turn for what is left to know."""
    with respx.mock(base_url=URL) as wire:
        look = wire.get("/api/v0/instances/7/").mock(side_effect=[httpx.ReadTimeout("slow"), NOTHING])
        wire.delete("/api/v0/instances/7/").mock(return_value=GONE)
        with pytest.raises(RateLimited) as refused:
            await _attempt(provider)
        clock.time_ms += max(4_000, refused.value.retry_after_ms)
        assert await _attempt(provider) is None
        assert look.call_count == 2


async def test_two_calls_that_contradict_each_other_are_followed_by_a_look(
    provider: VastProvider, clock: StillClock
) -> None:
    """Not to be seen, and destroyed all the same: then it is looked at once more, in the next attempt if need be."""
    with respx.mock(base_url=URL) as wire:
        look = wire.get("/api/v0/instances/7/").mock(return_value=NOTHING)
        wire.delete("/api/v0/instances/7/").mock(side_effect=[DONE, GONE])
        with pytest.raises(RateLimited) as refused:
            await _attempt(provider)
        clock.time_ms += max(4_000, refused.value.retry_after_ms)
        assert await _attempt(provider) is None
        assert look.call_count == 1


async def test_a_contract_that_was_there_is_looked_for_after_its_end(provider: VastProvider, clock: StillClock) -> None:
    """What the first look has found is kept: in the next attempt its end is confirmed, with what is known of it."""
    with respx.mock(base_url=URL) as wire:
        wire.get("/api/v0/instances/7/").mock(side_effect=[THERE, NOTHING])
        wire.delete("/api/v0/instances/7/").mock(side_effect=[DONE, GONE])
        wire.get("/api/v0/charges/").mock(return_value=httpx.Response(200, json={"results": []}))
        with pytest.raises(RateLimited) as refused:
            await _attempt(provider)
        clock.time_ms += max(4_000, refused.value.retry_after_ms)
        ended = await _attempt(provider)
    assert ended is not None
    assert (ended.status, ended.label) == (MachineStatus.ENDED, "x")


async def test_a_contract_that_cannot_be_read_is_destroyed_all_the_same(provider: VastProvider) -> None:
    """What it costs is not told: that is no reason to go on paying it."""
    unreadable = httpx.Response(200, json={"instances": {"id": 7, "label": "x"}})
    with respx.mock(base_url=URL) as wire:
        wire.get("/api/v0/instances/7/").mock(return_value=unreadable)
        destroy = wire.delete("/api/v0/instances/7/").mock(return_value=DONE)
        await provider.terminate("7")
        assert destroy.call_count == 1


async def test_somebody_elses_404_confirms_nothing(provider: VastProvider, clock: StillClock) -> None:
    """A page of a proxy on the way is neither a look nor an end, however often it comes."""
    page = httpx.Response(404, text="<html>not found</html>")
    with respx.mock(base_url=URL) as wire:
        wire.get("/api/v0/instances/7/").mock(return_value=page)
        wire.delete("/api/v0/instances/7/").mock(return_value=page)
        for _ in range(3):
            with pytest.raises(ProviderError, match="vast: 404"):
                await _attempt(provider)
            clock.time_ms += 10_000


async def test_a_contract_that_shows_itself_again_is_there(provider: VastProvider, clock: StillClock) -> None:
    """Taken for gone, and then listed: it is asked for anew, and ended anew."""
    listed = httpx.Response(200, json={"instances": [ROW | {"label": make_id("node", 1, 1)}], "next_token": None})
    with respx.mock(base_url=URL) as wire:
        look = wire.get("/api/v0/instances/7/").mock(side_effect=[NOTHING, THERE])
        wire.delete("/api/v0/instances/7/").mock(return_value=GONE)
        assert await _attempt(provider) is None
        wire.get("/api/v1/instances/").mock(return_value=listed)
        assert [machine.ref for machine in await provider.list_owned()] == ["7"]
        clock.time_ms += SHOW.every_ms
        assert await provider.get("7") is not None
        assert look.call_count == 2
