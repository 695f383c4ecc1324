"""How sandboxes of Modal live, are listed, end and are paid for, and what the adapter makes of it."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import threading
import zipapp
from collections.abc import AsyncIterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from app.core.model.money import Money
from app.errors import AuthFailed, Transient
from app.ports.provider import Machine, MachineStatus
from providers.emulators.modal.tokens import Tokens
from providers.modal.adapter import ModalProvider
from providers.modal.catalogue import Catalogue, Shape
from providers.modal.link import Account
from providers.modal.sdk import modal
from tests.providers.cloud_process import PATIENCE_S, WallClock
from tests.providers.modal_emulator import TOKEN_ID, TOKEN_SECRET, EmulatedModal, rent


@pytest.fixture
async def provider(shared_modal: EmulatedModal) -> AsyncIterator[ModalProvider]:
    provider = shared_modal.provider()
    yield provider
    await provider.close()


async def gone(provider: ModalProvider, machine: Machine) -> Machine:
    """The machine, once Modal says that it has ended."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            seen = await provider.get(machine.ref)
            assert seen is not None
            if seen.status is MachineStatus.ENDED:
                return seen
            await asyncio.sleep(0.02)


async def test_a_sandbox_becomes_the_agent_that_was_proven(shared_modal: EmulatedModal, tmp_path: Path) -> None:
    """The entry point fetches the agent by its hash, and the agent finds its token in its environment."""
    program = tmp_path / "agent.pyz"
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "__main__.py").write_text("import os\nprint('joins with', os.environ['ALLPASS_JOIN_TOKEN'])\n")
    zipapp.create_archive(tmp_path / "code", program)
    sha256 = hashlib.sha256(program.read_bytes()).hexdigest()
    (tmp_path / "agent").mkdir()
    program.rename(tmp_path / "agent" / f"{sha256}.pyz")
    handler = functools.partial(QuietFiles, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        provider = ModalProvider(
            Account(TOKEN_ID, TOKEN_SECRET, shared_modal.url), Catalogue(Shape(2, 16)), clock=WallClock()
        )
        told = (("ALLPASS_URL", url), ("ALLPASS_AGENT_SHA256", sha256), ("ALLPASS_JOIN_TOKEN", "t-1"))
        machine = await rent(provider, bootstrap=told)
        ended = await gone(provider, machine)
        server.shutdown()
    assert ended.detail == "its program left, exit code 0"
    assert "joins with t-1" in await provider.logs(machine.ref, 5)
    await provider.close()


class QuietFiles(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


ASKS = "$ALLPASS_AGENT_NVIDIA_SMI --query-gpu=index,name,ecc.errors.uncorrected.volatile.total --format=csv,noheader"


async def test_a_sandbox_shows_the_gpus_that_were_rented_or_others(shared_modal: EmulatedModal) -> None:
    """Its agent has an nvidia-smi to ask; what is wrong with a GPU, or goes wrong later, is seen there and nowhere
    else."""
    provider = shared_modal.provider(program=f"while :; do echo gpus=$({ASKS}); sleep 0.2; done")
    good = await rent(provider, "A100-80GB:2")
    shared_modal.fault("create", "bad_gpus", args={"wrong": "ecc"})
    bad = await rent(provider)

    async def says(machine: Machine, words: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while words not in await provider.logs(machine.ref, 50):
                await asyncio.sleep(0.05)

    await says(good, "gpus=0, NVIDIA A100-SXM4-80GB, 0 1, NVIDIA A100-SXM4-80GB, 0")
    await says(bad, "gpus=0, Tesla T4, 37")
    shared_modal.act(good.ref, "gpus", wrong="lost")
    await says(good, "GPU is lost")
    for machine in (good, bad):
        await provider.terminate(machine.ref)
    await provider.close()


# -- row 6: ends


@pytest.mark.parametrize(
    ("program", "words"), [("exit 0", "its program left, exit code 0"), ("exit 3", "its program failed, exit code 3")]
)
async def test_a_program_that_leaves_ends_its_sandbox(shared_modal: EmulatedModal, program: str, words: str) -> None:
    """A sandbox ends with its program, whatever the exit code: ended is all that is said, never succeeded."""
    provider = shared_modal.provider(program=program)
    ended = await gone(provider, await rent(provider))
    assert (ended.detail, ended.billed_to_ms is not None) == (words, True)
    await provider.close()


@pytest.mark.parametrize(
    ("status", "exitcode", "words"),
    [
        ("INTERNAL_FAILURE", 0, "a failure inside Modal: worker lost"),
        ("KERNEL_OOM_KILL", 137, "killed: out of memory: worker lost"),
        ("MEMORY_MANAGER_EVICTION", 0, "evicted: its host ran out of memory: worker lost"),
    ],
)
async def test_an_end_that_modal_makes(
    shared_modal: EmulatedModal, provider: ModalProvider, status: str, exitcode: int, words: str
) -> None:
    """Ends that are no program's own are told in words; an exit code of 0 among them is not shown."""
    machine = await rent(provider)
    shared_modal.until(machine.ref, "running")
    shared_modal.act(machine.ref, "finish", status=status, exitcode=exitcode, exception="worker lost")
    assert (await gone(provider, machine)).detail == words


async def test_a_lifetime_ends_a_sandbox(shared_modal: EmulatedModal, provider: ModalProvider) -> None:
    """At its timeout, or a little later, a sandbox is over, and says so."""
    client = await shared_modal.client()
    app = await modal.App.lookup.aio("allpass", client=client, create_if_missing=True)
    image = modal.Image.from_registry("python:3.11-slim")
    shared_modal.switch(timeout_late_ms=200)
    sandbox = await modal.Sandbox.create.aio("sleep", "60", app=app, image=image, gpu="T4", timeout=1, client=client)
    row = shared_modal.until(sandbox.object_id, "ended")
    assert row["ended_ms"] - row["ready_ms"] >= 1_200
    assert await sandbox.poll.aio() == 124
    seen = await provider.get(sandbox.object_id)
    assert seen is not None
    assert seen.detail == "its lifetime is over"
    await client.close.aio()


async def test_a_preemption_comes_with_a_notice(shared_modal: EmulatedModal) -> None:
    """The program gets SIGINT and a moment; then the sandbox is over, in one of the ways in which Modal may say so."""
    provider = shared_modal.provider(program="trap 'echo interrupted' INT; echo up; while :; do sleep 0.05; done")
    machine = await rent(provider)

    async def says(words: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while words not in await provider.logs(machine.ref, 5):
                await asyncio.sleep(0.02)

    await says("up")
    shared_modal.act(machine.ref, "preempt", notice_ms=3_600_000)  # however long its program takes to hear of it
    await says("interrupted")
    shared_modal.act(machine.ref, "preempt", notice_ms=1_000)
    assert (await gone(provider, machine)).detail == "terminated: preempted"
    shared_modal.switch(preempted_as="INTERNAL_FAILURE")
    assert (await gone(provider, machine)).detail == "a failure inside Modal: preempted"
    assert "interrupted" in await provider.logs(machine.ref, 5)
    await provider.close()


async def test_a_preempted_sandbox_may_be_gone_without_a_word(
    shared_modal: EmulatedModal, provider: ModalProvider
) -> None:
    """Abruptly taken back and never heard of again: no error, but no such sandbox."""
    shared_modal.switch(preempted_as="SILENCE")
    machine = await rent(provider)
    shared_modal.act(machine.ref, "preempt", notice_ms=0)
    shared_modal.until(machine.ref, "ended")
    assert await provider.get(machine.ref) is None
    assert await provider.find(str(machine.label)) == []


# -- row 8: listings


async def test_what_the_clients_listing_loses_ours_does_not(
    shared_modal: EmulatedModal, provider: ModalProvider
) -> None:
    """Two sandboxes of one instant at the end of a page: the client's own listing loses one, the adapter none."""
    machines = [await rent(provider) for _ in range(3)]
    newest_ms = shared_modal.machine(machines[2].ref)["created_ms"]
    # A clock so coarse that it ticks once between the two older ones and the newest.
    shared_modal.switch(page_size=2, listing_clock_ms=newest_ms // 2)
    client = await shared_modal.client()
    app = await modal.App.lookup.aio("allpass", client=client)
    shown = {sandbox.object_id async for sandbox in modal.Sandbox.list.aio(app_id=app.app_id, client=client)}
    await client.close.aio()
    refs = {machine.ref for machine in machines}
    assert len(shown & refs) == 2
    assert {machine.ref for machine in await provider.list_owned()} >= refs


async def test_a_new_sandbox_may_be_missing_from_the_listing(
    shared_modal: EmulatedModal, provider: ModalProvider
) -> None:
    """Within the grace time a listing may lag behind; the sandbox answers for itself meanwhile."""
    shared_modal.switch(listing_lag_ms=600_000)
    machine = await rent(provider)
    assert await provider.find(str(machine.label)) == []
    assert await provider.list_owned() == []
    seen = await provider.get(machine.ref)
    assert seen is not None
    assert (seen.status, seen.label, seen.detail) == (MachineStatus.BOOTING, machine.label, "not listed yet")
    await provider.terminate(machine.ref)
    assert (await gone(provider, machine)).price_per_hour == machine.price_per_hour


# -- row 9: tags


async def test_a_live_sandbox_without_tags_is_still_ours(shared_modal: EmulatedModal, provider: ModalProvider) -> None:
    """Tags that were taken off do not make a live node vanish: its name and its App say whose it is."""
    machine = await rent(provider)
    shared_modal.until(machine.ref, "running")
    shared_modal.act(machine.ref, "untag")
    (listed,) = await provider.list_owned()
    assert (listed.ref, listed.label) == (machine.ref, machine.label)
    seen = await provider.get(machine.ref)
    assert seen is not None
    assert (seen.label, seen.status) == (machine.label, MachineStatus.RUNNING)


async def test_a_sandbox_whose_tags_are_no_longer_kept_answers_for_itself(
    shared_modal: EmulatedModal, provider: ModalProvider
) -> None:
    """That Modal knows no tags of it is no word on the sandbox: it is there, or it has ended, as it says."""
    machine = await rent(provider)
    await provider.terminate(machine.ref)
    shared_modal.fault("tags", "error", args={"status": "NOT_FOUND"})
    seen = await provider.get(machine.ref)
    assert seen is not None
    assert (seen.status, seen.detail) == (MachineStatus.ENDED, "terminated")


# -- row 11: tokens


async def test_a_session_token_that_is_refused_is_fetched_anew_once(
    shared_modal: EmulatedModal, provider: ModalProvider
) -> None:
    """One refusal of the short-lived token is nobody's business; refused again, it is an alarm."""
    machine = await rent(provider)
    shared_modal.switch(strike_each_attempt=True)
    shared_modal.fault("list", "error", args={"status": "UNAUTHENTICATED"})
    assert [each.ref for each in await provider.find(str(machine.label))] == [machine.ref]
    shared_modal.fault("list", "error", count=2, args={"status": "UNAUTHENTICATED"})
    with pytest.raises(AuthFailed):
        await provider.find(str(machine.label))


async def test_a_session_token_ends_when_modal_says_so(shared_modal: EmulatedModal, provider: ModalProvider) -> None:
    """A server that takes tokens for less time than they say refuses every one; afterwards they are taken again."""
    machine = await rent(provider)
    shared_modal.switch(session_token_ms=1)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(AuthFailed, match="has expired"):
            while True:  # a token used within the millisecond of its issue is taken
                await provider.find(str(machine.label))
    shared_modal.switch(session_token_ms=0)
    assert [each.ref for each in await provider.find(str(machine.label))] == [machine.ref]


def test_tokens_end_and_cannot_be_made_up() -> None:
    """A token holds for its purpose, until its time is over, and only as it was issued."""
    now = [1_000_000]
    tokens = Tokens("secret", lambda: now[0])
    token = tokens.issue("session", 5_000)
    assert tokens.holds("session", token)
    assert not tokens.holds("router", token)
    assert not tokens.holds("session", token[:-2] + "xx")
    assert not tokens.holds("session", "")
    assert not Tokens("other", lambda: now[0]).holds("session", token)
    now[0] += 3_000
    assert not tokens.holds("session", token, refused_after_ms=2_000)
    now[0] += 2_001
    assert not tokens.holds("session", token)


# -- rows 12 and 13: no answer, and ends that are not confirmed


async def test_calls_that_are_never_answered_end_at_our_deadline(
    shared_modal: EmulatedModal, provider: ModalProvider
) -> None:
    """Looks and terminations that hang are Transient after our own time, not the client's."""
    machine = await rent(provider)
    hasty = shared_modal.provider()
    await hasty.offers()
    hasty._timeout_s = 1.2  # once it is connected
    for op in ("get", "list", "terminate"):
        shared_modal.fault(op, "hang")
    get, owned = hasty.get(machine.ref), hasty.list_owned()
    answers = await asyncio.gather(get, owned, return_exceptions=True)
    answers += await asyncio.gather(hasty.terminate(machine.ref), return_exceptions=True)
    for answer in answers:
        assert isinstance(answer, Transient)
        assert "did not answer in time" in answer.message
    assert shared_modal.machine(machine.ref)["ended_ms"] is None
    await hasty.close()


async def test_an_end_counts_when_it_is_confirmed(shared_modal: EmulatedModal, provider: ModalProvider) -> None:
    """Modal says yes and does nothing: that is not an end. The next order is carried out."""
    machine = await rent(provider)
    hasty = shared_modal.provider()
    await hasty.offers()
    hasty._timeout_s = 3.0  # once it is connected
    shared_modal.fault("terminate", "ignored")
    with pytest.raises(Transient, match="still says that it runs"):
        await hasty.terminate(machine.ref)
    await hasty.close()
    await provider.terminate(machine.ref)
    assert shared_modal.machine(machine.ref)["state"] == "ended"


# -- row 14: all Apps


async def test_sandboxes_of_an_app_with_another_name_are_found(
    shared_modal: EmulatedModal, provider: ModalProvider
) -> None:
    """After the App was renamed in the settings, what the old one runs is still ours: listed, found and ended."""
    before = shared_modal.provider(app="allpass-of-last-year")
    machine = await rent(before)
    await before.close()
    assert machine.ref in {each.ref for each in await provider.list_owned()}
    assert [each.ref for each in await provider.find(str(machine.label))] == [machine.ref]
    elsewhere = shared_modal.provider(environment="staging")
    assert await elsewhere.list_owned() == []
    await elsewhere.close()


# -- row 16: the bill


async def test_waiting_costs_nothing_and_running_costs_gpu_cpu_and_memory(
    shared_modal: EmulatedModal, provider: ModalProvider
) -> None:
    """Modal's own list and ours agree on the price; a second that is begun is paid, waiting for a machine is not."""
    shared_modal.fault("create", "never_starts")
    waits, runs = await rent(provider, "H100:2"), await rent(provider, "H100:2")
    row = shared_modal.until(runs.ref, "running")
    for machine in (waits, runs):
        await provider.terminate(machine.ref)
    bill: dict[str, Any] = shared_modal.bill(runs.ref)
    assert Money(bill["price_micros_per_hour"]) == runs.price_per_hour
    assert (bill["from_ms"], bill["billed_ms"] % 1_000) == (row["ready_ms"], 0)
    assert bill["amount_micros"] > 0
    assert shared_modal.bill(waits.ref)["amount_micros"] == 0
