"""What a row of the fault matrix is: one experiment with one place of machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Json = Mapping[str, Any]


class Moment(StrEnum):
    """When the fault is set up."""

    SUBMIT = "submit"  # before there is a machine, so that it strikes the first call of its kind
    RENTED = "rented"  # while the company has a machine of the job
    RUNNING = "running"  # while the job's code runs


@dataclass(frozen=True, slots=True)
class Outage:
    """Something that lasts for a time, from the first strike on, and is then as if it had never been.

    `faults` and `switches` are those of the row's company, or, `everywhere`, of all of them. `settings` are given to
    the server, which is started again at either end. `paused` is a part of the stack that stands still. `then` is done
    to the job's machine when it is over. `takes_the_machine`: the company stops it; else a job that runs there has to
    stay.
    """

    lasts_s: float
    faults: tuple[Json, ...] = ()
    switches: Json = field(default_factory=dict)
    everywhere: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    paused: str = ""
    then: tuple[str, Json] | None = None
    takes_the_machine: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One experiment. `faults` and `switches` are bodies of the admin port; `action` is done to the job's machine.

    `op` is what the row is about: one of the four operations of a provider, or `own` for what only this company does.
    `crash`: the control plane is killed (SIGKILL) when the first fault has struck, or the action was done.
    `traceless`: the company tells nothing of the machine's end, so that it is booked until it was first missed.
    `neighbour`: another installation has a machine on the same account, older than ours; it must outlive the row.
    `new_image`: the job runs on an image that the company has not built yet. `spot`: it is a spot job. `nodes`:
    on so many machines at once, of which the action is done to the first that is there.
    `late_ms`: so long after the strike the company does what it was asked for; nothing is judged before that.
    `settings` are the server's from before the job until after it.
    """

    company: str
    op: str
    name: str
    faults: tuple[Json, ...] = ()
    switches: Json = field(default_factory=dict)
    action: tuple[str, Json] | None = None
    moment: Moment = Moment.SUBMIT
    crash: bool = False
    traceless: bool = False
    late_ms: int = 0
    neighbour: bool = False
    new_image: bool = False
    spot: bool = False
    nodes: int = 1
    outage: Outage | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Its name in reports."""
        return f"{self.company} {self.op}: {self.name}{' + crash' if self.crash else ''}"

    @property
    def alone(self) -> bool:
        """Whether it harms whatever runs beside it."""
        outage = self.outage
        return bool(self.settings or (outage and (outage.everywhere or outage.settings or outage.paused)))

    @property
    def stays(self) -> bool:
        """Whether the job may have no other machine than its first: nothing happens to that one."""
        return self.outage is not None and self.moment is Moment.RUNNING and not self.outage.takes_the_machine

    @property
    def strikes(self) -> int:
        """How many calls its faults strike, when all have their turn."""
        return sum(int(fault.get("count", 1)) for fault in self.faults)
