"""What a contract's row means, and what is remembered of it."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.model.money import Money
from app.errors import Transient
from app.ports.provider import MachineStatus
from providers.vast.contracts import SeenContracts
from tests.providers.vast.clocks import StillClock

ROW: dict[str, Any] = {
    "id": 7,
    "label": "node_x",
    "machine_id": 45,
    "actual_status": "loading",
    "cur_state": "running",
    "next_state": "running",
    "intended_status": "running",
    "status_msg": None,
    "dph_total": 0.5,
    "start_date": 1_795_251_990.25,
    "end_date": 1_797_000_000.0,
}
OUTBID = dict.fromkeys(("cur_state", "next_state", "intended_status"), "stopped")


@pytest.mark.parametrize(
    ("told", "fresh", "mid_job"),
    [
        ({"actual_status": None}, MachineStatus.BOOTING, MachineStatus.BOOTING),
        ({"actual_status": "created"}, MachineStatus.BOOTING, MachineStatus.BOOTING),
        ({"actual_status": "loading", "status_msg": "pulling"}, MachineStatus.BOOTING, MachineStatus.BOOTING),
        ({"actual_status": "rebooting"}, MachineStatus.BOOTING, MachineStatus.BOOTING),
        ({"actual_status": "running"}, MachineStatus.RUNNING, MachineStatus.RUNNING),
        ({"actual_status": "offline"}, MachineStatus.STOPPED, MachineStatus.RUNNING),
        ({"actual_status": "unknown"}, MachineStatus.STOPPED, MachineStatus.RUNNING),
        ({"actual_status": "exited"}, MachineStatus.STOPPED, MachineStatus.STOPPED),
        ({"actual_status": "stopped"}, MachineStatus.STOPPED, MachineStatus.STOPPED),
        ({"actual_status": "frozen"}, MachineStatus.STOPPED, MachineStatus.STOPPED),
        ({"actual_status": "loading", **OUTBID}, MachineStatus.STOPPED, MachineStatus.STOPPED),
        (
            {"actual_status": "created", "status_msg": "OCI runtime create failed: bind: address already in use"},
            MachineStatus.STOPPED,
            MachineStatus.STOPPED,
        ),
    ],
    ids=lambda value: str(value.get("actual_status")) if isinstance(value, dict) else None,
)
def test_a_status_has_a_meaning(told: dict[str, Any], fresh: MachineStatus, mid_job: MachineStatus) -> None:
    """While it exists a contract has never ended; a host that is away failed to start, or may come back."""
    contracts = SeenContracts(StillClock())
    assert contracts.see(ROW | told).machine.status is fresh
    contracts.see(ROW | {"id": 8, "actual_status": "running"})
    assert contracts.see(ROW | told | {"id": 8}).machine.status is mid_job


def test_run_time_is_from_the_first_look_to_the_last() -> None:
    """Billed from the look that found it running to the one that did not; what ended it says when, if nothing did."""
    clock = StillClock()
    contracts = SeenContracts(clock)
    assert contracts.see(ROW).machine.billed_from_ms is None
    clock.time_ms += 10_000
    ran_from_ms = clock.now_ms()
    contracts.see(ROW | {"actual_status": "running"})
    clock.time_ms += 3_600_000
    seen = contracts.see(ROW | {"actual_status": "running"}).machine
    assert (seen.billed_from_ms, seen.billed_to_ms, seen.ends_ms) == (ran_from_ms, None, 1_797_000_000_000)
    ended = contracts.end("7")
    assert ended is not None
    assert (ended.machine.status, ended.machine.billed_to_ms) == (MachineStatus.ENDED, clock.now_ms())
    assert ended.certain_cost() == Money(500_000)


def test_a_container_that_stopped_before_is_billed_until_then() -> None:
    """Between the container's end and the contract's only the disk costs."""
    clock = StillClock()
    contracts = SeenContracts(clock)
    contracts.see(ROW | {"actual_status": "running"})
    clock.time_ms += 1_800_000
    exited_ms = clock.now_ms()
    contracts.see(ROW | {"actual_status": "exited"})
    clock.time_ms += 900_000
    ended = contracts.end("7")
    assert ended is not None
    assert ended.machine.billed_to_ms == exited_ms
    assert ended.certain_cost() == Money(250_000)


def test_an_interrupted_run_has_no_certain_cost() -> None:
    """How long it ran in pieces is not known from looking now and then: nothing is certain."""
    clock = StillClock()
    contracts = SeenContracts(clock)
    for status in ("running", "stopped", "running"):
        contracts.see(ROW | {"actual_status": status})
        clock.time_ms += 1_000
    ended = contracts.end("7")
    assert ended is not None
    assert ended.certain_cost() == Money(0)


def test_an_end_is_kept_and_taken_back_if_it_is_listed_again() -> None:
    """The first end counts; a contract that is listed after all has not ended."""
    clock = StillClock()
    contracts = SeenContracts(clock)
    assert contracts.end("7") is None
    contracts.see(ROW | {"actual_status": "running"})
    first = contracts.end("7")
    assert first is not None
    billed_to_ms = first.machine.billed_to_ms
    clock.time_ms += 5_000
    again = contracts.end("7")
    assert again is not None
    assert again.machine.billed_to_ms == billed_to_ms
    assert contracts.see(ROW | {"actual_status": "running"}).machine.status is MachineStatus.RUNNING


@pytest.mark.parametrize("broken", [{"id": None}, {"dph_total": None}, {"dph_total": "much"}])
def test_a_row_that_says_too_little_is_not_guessed_at(broken: dict[str, Any]) -> None:
    """Without a number or a price nothing is concluded: the listing has failed."""
    with pytest.raises(Transient):
        SeenContracts(StillClock()).see(ROW | broken)


def test_what_a_row_lacks_for_a_moment_is_as_it_was() -> None:
    """A label or a price that is not there just now is the one that was seen before, or that of its parts."""
    contracts = SeenContracts(StillClock())
    parts = ROW | {"dph_total": None, "dph_base": "0.48", "storage_total_cost": 0.02}
    assert contracts.see(parts).machine.price_per_hour == Money(500_000)
    again = contracts.see(ROW | {"dph_total": None, "label": None}).machine
    assert (again.price_per_hour, again.label) == (Money(500_000), "node_x")


def test_a_contract_without_a_start_is_as_old_as_its_first_sight() -> None:
    """It grows old all the same, so that somebody ends it one day."""
    clock = StillClock()
    contracts = SeenContracts(clock)
    first_ms = clock.now_ms()
    contracts.see(ROW | {"start_date": None})
    clock.time_ms += 60_000
    assert contracts.see(ROW | {"start_date": None}).machine.created_ms == first_ms


def test_only_so_many_contracts_are_remembered() -> None:
    """A process that runs for months does not grow."""
    contracts = SeenContracts(StillClock())
    for number in range(1, 4_200):
        contracts.see(ROW | {"id": number})
    assert contracts.get("1") is None
    assert contracts.get("4199") is not None
