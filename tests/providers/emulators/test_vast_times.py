"""How long the emulated Vast.ai takes, and what of it survives its process."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.ports.provider import MachineStatus
from providers.conformance.suite import new_label
from providers.emulators.startup import VAST, StartupTimes
from tests.providers.cloud_process import eventually, processes_under
from tests.providers.vast_emulator import EmulatedVast
from workers.machines.processes import send_signal

SPEED = 0.002


@pytest.fixture
def start_vast(tmp_path: Path) -> Iterator[Callable[..., EmulatedVast]]:
    """Starts emulators on one data directory; whatever they leave behind is ended."""
    started: list[EmulatedVast] = []

    def start(**options: Any) -> EmulatedVast:
        started.append(EmulatedVast.start(tmp_path / "emulator", speed=SPEED, **options))
        return started[-1]

    yield start
    for vast in started:
        vast.kill()
    for identity in processes_under(tmp_path):
        send_signal(identity, signal.SIGKILL)


def test_starts_take_as_long_as_published() -> None:
    """36 s with a deviation of 7 s, and now and then minutes, or for ever."""
    times = StartupTimes(VAST, seed=1, speed=1.0)
    drawn = [times.boot_ms(number) for number in range(4_000)]
    usual = [each for each in drawn if each is not None and each < 150_000]
    assert abs(sum(usual) / len(usual) - 36_040) < 500
    assert 80 <= drawn.count(None) <= 160  # 3 %
    assert 0.03 < sum(each is not None and each >= 300_000 for each in drawn) / len(drawn) < 0.07


def test_an_image_is_pulled_once_and_contracts_outlive_the_emulator(start_vast: Callable[..., EmulatedVast]) -> None:
    """An image that a host has not run yet takes longer to start; contracts, labels and bills survive a restart."""
    vast = start_vast(switches={"image_mb": 8_000})
    offer = min(vast.search(gpu_name={"eq": "Tesla T4"}), key=lambda row: float(row["inet_down"]))
    label = new_label()
    first = str(vast.rent(offer["id"], label=label).json()["new_contract"])
    eventually(lambda: vast.machine(first)["state"] == "running")
    vast.act(first, "end")
    second = str(vast.rent(offer["id"], label=label).json()["new_contract"])
    told = [vast.machine(ref) for ref in (first, second)]
    pulled, cached = (machine["boot_at_ms"] - machine["created_ms"] for machine in told)
    pull_ms = 8_000 * 8_000 / offer["inet_down"] * SPEED
    assert pulled - cached > pull_ms * 0.5
    eventually(lambda: vast.machine(second)["state"] == "running")
    vast.kill()
    again = start_vast()
    rows = again.api.get("/api/v1/instances/").json()["instances"]
    assert [(str(row["id"]), row["label"]) for row in rows] == [(second, label)]
    assert again.machine(first)["bill"]["amount_micros"] == told[0]["bill"]["amount_micros"]


async def test_the_adapter_sees_a_start_from_beginning_to_end(start_vast: Callable[..., EmulatedVast]) -> None:
    """No status at all, then loading, then running: booting until it runs, and billed from then on only."""
    vast = start_vast()
    provider = vast.provider()
    vast.switch(image_mb=60_000_000)  # it takes for ever
    ref = str(vast.rent(label=new_label()).json()["new_contract"])
    booting = await provider.get(ref)
    assert booting is not None
    assert (booting.status, booting.detail, booting.billed_from_ms) == (MachineStatus.BOOTING, "provisioning", None)
    assert vast.api.get(f"/api/v0/instances/{ref}/").json()["instances"]["actual_status"] is None
    vast.act(ref, "boot")
    eventually(lambda: vast.machine(ref)["state"] == "running")
    running = await provider.get(ref)
    assert running is not None
    assert running.status is MachineStatus.RUNNING
    assert running.billed_from_ms is not None
    await provider.close()
