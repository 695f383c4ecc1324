"""The Vast.ai adapter's own habits, before the emulated company."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from app.core.hosts import HostFailure
from app.core.model.money import Money
from app.db.engine import Database
from app.db.nodes.host_failures import DatabaseHostFailures
from app.errors import InvalidRequest, OfferGone, OutcomeUnknown, PriceMoved, Transient
from app.ports.failures import ProcessHostFailures
from app.ports.provider import MachineStatus
from providers.bootstrap import bootstrap_line
from providers.conformance.suite import request_for
from providers.emulators.vast.limits import INTERVALS_S
from providers.vast.adapter import VastProvider
from tests.providers.cloud_process import eventually, ok
from tests.providers.vast.clocks import StillClock
from tests.providers.vast_emulator import EmulatedVast, NoPace, SystemTime


@pytest.fixture
async def provider(vast: EmulatedVast) -> AsyncIterator[VastProvider]:
    adapter = vast.provider()
    yield adapter
    await adapter.close()


async def test_every_call_takes_its_turn(vast: EmulatedVast) -> None:
    """Each kind of call keeps a little more than the interval that the company documents, once per call."""
    pace = NoPace()
    provider = vast.provider(pace=pace)
    machine = await provider.create(request_for((await provider.offers())[0]))
    await provider.list_owned()
    await provider.logs(machine.ref, 5)
    await provider.terminate(machine.ref)
    await provider.get(machine.ref)
    lanes = [lane for lane, _every_ms in pace.turns]
    assert lanes == ["search", "create", "show", "list", "logs", "destroy", "show", "charges"]
    documented_ms = {name: interval_s * 1000 for name, interval_s in INTERVALS_S.items()} | {"search": 6_000}
    for lane, every_ms in pace.turns:
        assert every_ms > documented_ms[lane]
    await provider.close()


async def test_the_real_bootstrap_fits(vast: EmulatedVast) -> None:
    """Our own bootstrap script, with an address and a token, is within what the company takes."""
    provider = vast.provider(bootstrap=bootstrap_line)
    request = replace(
        request_for((await provider.offers())[0]),
        bootstrap=(
            ("ALLPASS_URL", "https://control-plane.some-company.example:8443"),
            ("ALLPASS_AGENT_SHA256", "0" * 64),
            ("ALLPASS_JOIN_TOKEN", "t" * 64),
        ),
    )
    vast.fault("create", "stuck")
    machine = await provider.create(request)
    facts = vast.machine(machine.ref)["facts"]
    assert (facts["onstart"], facts["args"]) == ("/bin/sh", ["-c", bootstrap_line(request)])
    assert "\n" not in facts["args"][1]
    await provider.close()


async def test_what_cannot_be_sent_is_not_sent(vast: EmulatedVast, provider: VastProvider) -> None:
    """A request over a limit is refused by name; no contract and no attempt comes of it."""
    request = request_for((await provider.offers())[0])
    with pytest.raises(InvalidRequest):
        await provider.create(replace(request, bootstrap=(("T", "t" * 300),)))
    foreign = replace(request, offer=replace(request.offer, provider="local"))
    with pytest.raises(InvalidRequest):
        await provider.create(foreign)
    assert vast.live() == []
    assert await provider.create(request)


async def test_a_price_that_the_listing_has_raised_is_not_even_tried(
    vast: EmulatedVast, provider: VastProvider
) -> None:
    """What is known to cost more than was agreed costs nothing to refuse."""
    request = request_for((await provider.offers())[0])
    below = replace(request, max_price_per_hour=Money(request.max_price_per_hour.micros - 1))
    vast.fault("create", "drop")
    with pytest.raises(PriceMoved):
        await provider.create(below)
    assert len(ok(vast.admin.get("/admin/faults"))["faults"]) == 1


async def test_a_contract_whose_price_cannot_be_read_is_looked_up(vast: EmulatedVast, provider: VastProvider) -> None:
    """Created, and then out of sight: the outcome is not known, and the label finds it with its price."""
    request = request_for((await provider.offers())[0])
    vast.fault("show", "error", args={"status": 503})
    with pytest.raises(OutcomeUnknown):
        await provider.create(request)
    (found,) = await provider.find(request.label)
    assert found.price_per_hour == request.max_price_per_hour


async def test_what_a_create_has_left_against_our_will_is_never_adopted(
    vast: EmulatedVast, provider: VastProvider
) -> None:
    """Dearer than agreed, and not to be destroyed at that moment: looking for it destroys it, or fails."""
    request = request_for((await provider.offers())[0])
    vast.fault("create", "price_moves")
    vast.fault("destroy", "error", count=2, args={"status": 502})
    with pytest.raises(OutcomeUnknown):
        await provider.create(request)
    with pytest.raises(Transient):
        await provider.find(request.label)
    assert len(vast.live()) == 1
    assert await provider.find(request.label) == []
    assert vast.live() == []


async def test_a_label_that_is_missing_for_a_moment_does_not_make_a_stranger(
    vast: EmulatedVast, provider: VastProvider
) -> None:
    """A contract that was seen with our label stays ours; one that never had any is somebody else's."""
    machine = await provider.create(request_for((await provider.offers())[0]))
    foreign = str(vast.rent(label=None).json()["new_contract"])
    ok(vast.api.put(f"/api/v0/instances/{machine.ref}/", json={"label": ""}))
    listed = {each.ref: each.label for each in await provider.list_owned()}
    assert listed == {machine.ref: machine.label}
    assert foreign not in listed


async def test_hosts_that_failed_and_hosts_on_trial_are_not_offered(vast: EmulatedVast) -> None:
    """An open attempt hides its host until the container runs; a failure hides it for hours."""
    clock, failures = StillClock(), ProcessHostFailures()
    provider = vast.provider(clock=clock, failures=failures)
    first, second = (await provider.offers())[:2]
    vast.fault("create", "stuck")
    trial = await provider.create(request_for(first))
    await failures.note(HostFailure(second.host, "an earlier contract", clock.now_ms()))
    hosts = {offer.host for offer in await provider.offers()}
    assert not {first.host, second.host} & hosts
    with pytest.raises(OfferGone):
        await provider.create(request_for(second))
    vast.act(trial.ref, "boot")
    eventually(lambda: vast.machine(trial.ref)["state"] == "running")
    assert (await provider.get(trial.ref)) is not None
    await provider.terminate(trial.ref)
    clock.pass_h(7)
    assert {first.host, second.host} <= {offer.host for offer in await provider.offers()}
    await provider.close()


async def test_a_host_that_fails_one_process_is_left_alone_by_all(vast: EmulatedVast, database: Database) -> None:
    """A container that cannot be started is seen by two processes and ended by a third: one failure, in the database,
    that outlives them, and hides the host from a process that starts later."""
    clock = StillClock()

    def another() -> VastProvider:
        return vast.provider(clock=clock, failures=DatabaseHostFailures(database, "vast"))

    renting, looking, ending = another(), another(), another()
    offer = (await renting.offers())[0]
    vast.fault("create", "boot_fails")
    machine = await renting.create(request_for(offer))
    assert machine.status is MachineStatus.STOPPED
    await looking.list_owned()
    await ending.terminate(machine.ref)
    for provider in (renting, looking, ending):
        await provider.close()
    known = await DatabaseHostFailures(database, "vast").known(clock.now_ms())
    assert [(failure.host, failure.machine) for failure in known] == [(offer.host, machine.ref)]
    later = another()
    assert offer.host not in {each.host for each in await later.offers()}
    with pytest.raises(OfferGone):
        await later.create(request_for(offer))
    clock.pass_h(6.1)
    assert offer.host in {each.host for each in await later.offers()}
    await later.close()


@pytest.mark.parametrize(("had_s", "barred"), [(60, False), (599, True)], ids=["a minute", "its whole time"])
async def test_a_container_that_is_still_loading_when_it_is_given_up_is_its_hosts_fault(
    vast: EmulatedVast, had_s: int, *, barred: bool
) -> None:
    """When it has had its time, counted from before the create; not when its job was cancelled meanwhile. Ending it
    twice is no second failure."""
    clock = StillClock(SystemTime().now_ms())
    provider = vast.provider(clock=clock, startup_deadline_ms=600_000)
    offer = (await provider.offers())[0]
    vast.fault("create", "stuck")
    machine = await provider.create(request_for(offer))
    clock.time_ms = machine.created_ms + had_s * 1000
    for _ in range(2):
        await provider.terminate(machine.ref)
    assert (offer.host not in {each.host for each in await provider.offers()}) is barred
    clock.pass_h(6.1)
    assert offer.host in {each.host for each in await provider.offers()}
    await provider.close()


async def test_a_container_that_ran_before_this_process_looked_is_no_fault_of_its_host(vast: EmulatedVast) -> None:
    """Rented and seen running by a process that is gone; found stopped, and ended, by another hours later."""
    clock = StillClock(SystemTime().now_ms())
    earlier = vast.provider(clock=clock)
    offer = (await earlier.offers())[0]
    machine = await earlier.create(request_for(offer))
    eventually(lambda: vast.machine(machine.ref)["state"] == "running")
    await earlier.close()
    vast.act(machine.ref, "kill")
    clock.pass_h(3)
    failures = ProcessHostFailures()
    later = vast.provider(clock=clock, failures=failures)
    await later.terminate(machine.ref)
    assert await failures.known(clock.now_ms()) == []
    await later.close()


async def test_another_process_may_carry_out_a_bid(vast: EmulatedVast) -> None:
    """What to bid for an offer that another process has seen is looked up; a contract is an interruptible one."""
    seen, other = vast.provider(bids=True), vast.provider(bids=True)
    request = request_for(next(one for one in await seen.offers() if one.interruptible))
    machine = await other.create(request)
    assert machine.price_per_hour == request.max_price_per_hour
    assert vast.machine(machine.ref)["facts"]["bid_micros"] is not None
    unlisted = replace(request, offer=replace(request.offer, offer_id="1~bid", host="1"))
    with pytest.raises(OfferGone):
        await other.create(unlisted)
    await seen.close()
    await other.close()


async def test_another_process_may_end_a_contract_and_knows_its_bill(
    vast: EmulatedVast, provider: VastProvider
) -> None:
    """What it has never seen it looks at before it destroys it; if that fails, it destroys it all the same."""
    seen, unseen = [await provider.create(request_for(offer)) for offer in (await provider.offers())[:2]]
    other = vast.provider()
    await other.terminate(seen.ref)
    ended = await other.get(seen.ref)
    assert ended is not None
    assert (ended.status, ended.billed) == (
        MachineStatus.ENDED,
        Money(vast.machine(seen.ref)["bill"]["amount_micros"]),
    )
    vast.fault("show", "error", args={"status": 500})
    await other.terminate(unseen.ref)
    assert vast.machine(unseen.ref)["state"] == "ended"
    await other.close()


async def test_charges_that_are_not_posted_are_not_believed(vast: EmulatedVast, provider: VastProvider) -> None:
    """The company's own total is told when it is all there; until then the bill is reckoned from the price."""
    vast.switch(charges_lag_ms=600_000)
    machine = await provider.create(request_for((await provider.offers())[0]))
    eventually(lambda: vast.machine(machine.ref)["state"] == "running")
    await provider.get(machine.ref)
    eventually(lambda: vast.machine(machine.ref)["bill"]["amount_micros"] > 2 * machine.price_per_hour.micros // 3_600)
    await provider.terminate(machine.ref)
    early = await provider.get(machine.ref)
    assert early is not None
    assert (early.status, early.billed) == (MachineStatus.ENDED, None)
    vast.fault("charges", "error", args={"status": 403})
    refused = await provider.get(machine.ref)
    assert refused is not None
    assert refused.billed is None
    vast.switch(charges_lag_ms=0)
    late = await provider.get(machine.ref)
    assert late is not None
    assert late.billed == Money(vast.machine(machine.ref)["bill"]["amount_micros"])


async def test_a_log_is_fetched_when_it_is_there(vast: EmulatedVast, provider: VastProvider) -> None:
    """A log appears some time after it was asked for; one that never does is a failed look."""
    machine = await provider.create(request_for((await provider.offers())[0]))
    eventually(lambda: "ready" in vast.log_of(machine.ref))
    vast.switch(log_delay_ms=200)
    assert await provider.logs(machine.ref, 1) == "ready\n"
    vast.switch(log_delay_ms=600_000)
    impatient = vast.provider(timeout_s=0.5)
    with pytest.raises(Transient):
        await impatient.logs(machine.ref, 1)
    await impatient.close()


class _Elsewhere(BaseHTTPRequestHandler):
    """Answers as the company does, and keeps the headers of who fetches the log."""

    seen: list[str | None] = []  # noqa: RUF012 - one server, one test

    def do_PUT(self) -> None:
        self._say(json.dumps({"success": True, "result_url": f"http://{self.headers['Host']}/log"}))

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("Authorization"))
        self._say("a line\n")

    def _say(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Silence."""


async def test_the_key_is_not_shown_to_whoever_keeps_the_logs(vast: EmulatedVast) -> None:
    """Logs lie somewhere else: the request for them carries no credentials."""
    with HTTPServer(("127.0.0.1", 0), _Elsewhere) as server:
        serving = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        provider = vast.provider(url=f"http://127.0.0.1:{server.server_address[1]}")
        try:
            assert await provider.logs("5", 10) == "a line\n"
        finally:
            await provider.close()
            server.shutdown()
            await asyncio.to_thread(serving.join)
    assert _Elsewhere.seen == [None]
