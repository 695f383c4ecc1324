"""A further machine of a job on several: it prepares and runs what the first one does, and keeps nothing of it but its
parts of checkpoints.

What its process measures and saves otherwise counts only where the job's own run, on the first machine, says it. Its
log is shipped as any."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from workers.agent.keeping import Keeper
from workers.agent.parts import MemberParts
from workers.agent.process import Ended, Stoppable
from workers.agent.run import Run
from workers.agent.training import ExitReport, TrainingMeter


class Unmeasured(TrainingMeter):
    """Of a process whose measurements are nobody's."""

    def __init__(self) -> None:
        self.unusable = ""
        self.saves = False

    @property
    def step(self) -> int:
        return 0

    def start(self) -> None:
        return

    def ask(self, process: Stoppable, grace_ms: int) -> None:
        process.terminate(grace_ms)

    def hasten(self) -> None:
        return

    def told(self) -> Dict[str, Any]:
        return {}

    def heard(self, report: Mapping[str, Any]) -> None:
        return

    def finish(self, ended: Ended) -> ExitReport:
        return ExitReport(ended.exit_code, ended.signal)


class OnlyParts(Unmeasured):
    """Of a process whose part of each checkpoint counts."""

    def __init__(self, parts: MemberParts) -> None:
        super().__init__()
        self._parts = parts

    def start(self) -> None:
        self._parts.start()

    def finish(self, ended: Ended) -> ExitReport:
        self._parts.finish()
        return super().finish(ended)


class Unkept(Keeper):
    """Of a run that leaves nothing behind."""

    def __init__(self) -> None:
        return

    def remember(self) -> None:
        return

    def start(self) -> None:
        return

    def keep_up(self) -> None:
        return

    def hurry(self) -> None:
        return

    def hasten(self) -> None:
        return

    def abandon(self) -> None:
        return

    def finish(self, step: int, *, succeeded: bool) -> None:
        return


class MemberRun(Run):
    """Its rank is not 0."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._beside = ()
        self._keeper = Unkept()

    def _training_of(self) -> TrainingMeter:
        gang = self._gang
        if gang is None or not gang.sends_parts:
            return Unmeasured()
        parts = MemberParts(
            self._machine,
            self._writer,
            self.workspace,
            self._log.say,
            self._gone,
            self._transfers,
            wanted=lambda: gang.part_step,
            count=gang.count,
            on_fenced=self.kill,
        )
        return OnlyParts(parts)
