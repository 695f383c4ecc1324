"""The emulated Modal starts as slowly as the real one, goes down, and comes back with all it had."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.errors import OutcomeUnknown, Transient
from app.ports.provider import MachineStatus
from providers.emulators.startup import MODAL, StartupTimes
from tests.ports import reserved_port
from tests.providers.cloud_process import PATIENCE_S, processes_under
from tests.providers.modal_emulator import EmulatedModal, rent
from workers.machines.processes import send_signal

SPEED, SEED = 0.02, 7


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as reserved:
        yield reserved


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., EmulatedModal]]:
    """Starts emulators on one data directory; whatever they leave behind is ended."""
    emulators: list[EmulatedModal] = []

    def start_one(**options: object) -> EmulatedModal:
        given = {"speed": SPEED, "seed": SEED, "machines_die_with_emulator": False} | options
        emulators.append(EmulatedModal.start(tmp_path / "modal", **given))
        return emulators[-1]

    yield start_one
    for emulator in emulators:
        emulator.kill()
    for identity in processes_under(tmp_path):
        send_signal(identity, signal.SIGKILL)


async def test_an_outage_changes_nothing(start: Callable[..., EmulatedModal], port: int) -> None:
    """While Modal cannot be reached every look is Transient; afterwards the same connection sees the same sandboxes,

    their processes have run on, and a second create call under the same label makes no second one.
    """
    emulator = start(port=port)  # the same after the outage
    provider = emulator.provider(timeout_s=8.0)
    first = await rent(provider)
    emulator.until(first.ref, "running")
    assert emulator.terminate_process() == 0
    with pytest.raises(Transient):
        await provider.list_owned()
    again = start(port=port)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                listed = await provider.list_owned()
            except Transient:
                continue
            if listed:
                break
    assert [(machine.ref, machine.label, machine.status) for machine in listed] == [
        (first.ref, first.label, MachineStatus.RUNNING)
    ]
    with pytest.raises(OutcomeUnknown):
        await rent(provider, label=first.label)
    assert [each["ref"] for each in again.machines(first.label)] == [first.ref]
    await provider.terminate(first.ref)
    assert again.bill(first.ref)["final"]
    await provider.close()


async def test_a_start_takes_the_time_that_was_measured(start: Callable[..., EmulatedModal]) -> None:
    """The wait for a machine is drawn from the published distribution, scaled; it is not billed."""
    emulator = start()
    provider = emulator.provider()
    machine = await rent(provider)
    row = emulator.until(machine.ref, "running")
    drawn_ms = StartupTimes(MODAL, seed=SEED, speed=SPEED, tails=False).boot_ms(1)
    assert row["boot_at_ms"] - row["created_ms"] == drawn_ms
    assert row["ready_ms"] >= row["boot_at_ms"]
    assert emulator.bill(machine.ref)["from_ms"] == row["ready_ms"]
    await provider.close()


def test_some_starts_never_come() -> None:
    """With the tails that users report, some sandboxes wait for a machine for ever, and some for more than a minute."""
    times = StartupTimes(MODAL, seed=SEED, speed=1.0)
    drawn = [times.boot_ms(number) for number in range(3_000)]
    assert 0 < drawn.count(None) < 30
    assert 3_000 < sorted(each or 10**9 for each in drawn)[1_500] < 4_500
    assert any(each is not None and each > 60_000 for each in drawn)
