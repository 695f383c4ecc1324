"""What this process has seen of machines: the cluster forgets a job with its last trace."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from app.ports.clock import Clock
from app.ports.provider import Machine, MachineStatus
from providers.kubernetes.reading import KubeMachine

_MOST_REMEMBERED = 4096


class KubeLives:
    """The machines seen lately, by reference."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._machines: OrderedDict[str, Machine] = OrderedDict()

    def see(self, found: KubeMachine) -> Machine:
        """The machine as it is, and as it was: one that ran, and whose pod is gone, has ended, though its job waits to
        make another (Kueue has taken its place back). Where the job still counts a pod that no list shows, it is as it
        was: a machine that is wrongly gone costs a run."""
        machine, before = found.machine, self._machines.get(found.machine.ref)
        ran = before is not None and before.billed_from_ms is not None
        if before is not None and ran and machine.billed_from_ms is None:
            machine = replace(machine, billed_from_ms=before.billed_from_ms)
            if machine.status is MachineStatus.BOOTING and found.is_active:
                machine = before
            elif machine.status is MachineStatus.BOOTING:
                why = "Kueue took its place back" if found.is_suspended else "its pod is gone"
                machine = self._ended(replace(machine, detail=why), before)
            elif machine.status is MachineStatus.ENDED:
                machine = self._ended(machine, before)
        return self._keep(machine)

    def gone(self, ref: str) -> Machine | None:
        """The cluster knows it no more: ended, if it was ever seen. None: there never was such a one."""
        before = self._machines.get(ref)
        return None if before is None else self._keep(self._ended(before, before))

    def _ended(self, machine: Machine, before: Machine) -> Machine:
        over_ms = before.billed_to_ms
        if over_ms is None and machine.billed_from_ms is not None:
            over_ms = max(self._clock.now_ms(), machine.billed_from_ms)
        return replace(machine, status=MachineStatus.ENDED, billed_to_ms=over_ms)

    def _keep(self, machine: Machine) -> Machine:
        self._machines[machine.ref] = machine
        self._machines.move_to_end(machine.ref)
        while len(self._machines) > _MOST_REMEMBERED:
            self._machines.popitem(last=False)
        return machine
