"""The way from the internet to API and store, through proxies that break one thing each."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import SecretStr

from app.core.model.finding import Finding, Verdict
from app.doctor.standin import _api, _store
from app.services.nodes.reach.api import ApiLook
from app.services.nodes.reach.asking import HttpAnswer, ask, machine
from app.services.nodes.reach.keys import MOST_HOLD_S, ReachKeys, ReachQuestion
from app.services.nodes.reach.store import StoreLook
from app.settings import Settings
from app.storage.directory import DirectoryStore
from app.storage.http_server import HttpServer
from app.system import RandomIds, SystemClock
from tests.services.reach.fronts import IMPATIENT_S, front, own_certificate, serving

SECRET, SIGNING = "s" * 40, "o" * 40
CLOCK = SystemClock()


@dataclass
class Served:
    """An installation that serves on loopback."""

    api: str
    store: str
    folder: Path

    async def look_at_api(self, url: str | None = None, *, secret: str = SECRET, hold_s: int = 0) -> list[Finding]:
        async with machine() as http:
            return await ApiLook(http, url or self.api, ReachKeys(secret), CLOCK, hold_s=hold_s).findings()

    async def look_at_store(self, url: str | None = None) -> Finding:
        store = DirectoryStore(self.folder, url or self.store, SIGNING, max_object_bytes=2**30, clock=CLOCK)
        async with machine() as http:
            (found,) = await StoreLook(http, store, CLOCK, setting="ALLPASS_OBJECTS_URL").findings()
        return found


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    settings = Settings(
        database_url=SecretStr("unused"),
        secret_key=SecretStr(SECRET),
        objects_signing_key=SecretStr(SIGNING),
    )
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(serving(_api(settings, CLOCK, RandomIds(CLOCK))))
        listening = socket.create_server(("127.0.0.1", 0))
        store = HttpServer(listening, _store(settings, tmp_path, CLOCK), idle_timeout_s=60)
        store.start()
        stack.push_async_callback(asyncio.to_thread, store.close, grace_s=0)
        yield Served(api, f"http://127.0.0.1:{listening.getsockname()[1]}", tmp_path)


def codes(found: list[Finding]) -> set[str]:
    return {one.code for one in found}


async def test_a_clear_way_is_found_clear(served: Served) -> None:
    """Directly and through a proxy that passes everything on; an idle second included."""
    assert codes(await served.look_at_api(hold_s=1)) == {"ok"}
    async with serving(front(served.api)) as proxy:
        found = await served.look_at_api(proxy, hold_s=1)
    assert codes(found) == {"ok"}
    assert [one.name for one in found] == ["public URL", "long polls", "large reports"]
    async with serving(front(served.store)) as proxy:
        assert (await served.look_at_store(proxy)).code == "ok"


@pytest.mark.parametrize(
    ("habit", "code"),
    [
        ("redirects", "public_url_redirects"),
        ("login page", "public_url_somebody_else"),
        ("impatient", "long_poll_cut"),
        ("small bodies", "large_report_refused"),
        ("changes bytes", "public_url_somebody_else"),
    ],
)
async def test_what_breaks_an_agents_calls_is_named(served: Served, habit: str, code: str) -> None:
    """Each habit by a code of its own, with what to do about it."""
    hold_s = 2 * IMPATIENT_S if habit == "impatient" else 1
    async with serving(front(served.api, habit)) as proxy:
        found = await served.look_at_api(proxy, hold_s=hold_s)
    wrong = [one for one in found if one.verdict is Verdict.FAIL]
    assert [one.code for one in wrong] == [code]
    assert wrong[0].fix


@pytest.mark.parametrize(
    ("habit", "code"),
    [
        ("redirects", "store_redirects"),
        ("login page", "store_changes_bytes"),
        ("small bodies", "store_body_limit"),
        ("no ranges", "store_no_ranges"),
        ("changes bytes", "store_changes_bytes"),
    ],
)
async def test_what_breaks_transfers_is_named(served: Served, habit: str, code: str) -> None:
    """A store that answers is not enough: the bytes have to be the same, and parts have to be parts."""
    async with serving(front(served.store, habit)) as proxy:
        found = await served.look_at_store(proxy)
    assert (found.verdict, found.code) == (Verdict.FAIL, code)
    assert found.fix


async def test_nothing_is_left_in_the_store(served: Served) -> None:
    """Neither of a look that succeeds nor of one that fails half-way."""
    await served.look_at_store()
    async with serving(front(served.store, "no ranges")) as proxy:
        await served.look_at_store(proxy)
    assert [path for path in served.folder.rglob("*") if path.is_file()] == []


async def test_a_proxy_without_a_service_behind_it_is_told_from_no_proxy(served: Served) -> None:
    """A tunnel that is down, a port that nobody listens on, a name that nobody knows."""
    with socket.socket() as held:  # the port is ours, so that nobody else listens there meanwhile
        held.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{held.getsockname()[1]}"
        async with serving(front(nowhere)) as proxy:
            assert codes(await served.look_at_api(proxy)) == {"public_url_nothing_behind"}
            assert (await served.look_at_store(proxy)).code == "store_nothing_behind"
        assert codes(await served.look_at_api(nowhere)) == {"public_url_refused"}
        assert (await served.look_at_store(nowhere)).code == "store_refused"
    assert codes(await served.look_at_api("http://nobody.invalid")) == {"public_url_name_unknown"}


async def test_another_installation_is_not_taken_for_this_one(served: Served) -> None:
    """It answers as Allpass does, and cannot read the question."""
    assert codes(await served.look_at_api(secret="another" * 8)) == {"public_url_other_installation"}


async def test_a_certificate_that_machines_do_not_accept_is_refused(served: Served, tmp_path: Path) -> None:
    """Also where this shell would accept it: a machine has its own authorities."""
    certificate, accepted = own_certificate(tmp_path)
    async with serving(front(served.api), certificate=certificate) as proxy:
        assert codes(await served.look_at_api(proxy)) == {"public_url_certificate_wrong"}
        async with machine(accepted) as http:
            found = await ApiLook(http, proxy, ReachKeys(SECRET), CLOCK, hold_s=0).findings()
    assert codes(found) == {"ok"}
    plain = served.api.replace("http://", "https://")
    assert codes(await served.look_at_api(plain)) & {"public_url_tls_failed", "public_url_cut"}


@pytest.mark.parametrize("wrong", ["nonce", "hold", "expired", "signature", "secret"])
async def test_only_signed_questions_are_answered(served: Served, wrong: str) -> None:
    """Nobody else can have the service hold connections, whatever they change in a question that was signed."""
    keys = ReachKeys("x" * 40 if wrong == "secret" else SECRET)
    now_ms = CLOCK.now_ms()
    asked = ReachQuestion("ab" * 16, 0, now_ms - 1 if wrong == "expired" else now_ms + 60_000)
    path = keys.path(asked)
    changed = {
        "nonce": path.replace("ab" * 16, "cd" * 16),
        "hold": path.replace("hold_s=0", "hold_s=50"),
        "signature": path[:-1] + ("0" if path[-1] != "0" else "1"),
    }.get(wrong, path)
    async with machine() as http:
        answer = await ask(http, "GET", served.api + changed, within_s=10)
    assert isinstance(answer, HttpAnswer)
    assert answer.status == 403
    assert answer.took_s < 5


async def test_no_question_holds_a_connection_for_ever(served: Served) -> None:
    """Not even one that this installation has signed."""
    path = ReachKeys(SECRET).path(ReachQuestion("ab" * 16, MOST_HOLD_S + 1, CLOCK.now_ms() + 60_000))
    async with machine() as http:
        answer = await ask(http, "GET", served.api + path, within_s=10)
    assert isinstance(answer, HttpAnswer)
    assert answer.status == 403
