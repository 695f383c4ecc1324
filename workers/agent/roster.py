"""The runs of this machine, brought in line with what the server wants whenever it says so."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Set

from workers.agent.errors import MachineFailed
from workers.agent.machine import Machine

if TYPE_CHECKING:
    from workers.agent.prefetch import Prefetch
    from workers.agent.run import Run
    from workers.agent.spares import Spares

MOST_RUNS = 64


class Roster:
    """Thread-safe. `apply` is level-triggered: applying the same wish twice changes nothing."""

    def __init__(self, machine: Machine, changed: Callable[[bool], None]) -> None:
        self._machine = machine
        self._changed = changed
        self._may_begin = threading.Event()
        self._lock = threading.Lock()  # guards all below
        self._runs: Dict[str, Run] = {}
        self._leaving: List[Run] = []  # forgotten, still being ended
        self._told_exits: Set[str] = set()
        self._draining = False
        self._spares: Optional[Spares] = None  # made with the first run
        self._prefetch: Optional[Prefetch] = None  # made with the first advice

    def allow_runs(self) -> None:
        """All that runs need is in its place. Until then, whoever applies a wish for one waits."""
        self._may_begin.set()

    def reports(self) -> List[Dict[str, Any]]:
        with self._lock:
            runs = list(self._runs.values())
        return [run.report() for run in runs][:MOST_RUNS]

    def apply(self, wishes: Sequence[Mapping[str, Any]]) -> None:
        """Start what is new, stop what should stop, forget what is not listed."""
        ordered = sorted(wishes, key=lambda wish: wish.get("companion_of") is not None)  # after their leads
        wanted = {wish["run_id"]: wish for wish in ordered}
        with self._lock, self._holding():
            self._leaving = [run for run in self._leaving if run.is_alive()]
            for run_id in [known for known in self._runs if known not in wanted]:
                run = self._runs.pop(run_id)
                self._told_exits.discard(run_id)
                run.forget()
                self._leaving.append(run)
            if self._prefetch is not None:
                new = [wish["spec"] for run_id, wish in wanted.items() if run_id not in self._runs]
                if new and not self._draining:
                    self._prefetch.begins(new)
            for run_id, wish in wanted.items():
                if run_id in self._runs:
                    self._runs[run_id].apply(wish)
                elif not self._draining:
                    self._begin(run_id, wish, wanted)

    def advise(self, advice: Sequence[Mapping[str, Any]]) -> None:
        """What will likely run here next: it may be fetched while nothing else is to be done."""
        if not self._machine.config.fetches_ahead:
            return
        if advice:
            self._may_begin.wait()
        with self._lock:
            if self._prefetch is None and advice and not self._draining:
                from workers.agent.prefetch import Prefetch

                self._prefetch = Prefetch(self._machine, self._is_preparing)
            prefetch = self._prefetch
        if prefetch is not None:
            prefetch.tell(advice)

    def _is_preparing(self) -> bool:
        return any(report["phase"] == "preparing" for report in self.reports())

    def told(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """The server has heard these."""
        with self._lock:
            self._told_exits.update(report["run_id"] for report in reports if report["phase"] == "exited")
            heard = [(self._runs[one["run_id"]], one) for one in reports if one["run_id"] in self._runs]
        for run, report in heard:
            run.heard(report)

    def trains(self) -> bool:
        """Whether the code of any run is at work."""
        with self._lock:
            return any(run.trains for run in self._runs.values())

    @property
    def draining(self) -> bool:
        with self._lock:
            return self._draining

    def drain(self) -> int:
        """Ask every run to save and leave, and take no new one. Returns the longest grace among them."""
        with self._lock:
            self._draining = True
            runs = list(self._runs.values())
            holding = self._holding()
        if self._spares is not None:
            self._spares.close()
        if self._prefetch is not None:
            self._prefetch.close()
        with holding:
            for run in runs:
                run.hasten()
                run.request_checkpoint()
        return max((run.grace_ms for run in runs), default=0)

    def is_drained(self) -> bool:
        """Every run has ended and the server has heard of it."""
        with self._lock:
            return all(run_id in self._told_exits for run_id in self._runs)

    def close(self, timeout_s: float) -> None:
        """Kill everything; wait up to `timeout_s` for each."""
        with self._lock:
            self._draining = True
            runs = [*self._runs.values(), *self._leaving]
        if self._spares is not None:
            self._spares.close()
        for run in runs:
            run.abandon()
        if self._prefetch is not None:
            self._prefetch.close(timeout_s)
        for run in runs:
            run.join(timeout_s)

    def _holding(self) -> contextlib.ExitStack:
        """Runs that belong together are asked together."""
        stack = contextlib.ExitStack()
        for run in self._runs.values():
            stack.enter_context(run.held())
        return stack

    def _begin(self, run_id: str, wish: Mapping[str, Any], wanted: Mapping[str, Mapping[str, Any]]) -> None:
        self._may_begin.wait()
        from workers.agent.companion import kind_of  # large: loaded while the agent's first call is on its way
        from workers.agent.spares import Spares

        if self._spares is None:
            self._spares = Spares(self._machine)
        lead = self._runs.get(wish.get("companion_of") or "")
        kind = kind_of(wish, comes=wish.get("companion") in wanted, lead=lead)
        spare = self._spares.take(wish)
        run = kind(
            wish,
            self._machine,
            self._uid(lead) if spare is None else spare.workspace.uid,
            changed=self._changed,
            predecessors=[leaver.process_gone for leaver in self._leaving],
            spares=self._spares,
            spare=spare,
        )
        self._runs[run_id] = run
        run.apply(wish)
        run.start()
        self._changed(True)

    def _uid(self, lead: Optional[Run]) -> Optional[int]:
        """A user of its own, where the machine lets us; a companion is its lead's."""
        if lead is not None:
            return lead.workspace.uid
        try:
            return self._machine.users.take()
        except MachineFailed:  # the run finds that out itself, and says it
            return None


def remove_leftovers(machine: Machine, listed: Sequence[Mapping[str, Any]]) -> None:
    """Remove what an earlier agent left of runs that the server does not list."""
    from workers.agent.workspace import Workspace

    keep = {wish["run_id"] for wish in listed}
    for folder in (machine.config.root / "runs", machine.config.root / "spool"):
        for left in folder.iterdir() if folder.is_dir() else ():
            if left.name not in keep:
                Workspace(machine.config.root, left.name, None).remove()
