"""Two runs that share a process: how the life of either differs from that of a run by itself."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple, Type

from workers.agent.errors import MachineFailed
from workers.agent.preparing import Command
from workers.agent.process import Process, Stoppable
from workers.agent.run import Run
from workers.agent.sharing import Guest, Sharing
from workers.agent.training import ExitReport, Training

LEFT = 75  # as the trainer says: not finished, come again


def kind_of(wish: Mapping[str, Any], *, comes: bool, lead: Optional[Run]) -> "Tuple[Type[Run], Optional[Sharing]]":
    """What a run is that the server wants, and what it shares. `comes`: its companion is wanted as well; `lead`: the
    run whose companion it is, if that is here."""
    if wish.get("companion_of") is None:
        return (Lead, Sharing()) if comes else (Run, None)
    sharing = None if lead is None else lead.sharing
    if sharing is None:
        sharing = Sharing()
        sharing.go_alone()
    return Companion, sharing


class Lead(Run):
    """Its process is shared, if its companion can come; else it trains alone."""

    def _prepare(self) -> Command:
        command = super()._prepare()
        self._shared.await_guest(self._check_wanted)
        return command

    def _start(self, argv: Sequence[str], environ: Dict[str, str]) -> Stoppable:
        def start(full: Dict[str, str], output: Callable[[bytes], None]) -> Process:
            return self._launcher.start(argv, full, output)

        try:
            seat = self._shared.begin(self.workspace, environ, self._log.feed, start)
        except OSError as error:
            raise MachineFailed(f"this machine failed while the process was started: {error}") from error
        return seat or super()._start(argv, environ)

    def _live(self) -> ExitReport:
        try:
            return super()._live()
        finally:
            self._shared.go_alone()

    def _remove(self) -> None:
        """The companion's files are this run's user's."""
        self._shared.guest_is_removed.wait()
        super()._remove()

    @property
    def _shared(self) -> Sharing:
        if self.sharing is None:
            raise RuntimeError("a lead shares its process")
        return self.sharing


class _LeadGone(Exception):
    """Its lead starts no process any more that it could be in."""


class Companion(Run):
    """It prepares what is its own, as the lead's user, and joins the lead's process."""

    def _get_ready(self) -> None:
        return

    def _launch_training(self, command: Command) -> "Tuple[Training, Stoppable]":
        seat = self._shared.come(Guest(self.workspace, command.environ, self._log.feed), self._check_wanted)
        if seat is None:
            raise _LeadGone
        training = self._training_of()
        with self._lock:
            self._process, self._training = seat, training
            if self._gone.is_set():  # it was to stop when it had just been taken along
                seat.kill()
            else:
                self._enter("running")
        training.start()
        self._keeper.start()
        return training, seat

    def _live(self) -> ExitReport:
        try:
            return super()._live()
        except _LeadGone:
            return ExitReport(LEFT, parted="the run whose process it was to share has ended")
        finally:
            self._shared.stay_away()

    def _remove(self) -> None:
        """Its user is the lead's to give back."""
        self.workspace.remove()
        self._shared.guest_is_removed.set()

    @property
    def _shared(self) -> Sharing:
        if self.sharing is None:
            raise RuntimeError("a companion shares a process")
        return self.sharing
