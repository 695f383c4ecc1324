"""A machine of an emulated company: what is ordered, and how it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from workers.machines.processes import ProcessIdentity


class MachineState(StrEnum):
    BOOTING = "booting"
    RUNNING = "running"  # it is up; its program may have ended (see Then.STAY)
    STOPPED = "stopped"  # nothing runs; the disk is kept, and the machine can be started again
    ENDED = "ended"


class Then(StrEnum):
    """What becomes of a machine at an event: its program has ended, or its deadline has come."""

    END = "end"
    STOP = "stop"
    STAY = "stay"  # runs on, and costs, with nothing inside


class Cause(StrEnum):
    """Why a machine is in the state it is in."""

    REQUEST = "request"  # somebody who may asked for it
    PROGRAM = "program"  # what it ran has ended by itself; `exit_code` says how
    DEADLINE = "deadline"
    COMPANY = "company"  # outbid, preempted, out of credit: the company's own decision
    FAILURE = "failure"  # could not be started, or its processes vanished


@dataclass(frozen=True, slots=True)
class MachineProgram:
    """What a machine runs: a command (argv), or a shell script with its interpreter in a first line `#!...`.

    `python3` is in its PATH; HOME and the working directory are the machine's own disk.
    """

    command: tuple[str, ...] = ()
    script: str | None = None

    def __post_init__(self) -> None:
        if bool(self.command) == (self.script is not None):
            raise ValueError("a program is either a command or a script")


@dataclass(frozen=True, slots=True)
class NewMachine:
    """A machine to be rented out. It boots by itself `boot_ms` from now; None: never, until `boot_now` is called.

    `environment` is what the customer gave; `facts` is the emulator's own, any JSON object (wire fields).
    `deadline_ms` is a moment, `lifetime_ms` a time from being ready; what comes first counts.
    """

    ref: str
    program: MachineProgram
    label: str | None = None
    environment: Mapping[str, str] | None = None
    price_micros_per_hour: int = 0
    storage_micros_per_hour: int = 0
    boot_ms: int | None = 0
    when_it_exits: Then = Then.END
    deadline_ms: int | None = None
    lifetime_ms: int | None = None
    at_deadline: Then = Then.END
    facts: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Interval:
    """A stretch in one state at one price, [from_ms, to_ms); `to_ms` None: still so. ENDED has no interval."""

    state: MachineState
    price_micros_per_hour: int
    from_ms: int
    to_ms: int | None


@dataclass(frozen=True, slots=True)
class MachineEnding:
    """A decision to end or stop a machine, from the moment it was taken until its processes are gone."""

    state: MachineState
    cause: Cause
    detail: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class MachineRow:
    """A machine as it stands. Times are milliseconds since 1970.

    `ready_ms` is when it first came up, `stopped_ms` when it was last stopped. `exit_code` is that of its program, once
    that has ended by itself; negative for a signal. `ending` is set while processes of it are being killed.
    """

    number: int
    ref: str
    label: str | None
    state: MachineState
    cause: Cause | None
    detail: str
    exit_code: int | None
    when_it_exits: Then
    price_micros_per_hour: int
    storage_micros_per_hour: int
    created_ms: int
    boot_at_ms: int | None
    ready_ms: int | None
    stopped_ms: int | None
    ended_ms: int | None
    deadline_ms: int | None
    lifetime_ms: int | None
    at_deadline: Then
    deadline_cause: Cause
    ending: MachineEnding | None
    facts: dict[str, Any]
    keeper: ProcessIdentity | None
    intervals: tuple[Interval, ...]

    @property
    def is_live(self) -> bool:
        """Whether it exists: everything but ENDED."""
        return self.state is not MachineState.ENDED

    @property
    def due_ms(self) -> int | None:
        """When its deadline comes, as far as is known now."""
        lifetime_over = None
        if self.lifetime_ms is not None and self.ready_ms is not None:
            lifetime_over = self.ready_ms + self.lifetime_ms
        return min((moment for moment in (self.deadline_ms, lifetime_over) if moment is not None), default=None)
