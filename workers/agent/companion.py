"""Two runs that share a process: how the life of either differs from that of a run by itself."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, ContextManager, Dict, Mapping, Optional, Sequence, Tuple

from workers.agent.errors import MachineFailed
from workers.agent.member import MemberRun
from workers.agent.preparing import Command
from workers.agent.process import Process, Stoppable
from workers.agent.restarting import restarts
from workers.agent.restarting_run import RestartingRun
from workers.agent.run import Run
from workers.agent.sharing import Guest, Sharing
from workers.agent.training import ExitReport, TrainingMeter

LEFT = 75  # as the trainer says: not finished, come again


def kind_of(wish: Mapping[str, Any], *, comes: bool, lead: Optional[Run]) -> Callable[..., Run]:
    """What a run is that the server wants. `comes`: its companion is wanted as well; `lead`: the run whose companion it
    is, if that is here."""
    if (wish["spec"].get("gang") or {}).get("rank"):
        return MemberRun
    if wish.get("companion_of") is None:
        return partial(Lead, Sharing()) if comes else RestartingRun if restarts(wish["spec"]) else Run
    if isinstance(lead, Sharer):
        return partial(Companion, lead.sharing)
    sharing = Sharing()
    sharing.go_alone()
    return partial(Companion, sharing)


class Sharer(Run):
    """Either of two runs of one process."""

    shares = True

    def __init__(self, sharing: Sharing, *args: Any, **kwargs: Any) -> None:
        self.sharing = sharing
        super().__init__(*args, **kwargs)

    def held(self) -> ContextManager[Any]:
        return self.sharing.held()

    def _await_others(self) -> None:
        """The run's folders are those of the process that it shares."""
        self.sharing.await_gone()


class Lead(Sharer):
    """Its process is shared, if its companion can come; else it trains alone."""

    def _prepare(self) -> Command:
        command = super()._prepare()
        self.sharing.await_guest(self._check_wanted)
        return command

    def _start(self, argv: Sequence[str], environ: Dict[str, str]) -> Stoppable:
        def start(full: Dict[str, str], output: Callable[[bytes], None]) -> Process:
            return self._launcher.start(argv, full, output)

        try:
            seat = self.sharing.begin(self.workspace, environ, self._log.feed, start)
        except OSError as error:
            raise MachineFailed(f"this machine failed while the process was started: {error}") from error
        return seat or super()._start(argv, environ)

    def _live(self) -> ExitReport:
        try:
            return super()._live()
        finally:
            self.sharing.go_alone()

    def _remove(self) -> None:
        """The companion's files are this run's user's."""
        self.sharing.guest_is_removed.wait()
        super()._remove()


class _LeadGone(Exception):
    """Its lead starts no process any more that it could be in."""


class Companion(Sharer):
    """It prepares what is its own, as the lead's user, and joins the lead's process."""

    def _get_ready(self) -> None:
        return

    def _launch_training(self, command: Command) -> "Tuple[TrainingMeter, Stoppable]":
        seat = self.sharing.come(Guest(self.workspace, command.environ, self._log.feed), self._check_wanted)
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
            self.sharing.stay_away()

    def _remove(self) -> None:
        """Its user is the lead's to give back."""
        self.workspace.remove()
        self.sharing.guest_is_removed.set()
