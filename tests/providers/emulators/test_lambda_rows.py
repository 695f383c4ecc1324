"""What Lambda is known to do, row by row of the emulator's promises, and what our adapter makes of it.

The numbers are those of the table in docs/guides/lambda.md.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.errors import (
    AuthFailed,
    InvalidRequest,
    NoCapacity,
    OfferGone,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Transient,
)
from app.ports.pace import ProcessPace
from app.ports.provider import Machine, MachineRequest, MachineStatus
from app.system import SystemClock
from providers.conformance.suite import request_for
from providers.emulators.lambda_cloud.goods import goods
from providers.emulators.lambda_cloud.limits import CallSpacing
from providers.emulators.market import EmulatedMarket
from providers.lambda_cloud.adapter import LambdaProvider
from providers.lambda_cloud.options import LambdaOptions
from tests.providers.cloud_process import eventually, ok
from tests.providers.emulators.process import KEY, EmulatorProcess
from tests.providers.lambda_account import LambdaAccount, idle_script, provider, refused

HOUR_MS = 3_600_000
NO_CAPACITY = "instance-operations/launch/insufficient-capacity"


@pytest.fixture
async def ours(shared_lambda: EmulatorProcess) -> AsyncIterator[LambdaProvider]:
    adapter = provider(shared_lambda.url)
    yield adapter
    await adapter.close()


@pytest.fixture(scope="module")
def slow_lambda_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatorProcess]:
    emulator = EmulatorProcess.start("lambda", tmp_path_factory.mktemp("slow") / "lambda", speed=1)
    yield emulator
    emulator.kill()


@pytest.fixture
def slow_lambda(slow_lambda_process: EmulatorProcess) -> Iterator[EmulatorProcess]:
    """In real time, with all limits; nothing waits for a boot. What other tests have ended lingers in its lists."""
    yield slow_lambda_process
    slow_lambda_process.clean_up()


async def a_request(ours: LambdaProvider, **wanted: Any) -> MachineRequest:
    """For the cheapest offer that is like this."""
    offers = [each for each in await ours.offers() if all(getattr(each, k) == v for k, v in wanted.items())]
    return request_for(min(offers, key=lambda offer: (offer.price_per_hour, offer.key)))


async def running(emulator: EmulatorProcess, ours: LambdaProvider, machine: Machine) -> Machine:
    emulator.until(machine.ref, "running")
    seen = await ours.get(machine.ref)
    assert seen is not None
    assert seen.status is MachineStatus.RUNNING
    return seen


ASKS = "$ALLPASS_AGENT_NVIDIA_SMI --query-gpu=index,name,memory.total,driver_version --format=csv,noheader,nounits"
TELLS = f"#!/bin/sh\nwhile :; do echo gpus=$({ASKS}); sleep 0.2; done\n"


async def test_a_machine_shows_the_gpus_that_were_rented_or_others(shared_lambda: EmulatorProcess) -> None:
    """Its agent has an nvidia-smi to ask; what is wrong with a GPU, or goes wrong later, is seen there and nowhere
    else."""
    account = LambdaAccount(shared_lambda)
    shared_lambda.market(supply={"gpu_1x_a10": 10, "gpu_8x_v100": 2})
    good = account.launched(user_data=TELLS)
    shared_lambda.fault(op="launch", kind="bad_gpus", args={"wrong": "driver"})
    old = account.launched(user_data=TELLS)
    shared_lambda.fault(op="launch", kind="bad_gpus", args={"wrong": "missing"})
    seven = account.launched(user_data=TELLS, instance_type_name="gpu_8x_v100", region_name="us-south-1")
    for ref in (good, old, seven):
        shared_lambda.until(ref, "running")
        assert account.instance(ref)["status"] == "active"
    eventually(lambda: "gpus=0, NVIDIA A10, 23028, 580.95.05" in shared_lambda.log_of(good))
    eventually(lambda: "gpus=0, NVIDIA A10, 23028, 550.90.07" in shared_lambda.log_of(old))
    eventually(lambda: "6, Tesla V100-SXM2-16GB" in shared_lambda.log_of(seven))
    assert "7, Tesla V100" not in shared_lambda.log_of(seven)
    shared_lambda.act(good, "gpus", wrong="lost")
    eventually(lambda: "GPU is lost" in shared_lambda.log_of(good))
    refused_act = shared_lambda.admin.post(f"/admin/machines/{good}/gpus", json={"wrong": "stolen"})
    assert "it needs GPUs, and one of: missing, kind" in refused_act.text
    for ref in (good, old, seven):
        account.terminate(ref)
    account.close()


# -- 1: boots


def test_row_1_boots_take_as_long_as_measured_and_longer_with_eight_gpus(slow_lambda: EmulatorProcess) -> None:
    """A machine boots for minutes, one with eight A100s for about a quarter of an hour, with eight H100s for longer."""
    slow_lambda.switch(rate_limits=False)
    account = LambdaAccount(slow_lambda)
    means: dict[str, float] = {}
    for type_name, region in (
        ("gpu_1x_a10", "us-east-1"),
        ("gpu_8x_a100", "us-west-1"),
        ("gpu_8x_h100_sxm5", "us-south-1"),
    ):
        slow_lambda.market(supply={type_name: 100})
        refs = [account.launched(instance_type_name=type_name, region_name=region) for _ in range(6)]
        rows = [slow_lambda.machine(ref) for ref in refs]
        means[type_name] = sum(row["boot_at_ms"] - row["created_ms"] for row in rows) / len(rows)
        assert {row["status"] for row in account.instances() if row["id"] in refs} == {"booting"}
    account.close()
    assert means["gpu_1x_a10"] == pytest.approx(255_590, rel=0.1)
    assert means["gpu_8x_a100"] == pytest.approx(900_000, rel=0.1)
    assert means["gpu_8x_h100_sxm5"] == pytest.approx(1_250_000, rel=0.1)


async def test_row_1_some_never_leave_booting_and_some_are_late(
    shared_lambda: EmulatorProcess, ours: LambdaProvider
) -> None:
    """A machine that never boots stays so until it is terminated; a late one boots when its time has come."""
    shared_lambda.fault(op="launch", kind="never_ready")
    stuck = await ours.create(await a_request(ours))
    shared_lambda.fault(op="launch", kind="boot_slow", ms=HOUR_MS)
    late = await ours.create(await a_request(ours))
    rows = [shared_lambda.machine(each.ref) for each in (stuck, late)]
    assert rows[0]["boot_at_ms"] is None
    assert rows[1]["boot_at_ms"] == rows[1]["created_ms"] + HOUR_MS
    for machine in await ours.list_owned():
        assert (machine.status, machine.billed_from_ms) == (MachineStatus.BOOTING, None)
        await ours.terminate(machine.ref)
        shared_lambda.until(machine.ref, "ended")
    assert await ours.list_owned() == []


async def test_row_1_a_machine_may_become_unhealthy(shared_lambda: EmulatorProcess, ours: LambdaProvider) -> None:
    """An unhealthy machine is there, is billed, and is told as such; a preempted one has stopped."""
    shared_lambda.fault(op="launch", kind="unhealthy", ms=0)
    machine = await ours.create(await a_request(ours))
    seen = await running(shared_lambda, ours, machine)
    assert (seen.detail, seen.billed_to_ms) == ("unhealthy", None)
    assert seen.billed_from_ms is not None
    shared_lambda.act(machine.ref, "heal")
    healed = await ours.get(machine.ref)
    assert healed is not None
    assert healed.detail == ""
    shared_lambda.act(machine.ref, "preempt")
    shared_lambda.until(machine.ref, "stopped")
    preempted = await ours.get(machine.ref)
    assert preempted is not None
    assert (preempted.status, preempted.detail) == (MachineStatus.STOPPED, "preempted")


# -- 2 and 10: capacity


async def test_row_2_capacity_may_be_gone_though_it_was_just_listed(
    shared_lambda: EmulatorProcess, lambda_account: LambdaAccount, ours: LambdaProvider
) -> None:
    """A launch where capacity was listed is refused for want of it, naming other places; nothing is rented."""
    request = await a_request(ours)
    shared_lambda.fault(op="launch", kind="no_capacity", args={"places": ["us-east-3"]})
    with pytest.raises(NoCapacity, match=r"Regions with capacity available: us-east-3"):
        await ours.create(request)
    shared_lambda.fault(op="launch", kind="no_capacity")
    message = refused(lambda_account.launch(region_name="us-west-1"), 400, NO_CAPACITY)
    assert "us-east-1" in message
    assert await ours.list_owned() == []


async def test_row_2_a_listing_lags_both_ways(slow_lambda: EmulatorProcess) -> None:
    """A listing is some seconds old: it shows what is gone already, and not yet what has come back."""
    slow_lambda.switch(rate_limits=False)
    account = LambdaAccount(slow_lambda)

    def listed() -> bool:
        free = account.types()["gpu_1x_a10"]["regions_with_capacity_available"]
        return "us-east-1" in {place["name"] for place in free}

    slow_lambda.market(supply={"gpu_1x_a10": 0})
    before = listed()
    refused(account.launch(), 400, NO_CAPACITY)
    assert before  # as it was when the script began
    account.close()
    # the other way round, on the market itself: no waiting
    market = EmulatedMarket(goods(), seed=1, speed=1, origin_ms=0, listing_lag_ms=20_000)
    market.set_supply("gpu_1x_a10", 0, 1_000_000)
    market.set_supply("gpu_1x_a10", 3, 2_000_000)
    assert market.supply("gpu_1x_a10", 2_000_000, "us-east-1") == 3
    assert market.listed_supply("gpu_1x_a10", 2_019_999, "us-east-1") == 0
    assert market.listed_supply("gpu_1x_a10", 2_020_000, "us-east-1") == 3


async def test_row_2_a_launch_is_not_wasted_on_what_is_not_listed(
    shared_lambda: EmulatorProcess, lambda_account: LambdaAccount, ours: LambdaProvider
) -> None:
    """An offer whose region is not listed any more is gone: no launch is spent on it."""
    request = await a_request(ours)
    shared_lambda.market(supply={request.offer.offer_id.partition("@")[0]: 0})
    shared_lambda.fault(op="launch", kind="drop")
    with pytest.raises(OfferGone):
        await ours.create(request)
    assert len(ok(shared_lambda.admin.get("/admin/faults"))["faults"]) == 1
    assert lambda_account.instances() == []


def test_row_10_supply_flaps_and_what_is_scarce_is_gone_for_hours() -> None:
    """Over a month supply changes within hours; the scarce type is gone for hours on end, the plentiful one seldom."""
    market = EmulatedMarket(goods(), seed=3, speed=1, origin_ms=0)
    steps = range(0, 30 * 24 * HOUR_MS, 10 * 60_000)
    scarce = [market.supply("gpu_8x_h100_sxm5", now_ms, "us-south-1") for now_ms in steps]
    plenty = [market.supply("gpu_1x_a10", now_ms, "us-east-1") for now_ms in steps]
    assert 0.3 < scarce.count(0) / len(scarce) < 0.7
    assert plenty.count(0) / len(plenty) < 0.1
    assert len(set(plenty)) > 5
    assert max(_runs_of_zeros(scarce)) >= 36  # six hours


# -- 3: rate limits


def test_row_3_one_call_a_second_and_one_launch_in_twelve() -> None:
    """Calls that come too early are refused and leave no trace; launches have a limit of their own beside that."""
    calls = [(100_000, True), (100_999, False), (101_000, False), (102_500, True), (111_999, True), (112_000, True)]
    clock = iter([at_ms for at_ms, _ in calls])
    limits = CallSpacing(lambda: next(clock), speed=1)
    told = [limits.lets_through(launch=launch) for _, launch in calls]
    assert told == [True, False, True, False, False, True]


def test_row_3_a_look_right_after_a_launch_may_be_refused(slow_lambda: EmulatorProcess) -> None:
    """A launch that worked, and a listing refused right after it: the machine is there all the same."""
    account = LambdaAccount(slow_lambda)
    ref = str(eventually(lambda: _launched(account.launch())))
    response = eventually(lambda: (answer := account.http.get("/instances")).status_code == 429 and answer)
    account.close()
    assert "error" in response.json()
    assert slow_lambda.machine(ref)["state"] == "booting"


async def test_row_3_our_pace_keeps_the_limits(tmp_path: Path) -> None:
    """With the account's pace kept, nothing is ever refused for being too fast."""
    emulator = EmulatorProcess.start("lambda", tmp_path / "lambda", speed=0.005)  # 5 ms and 60 ms
    clock = SystemClock()
    pace = ProcessPace(clock, patience_ms=60_000)
    # Counted where calls arrive: one that is late there comes closer to the next.
    options = LambdaOptions(KEY, "allpass", emulator.url, call_every_ms=400, launch_every_ms=1_200)
    ours = LambdaProvider(options, clock=clock, pace=pace, bootstrap=idle_script)
    try:
        for _ in range(2):
            machine = await ours.create(await a_request(ours))
            assert machine.ref in {each.ref for each in await ours.list_owned()}
    finally:
        await ours.close()
        emulator.kill()


async def test_row_3_too_many_requests_without_a_word_when(
    shared_lambda: EmulatorProcess, ours: LambdaProvider
) -> None:
    """Without Retry-After we stay away for as long as the limit lasts: longer after a launch."""
    request = await a_request(ours)
    for op in ("launch", "list"):
        shared_lambda.fault(op=op, kind="error", args={"status": 429})
    with pytest.raises(RateLimited) as launching:
        await ours.create(request)
    with pytest.raises(RateLimited) as listing:
        await ours.list_owned()
    assert launching.value.retry_after_ms >= 12_000
    assert 1_000 <= listing.value.retry_after_ms < 12_000


# -- 4: lost answers


@pytest.mark.parametrize("kind", ["drop", "error", "hang"])
async def test_row_4_a_launch_may_work_without_an_answer(
    shared_lambda: EmulatorProcess, lambda_account: LambdaAccount, ours: LambdaProvider, kind: str
) -> None:
    """A launch that worked without an answer is unknown, is found by its label, and would be doubled by a retry."""
    request = await a_request(ours)
    impatient = provider(shared_lambda.url, timeout_s=4.0)
    shared_lambda.fault(op="launch", kind=kind, when="after")
    with pytest.raises(OutcomeUnknown):
        await impatient.create(request)
    await impatient.close()
    found = await ours.find(request.label)
    assert [machine.label for machine in found] == [request.label]
    again = await ours.create(request)  # what nobody should do
    assert {machine.ref for machine in await ours.find(request.label)} == {found[0].ref, again.ref}
    assert [row["name"] for row in lambda_account.instances()] == [request.label] * 2


async def test_row_4_a_launch_may_work_when_nobody_waits_for_it_any_more(shared_lambda: EmulatorProcess) -> None:
    """What has arrived is carried out: a caller who leaves does not take it back."""
    hasty = provider(shared_lambda.url, timeout_s=3.0)  # its look at what is for rent has to be answered
    try:
        request = await a_request(hasty)
        shared_lambda.fault(op="launch", kind="slow", when="before", ms=5_000)
        with pytest.raises(OutcomeUnknown):
            await hasty.create(request)
    finally:
        await hasty.close()
    eventually(lambda: request.label in {row["label"] for row in shared_lambda.machines()})


# -- 5: addresses


async def test_row_5_addresses_come_late_or_never(shared_lambda: EmulatorProcess, ours: LambdaProvider) -> None:
    """A booting machine has no address; a private one may never come; nothing of ours needs either."""
    account = LambdaAccount(shared_lambda)
    shared_lambda.fault(op="launch", kind="never_ready")
    booting = await ours.create(await a_request(ours))
    assert not {"ip", "private_ip"} & account.instance(booting.ref).keys()
    shared_lambda.act(booting.ref, "boot")
    await running(shared_lambda, ours, booting)
    assert {"ip", "private_ip"} <= account.instance(booting.ref).keys()
    shared_lambda.switch(private_ips=False)
    second = await ours.create(await a_request(ours))
    await running(shared_lambda, ours, second)
    row = account.instance(second.ref)
    account.close()
    assert "ip" in row
    assert "private_ip" not in row


async def test_row_5_an_active_machine_may_be_out_of_reach_for_a_while(
    shared_lambda: EmulatorProcess, ours: LambdaProvider
) -> None:
    """A machine is active, and billed, before anything on it answers."""
    shared_lambda.fault(op="launch", kind="cloud_init_slow", ms=HOUR_MS)
    machine = await ours.create(await a_request(ours))
    seen = await running(shared_lambda, ours, machine)
    assert seen.billed_from_ms is not None
    assert shared_lambda.log_of(machine.ref) == ""
    shared_lambda.fault(op="launch", kind="cloud_init_slow", ms=50)
    second = await ours.create(await a_request(ours))
    eventually(lambda: "ready" in shared_lambda.log_of(second.ref))


# -- 6 and 7: ends


async def test_row_6_terminations_are_refused_in_several_ways(
    shared_lambda: EmulatorProcess, lambda_account: LambdaAccount, ours: LambdaProvider
) -> None:
    """Refused while booting, or for no reason: to be repeated. While it is ending, and when unknown: done."""
    shared_lambda.switch(refuse_terminate_while_booting=True)
    shared_lambda.fault(op="launch", kind="never_ready")
    machine = await ours.create(await a_request(ours))
    action = lambda_account.instance(machine.ref)["actions"]["terminate"]
    assert (action["available"], action["reason_code"]) == (False, "vm-has-not-launched")
    with pytest.raises(Transient, match="booting"):
        await ours.terminate(machine.ref)
    shared_lambda.act(machine.ref, "boot")
    await running(shared_lambda, ours, machine)
    shared_lambda.fault(op="terminate", kind="refuse_terminate")
    with pytest.raises(Transient, match="global/unknown"):
        await ours.terminate(machine.ref)
    refused(lambda_account.terminate("0" * 32), 404, "global/object-does-not-exist")
    await ours.terminate("0" * 32)
    await ours.terminate(machine.ref)
    await ours.terminate(machine.ref)


def test_row_6_and_7_what_ends_lingers_and_cannot_be_ended_twice(slow_lambda: EmulatorProcess) -> None:
    """For a while a machine is shown as terminating; ending it again is an unknown error, its bill is closed."""
    slow_lambda.switch(rate_limits=False)
    account = LambdaAccount(slow_lambda)
    ref = account.launched()
    slow_lambda.act(ref, "boot")
    slow_lambda.until(ref, "running")
    ended = ok(account.terminate(ref))["data"]["terminated_instances"]
    assert [(each["id"], each["status"]) for each in ended] == [(ref, "terminating")]
    refused(account.terminate(ref), 400, "global/unknown")
    slow_lambda.until(ref, "ended")
    assert [row["status"] for row in account.instances() if row["id"] == ref] == ["terminating"]
    assert account.instance(ref)["actions"]["terminate"]["reason_code"] == "vm-is-terminating"
    bill = slow_lambda.machine(ref)["bill"]
    account.close()
    assert bill["final"]
    assert bill["to_ms"] is not None


@pytest.mark.parametrize("gone_is", ["404", "terminated"])
async def test_row_7_what_is_gone_is_told_in_two_ways(
    shared_lambda: EmulatorProcess, lambda_account: LambdaAccount, ours: LambdaProvider, gone_is: str
) -> None:
    """Off the list, a machine is a 404, or still told as terminated: ended either way, also when asked for again."""
    shared_lambda.switch(gone_is=gone_is)
    machine = await ours.create(await a_request(ours))
    await running(shared_lambda, ours, machine)
    await ours.terminate(machine.ref)
    shared_lambda.until(machine.ref, "ended")
    assert lambda_account.instances() == []
    assert lambda_account.http.get(f"/instances/{machine.ref}").status_code == (404 if gone_is == "404" else 200)
    ended = await ours.get(machine.ref)
    assert ended is not None
    assert ended.status is MachineStatus.ENDED
    assert ended.billed_to_ms is not None
    assert await ours.get(machine.ref) == ended
    await ours.terminate(machine.ref)
    stranger = provider(shared_lambda.url)  # another process of ours
    unknown = await stranger.get(machine.ref)
    await stranger.close()
    assert unknown is None or unknown.status is MachineStatus.ENDED


async def test_row_6_a_list_may_be_partial(shared_lambda: EmulatorProcess, ours: LambdaProvider) -> None:
    """A listing may lack a machine that a direct look finds."""
    first = await ours.create(await a_request(ours))
    second = await ours.create(await a_request(ours))
    shared_lambda.fault(op="list", kind="partial_list", args={"hide": 1})
    assert [machine.ref for machine in await ours.list_owned()] == [first.ref]
    assert await ours.get(second.ref) is not None
    assert {machine.ref for machine in await ours.list_owned()} == {first.ref, second.ref}


# -- 8 and 9: refusals

_INVALID, _MISSING = (400, "global/invalid-parameters"), (404, "global/object-does-not-exist")


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ({"quantity": 2}, _INVALID),
        ({"ssh_key_names": ["allpass", "second"]}, _INVALID),
        ({"ssh_key_names": []}, _INVALID),
        ({"ssh_key_names": ["unknown"]}, _MISSING),
        ({"name": "x" * 65}, _INVALID),
        ({"user_data": "#!" + "x" * 1_000_000}, _INVALID),
        ({"hostname": "Not A Hostname"}, _INVALID),
        ({"region_name": "moon-1"}, _INVALID),
        ({"region_name": None}, _INVALID),
        ({"instance_type_name": "gpu_1x_abacus"}, _MISSING),
        ({"tags": [{"key": "a"}]}, _INVALID),
        ({"file_system_names": ["mine"]}, _MISSING),
        ({"colour": "blue"}, _INVALID),
    ],
    ids=lambda value: "-".join(value)[:30] if isinstance(value, dict) else "",
)
def test_row_8_launches_are_checked(
    lambda_account: LambdaAccount, fields: dict[str, Any], answer: tuple[int, str]
) -> None:
    """A launch that is wrong in itself is refused with the documented code, and launches nothing."""
    refused(lambda_account.launch(**fields), *answer)
    assert lambda_account.instances() == []


async def test_row_8_a_key_that_the_account_lacks_is_our_mistake(shared_lambda: EmulatorProcess) -> None:
    """A launch with an SSH key that does not exist is an invalid request: it is not retried elsewhere and back."""
    ours = provider(shared_lambda.url)
    wrong = LambdaProvider(
        LambdaOptions(KEY, "no-such-key", shared_lambda.url),
        clock=SystemClock(),
        pace=ProcessPace(SystemClock(), patience_ms=60_000),
        bootstrap=idle_script,
    )
    try:
        with pytest.raises(InvalidRequest, match="SSH key"):
            await wrong.create(await a_request(ours))
    finally:
        await wrong.close()
        await ours.close()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("global/quota-exceeded", QuotaExceeded),
        ("global/account-inactive", AuthFailed),
        ("global/invalid-billing-address", AuthFailed),
        ("global/invalid-address", AuthFailed),
        ("global/invalid-api-key", AuthFailed),
        ("global/invalid-parameters", InvalidRequest),
        ("global/internal-error", OutcomeUnknown),
        ("global/unknown", OutcomeUnknown),
        ("supplier/something-new", OutcomeUnknown),
    ],
)
async def test_row_9_codes_become_errors_that_say_what_to_do(
    shared_lambda: EmulatorProcess, ours: LambdaProvider, code: str, error: type[ProviderError]
) -> None:
    """Each documented code of a refused launch is the error of ours that decides what follows."""
    request = await a_request(ours)
    shared_lambda.fault(op="launch", kind="error", args={"code": code})
    with pytest.raises(error):
        await ours.create(request)
    assert await ours.find(request.label) == []


async def test_row_9_quota_and_account_are_states(shared_lambda: EmulatorProcess, ours: LambdaProvider) -> None:
    """A quota of GPUs holds until some are given back; an inactive account can do nothing at all."""
    shared_lambda.switch(gpu_quota=1)
    machine = await ours.create(await a_request(ours))
    with pytest.raises(QuotaExceeded):
        await ours.create(await a_request(ours))
    await ours.terminate(machine.ref)
    shared_lambda.until(machine.ref, "ended")
    await ours.create(await a_request(ours))
    shared_lambda.switch(account_inactive=True)
    with pytest.raises(AuthFailed, match="inactive"):
        await ours.list_owned()


# -- 11: machines that never call home


async def test_row_11_cloud_init_may_fail(shared_lambda: EmulatorProcess, ours: LambdaProvider) -> None:
    """A machine whose user data never ran looks like any other: active, billed, and silent."""
    shared_lambda.fault(op="launch", kind="cloud_init_fails")
    silent = await ours.create(await a_request(ours))
    fine = await ours.create(await a_request(ours))
    eventually(lambda: "ready" in shared_lambda.log_of(fine.ref))
    eventually(lambda: shared_lambda.machine(silent.ref)["exit_code"] is not None)
    seen = await running(shared_lambda, ours, silent)
    assert (seen.detail, seen.billed_to_ms) == ("", None)
    assert shared_lambda.log_of(silent.ref) == ""
    shared_lambda.switch(cloud_init_fails_ppm=1_000_000)
    third = await ours.create(await a_request(ours))
    eventually(lambda: shared_lambda.machine(third.ref)["exit_code"] is not None)


async def test_row_11_nothing_that_happens_inside_ends_the_bill(
    shared_lambda: EmulatorProcess, ours: LambdaProvider
) -> None:
    """When its agent dies, a machine stays active and billed until it is terminated."""
    machine = await ours.create(await a_request(ours))
    await running(shared_lambda, ours, machine)
    shared_lambda.act(machine.ref, "kill")
    eventually(lambda: shared_lambda.machine(machine.ref)["exit_code"] == -9)
    assert (await running(shared_lambda, ours, machine)).billed_to_ms is None
    assert not shared_lambda.machine(machine.ref)["bill"]["final"]


# -- 12: the bill


async def test_row_12_started_minutes_from_active_to_terminate(
    shared_lambda: EmulatorProcess, ours: LambdaProvider
) -> None:
    """A machine that was active for a moment costs a minute; one that never was costs nothing."""
    machine = await ours.create(await a_request(ours, gpu_type="A10"))
    await running(shared_lambda, ours, machine)
    shared_lambda.fault(op="launch", kind="never_ready")
    booting = await ours.create(await a_request(ours))
    for each in (machine, booting):
        await ours.terminate(each.ref)
    lines = {line["ref"]: line for line in ok(shared_lambda.admin.get("/admin/ledger"))["lines"]}
    assert lines[machine.ref]["billed_ms"] == 60_000
    assert lines[machine.ref]["amount_micros"] == 750_000 // 60
    assert lines[booting.ref]["amount_micros"] == 0
    orphans = ok(shared_lambda.admin.post("/admin/ledger", json={"owned": [booting.ref]}))
    assert machine.ref in orphans["orphans"]


def test_nobody_listens_on_an_instances_address(lambda_account: LambdaAccount) -> None:
    """Addresses come from a block that is nobody's: they cannot be mistaken for a machine."""
    ref = lambda_account.launched()
    address = eventually(lambda: lambda_account.instance(ref).get("ip"))
    assert socket.inet_aton(address)[:3] == socket.inet_aton("192.0.2.0")[:3]


def _launched(response: httpx.Response) -> str | None:
    """The id; None when the launch was refused."""
    return response.json()["data"]["instance_ids"][0] if response.is_success else None


def _runs_of_zeros(supply: list[int]) -> list[int]:
    runs, length = [0], 0
    for each in supply:
        length = length + 1 if each == 0 else 0
        runs.append(length)
    return runs
