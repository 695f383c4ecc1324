"""What RunPod is known to do, row by row of the table in docs/guides/runpod.md, through the bare API."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from providers.emulators.runpod.goods import disk_micros_per_hour, good_name
from providers.emulators.runpod.limits import CALLS, RequestWindow
from tests.providers.cloud_process import eventually, ok
from tests.providers.emulators.process import EmulatorProcess
from tests.providers.runpod_account import A6000, RunpodAccount, refused

SECURE_A6000 = good_name("SECURE", A6000)
Start = Callable[..., tuple[EmulatorProcess, RunpodAccount]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """An emulator of one's own, with other options."""
    started: list[tuple[EmulatorProcess, RunpodAccount]] = []

    def begin(**options: Any) -> tuple[EmulatorProcess, RunpodAccount]:
        emulator = EmulatorProcess.start("runpod", tmp_path / "runpod", **options)
        started.append((emulator, RunpodAccount(emulator)))
        return started[-1]

    yield begin
    for emulator, account in started:
        account.close()
        emulator.kill()


def until_status(account: RunpodAccount, ref: str, status: str) -> dict[str, Any]:
    return dict(eventually(lambda: (pod := account.pod(ref))["status"] == status and pod))


def ledger_line(emulator: EmulatorProcess, ref: str) -> dict[str, Any]:
    return dict(
        eventually(
            lambda: next(
                (
                    line
                    for line in ok(emulator.admin.get("/admin/ledger"))["lines"]
                    if line["ref"] == ref and line["final"]
                ),
                None,
            )
        )
    )


def test_a_pod_has_the_fields_of_the_published_schema(runpod_account: RunpodAccount) -> None:
    """Names are not unique; what was ordered comes back, and what is inside stays inside."""
    ref = runpod_account.created(name="twin", env={"A": "b"}, disk=30)
    assert runpod_account.created(name="twin") != ref
    pod = until_status(runpod_account, ref, "RUNNING")
    needed = (
        "id name status actions image args disk mounts ports env registry cloud dataCenterId cudaVersion ssh template"
    )
    assert set(needed.split()) < set(pod)
    assert (pod["name"], pod["env"], pod["disk"], pod["cloud"]) == ("twin", {"A": "b"}, 30, "SECURE")
    assert pod["gpu"]["count"] == 1
    assert pod["cost"] == 0.49
    assert pod["createdAt"].endswith("Z") and "." not in pod["createdAt"]
    assert pod["startedAt"] is not None


def test_rows_1_and_2_there_is_no_room_whatever_the_catalog_says(
    shared_runpod: EmulatorProcess, runpod_account: RunpodAccount
) -> None:
    """A 400 without a field, in words that differ; nothing is rented."""
    assert runpod_account.gpus()[A6000]["availability"] == "HIGH"
    for words, told in (("instances", "no longer any instances"), ("disk", "enough disk space")):
        shared_runpod.fault(op="create", kind="no_capacity", args={"words": words})
        problem = refused(runpod_account.create(), 400)
        assert told in problem["detail"]
        assert "errors" not in problem
    shared_runpod.market(supply={SECURE_A6000: 0})
    refused(runpod_account.create(), 400)
    row = runpod_account.gpus()[A6000]
    assert (row["availability"], "dataCenters" in row) == ("NONE", False)
    assert runpod_account.pods() == []


def test_stock_is_of_gpus_and_a_pod_takes_all_of_its_own(
    shared_runpod: EmulatorProcess, runpod_account: RunpodAccount
) -> None:
    """Of three GPUs in each data center no pod of four comes to be."""
    shared_runpod.market(supply={SECURE_A6000: 3})
    refused(runpod_account.create(gpu={"id": A6000, "count": 4}), 400)
    for _ in range(3):
        runpod_account.created(gpu={"id": A6000, "count": 3})
    assert runpod_account.gpus()[A6000]["availability"] == "NONE"
    refused(runpod_account.create(), 400)


def test_row_3_a_pod_that_never_exists(shared_runpod: EmulatorProcess, runpod_account: RunpodAccount) -> None:
    """The answer is that of a success."""
    shared_runpod.fault(op="create", kind="ghost")
    ref = runpod_account.created()
    refused(runpod_account.http.get(f"/pods/{ref}"), 404)
    assert runpod_account.pods() == []


def test_row_4_provisioning_for_ever_and_error(shared_runpod: EmulatorProcess, runpod_account: RunpodAccount) -> None:
    """Neither is charged for."""
    for kind, status in (("never_ready", "PROVISIONING"), ("fails", "ERROR")):
        shared_runpod.fault(op="create", kind=kind)
        ref = runpod_account.created()
        assert runpod_account.pod(ref)["status"] == status
        assert runpod_account.http.delete(f"/pods/{ref}").status_code == 204
        assert ledger_line(shared_runpod, ref)["amount_micros"] == 0


def test_row_5_a_pod_in_no_listing_costs_all_the_same(
    shared_runpod: EmulatorProcess, runpod_account: RunpodAccount
) -> None:
    """And can be deleted by whoever knows its id."""
    ref = runpod_account.created()
    until_status(runpod_account, ref, "RUNNING")
    shared_runpod.act(ref, "vanish")
    assert runpod_account.pods() == []
    assert shared_runpod.machine(ref)["state"] == "running"
    assert runpod_account.http.delete(f"/pods/{ref}").status_code == 204
    shared_runpod.until(ref, "ended")


def test_rows_6_and_10_a_pod_that_does_not_run_has_lost_its_gpus(
    shared_runpod: EmulatorProcess, runpod_account: RunpodAccount
) -> None:
    """Stopped, or its host taken down: EXITED, for nothing, and not to be started again."""
    ref = runpod_account.created()
    until_status(runpod_account, ref, "RUNNING")
    shared_runpod.act(ref, "exit")
    pod = until_status(runpod_account, ref, "EXITED")
    assert (pod["cost"], pod["runtime"], pod["actions"]) == (0.0, None, ["start", "terminate"])
    assert "not enough free GPUs" in refused(runpod_account.act(ref, "start"), 400)["detail"]
    shared_runpod.switch(start_finds_gpus=True)
    assert runpod_account.act(ref, "start").status_code == 200
    until_status(runpod_account, ref, "RUNNING")
    assert runpod_account.act(ref, "stop").status_code == 200
    assert runpod_account.act(ref, "terminate").status_code == 204


def test_row_7_hosts_without_the_cuda_are_not_in_stock(runpod_account: RunpodAccount) -> None:
    """Compared number by number, in the catalog and in a create."""
    assert runpod_account.gpus(minCudaVersion="13.0")[A6000]["availability"] == "HIGH"
    assert runpod_account.gpus(minCudaVersion="13.10")[A6000]["availability"] == "NONE"
    refused(runpod_account.create(gpu={"id": A6000, "minCudaVersion": "14.0"}), 400)
    problem = refused(runpod_account.create(gpu={"id": A6000, "minCudaVersion": "13"}), 422)
    assert problem["errors"][0]["location"] == "body.gpu.minCudaVersion"


def test_row_7_the_gpus_of_a_pod_are_what_was_ordered_or_not(
    shared_runpod: EmulatorProcess, runpod_account: RunpodAccount
) -> None:
    """Its nvidia-smi says so."""
    ask = "$ALLPASS_AGENT_NVIDIA_SMI --query-gpu=name,memory.total --format=csv,noheader,nounits"
    for wrong, name in (("", "NVIDIA RTX A6000, 49152"), ("kind", "GTX 1080")):
        if wrong:
            shared_runpod.fault(op="create", kind="bad_gpus", args={"wrong": wrong})
        ref = runpod_account.created(args=f"/bin/sh -c '{ask}; exec sleep 600'")
        eventually(lambda ref=ref, name=name: name in shared_runpod.log_of(ref))


def test_row_8_a_start_takes_its_time(start: Start) -> None:
    """PROVISIONING, then STARTING, then RUNNING."""
    emulator, account = start(speed=0.05)
    created = account.create().json()
    assert created["status"] == "PROVISIONING"  # in the answer itself: asked for later, it may be further
    ref = created["id"]
    machine = emulator.machine(ref)
    assert 0.05 * 15_000 < machine["boot_at_ms"] - machine["created_ms"] < 0.05 * 120_000
    eventually(lambda: account.pod(ref)["status"] in {"STARTING", "RUNNING"})


def test_row_9_refusals_are_problem_documents(shared_runpod: EmulatorProcess, runpod_account: RunpodAccount) -> None:
    """With the status of the trouble, and Retry-After where there is something to wait for."""
    stranger = RunpodAccount(shared_runpod, "wrong")
    refused(stranger.http.get("/pods"), 401)
    stranger.close()
    shared_runpod.switch(balance_is_low=True, read_only_key=False)
    refused(runpod_account.create(), 402)
    shared_runpod.switch(read_only_key=True)
    refused(runpod_account.create(), 403)
    assert runpod_account.pods() == []
    shared_runpod.fault(op="list", kind="error", args={"status": 429, "retry_after_s": 7})
    limited = runpod_account.http.get("/pods")
    refused(limited, 429)
    assert limited.headers["Retry-After"] == "7"


def test_row_9_sixty_calls_a_minute() -> None:
    """The 61st waits for the rest of the minute, and a new window begins after it."""
    now = [1_000_000]
    limits = RequestWindow(lambda: now[0], speed=1.0)
    assert [limits.wait_ms() for _ in range(CALLS)] == [0] * CALLS
    now[0] += 20_000
    assert limits.wait_ms() == 40_000
    now[0] += 40_000
    assert limits.wait_ms() == 0


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"name": None}, 422),
        ({"image": None}, 422),
        ({"gpuCount": 1}, 422),
        ({"gpu": None}, 400),
        ({"cpu": {"id": "cpu5c", "vcpuCount": 2}}, 400),
        ({"gpu": {"id": "NVIDIA ABACUS"}}, 400),
        ({"gpu": {"id": A6000, "count": 0}}, 422),
        ({"gpu": {"id": A6000, "bid": 1}}, 422),
        ({"cloud": "ANY"}, 422),
        ({"disk": 0}, 422),
        ({"env": {"A": 1}}, 422),
        ({"env": {f"A{number}": "" for number in range(51)}}, 400),
        ({"args": "sh -c 'unclosed"}, 400),
        ({"dataCenterIds": ["MOON-1"]}, 400),
    ],
)
def test_an_order_that_does_not_fit_is_refused(
    change: dict[str, Any], status: int, runpod_account: RunpodAccount
) -> None:
    """Unknown fields by name; nothing is rented."""
    refused(runpod_account.create(**change), status)
    assert runpod_account.pods() == []


def test_row_11_a_create_that_is_repeated_makes_a_second_pod(
    shared_runpod: EmulatorProcess, runpod_account: RunpodAccount
) -> None:
    """There is no key that would tell that it is the same."""
    shared_runpod.fault(op="create", kind="drop", when="after")
    with pytest.raises(httpx.HTTPError):
        runpod_account.create(name="one")
    runpod_account.created(name="one")
    assert [pod["name"] for pod in runpod_account.pods()] == ["one", "one"]


def test_row_13_started_seconds_while_it_runs(shared_runpod: EmulatorProcess, runpod_account: RunpodAccount) -> None:
    """GPU and disk, from running to deleted; deleted twice is not found."""
    ref = runpod_account.created(disk=64)
    until_status(runpod_account, ref, "RUNNING")
    begun = time.monotonic()
    assert runpod_account.http.delete(f"/pods/{ref}").status_code == 204
    refused(runpod_account.http.delete(f"/pods/{ref}"), 404)
    line = ledger_line(shared_runpod, ref)
    assert line["price_micros_per_hour"] == 490_000 + disk_micros_per_hour(64)
    seconds = -(-(line["to_ms"] - line["from_ms"]) // 1000)
    assert line["billed_ms"] == 1000 * seconds
    assert abs(line["amount_micros"] - line["price_micros_per_hour"] * seconds / 3600) <= 1
    assert time.monotonic() - begun < 60


def test_a_deleted_pod_is_gone_or_terminated(shared_runpod: EmulatorProcess, runpod_account: RunpodAccount) -> None:
    """Which of both is not known; it is in no listing either way."""
    ref = runpod_account.created()
    runpod_account.http.delete(f"/pods/{ref}")
    refused(runpod_account.http.get(f"/pods/{ref}"), 404)
    shared_runpod.switch(gone_is="TERMINATED")
    assert runpod_account.pod(ref)["status"] == "TERMINATED"
    assert runpod_account.pods() == []
