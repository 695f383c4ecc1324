"""Two jobs of the built-in recipe in one process, each with a session, a log and an end of its own.

The process is the lead's run. Its environment names, beside the lead's own files, `ALLPASS_COMPANION_FILE`: JSON with
the `environ` of the companion's run and the folder of its `code`. Of each side there are, in its environment:

    ALLPASS_LEAVE_FILE   made by the agent when this side alone is to leave
    ALLPASS_END_FILE     written here when it has left for good: {"exit_code": n, "why": ..., "parted": ...}; `parted`
                         says why the two are not to be trained as one again
    ALLPASS_LOG_FILE     the companion's lines; the lead's are the process's output

SIGTERM means that both are to leave: their common state is saved, and the process ends with code 75.
"""

from __future__ import annotations

import contextlib
import json
import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from allpass.errors import InvalidInput
from allpass.recipe.libraries import installed
from allpass.recipe.settings import Recipe
from allpass.training.session import EXIT_STOPPED, Session
from workers.trainer import begun, loop, model, rows, tasks
from workers.trainer.agreement import differing
from workers.trainer.joint import Joint
from workers.trainer.keeping import Keeping, NothingInCommon
from workers.trainer.loop import Diverged
from workers.trainer.model import Prepared
from workers.trainer.pair import DROPPED
from workers.trainer.rows import Data
from workers.trainer.shared import Shared
from workers.trainer.side import Side
from workers.trainer.tasks import TrainingTask

COMPANION_FILE = "ALLPASS_COMPANION_FILE"
_LONGEST_WHY = 300
_OWN = (InvalidInput, Diverged, ValueError, OSError)  # what a job may have to mend


class SideSeat(Session):
    """A side's session: it hears of stops with the process, `process`, and by a file of its own."""

    def __init__(self, environment: Mapping[str, str], process: Session) -> None:
        super().__init__(environment)
        self._process = process
        self._leave_file = environment["ALLPASS_LEAVE_FILE"]
        self._end_file = Path(environment["ALLPASS_END_FILE"])
        self._log_file = environment.get("ALLPASS_LOG_FILE")
        self._is_to_leave = False
        self.has_ended = False

    def stop_requested(self) -> bool:
        return self._process.stop_requested() or self.is_to_leave()

    def is_to_leave(self) -> bool:
        """Whether this side was asked to."""
        self._is_to_leave = self._is_to_leave or os.path.exists(self._leave_file)  # noqa: PTH110 - at every step
        return self._is_to_leave

    def say(self, text: str) -> None:
        """A line of this side's log."""
        if self._log_file is None:
            print(text, flush=True)
            return
        with contextlib.suppress(OSError), Path(self._log_file).open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")

    def end(self, exit_code: int, why: str, *, parted: str | None = None) -> None:
        """It has left for good. Only the first end counts."""
        if self.has_ended:
            return
        with contextlib.suppress(OSError):  # it costs the checkpoint
            self.finish_saving()
        self.has_ended = True
        told = {"exit_code": exit_code, "why": why, **({} if parted is None else {"parted": parted})}
        part = self._end_file.with_name(f".{self._end_file.name}.part")
        part.write_text(json.dumps(told), encoding="utf-8")
        part.replace(self._end_file)

    def fail(self, error: BaseException) -> None:
        """It has to be mended before it can be trained."""
        self.say(f"error: {error}")
        self.end(1, str(error))

    def part(self, why: str) -> None:
        """It is to go on by itself."""
        self.say(f"training: goes on by itself: {why}")
        self.end(EXIT_STOPPED, why, parted=why)


class Together(Joint):
    """Side by side under an agent."""

    def __init__(self, shared: Shared, sides: Sequence[Side], seats: Mapping[str, SideSeat], process: Session) -> None:
        self._seats = seats
        super().__init__(shared, sides, process)

    def _checkpointing(self) -> Keeping:
        return Keeping(self._shared, (self.first, self.second), self._update.parts, self._session.stop_requested)

    def _advance(self) -> str | None:
        for name, seat in self._seats.items():
            if seat.is_to_leave():
                self.drop(name)
        return super()._advance()

    def _leaves(self, side: Side) -> None:
        seat = self._seats[side.name]
        if side.left != DROPPED:
            side.keep_last(self._shared.prepared.device)
            seat.end(0, str(side.left))
        elif seat.is_to_leave():
            seat.end(EXIT_STOPPED, "asked to leave")
        else:  # in an earlier process
            seat.part("it had left the other job")

    def _resume(self) -> None:
        super()._resume()
        for side in (self.first, self.second):
            side.session.tell(tokens_before=side.tokens, libraries=installed())


@dataclass(frozen=True)
class _Job:
    seat: SideSeat
    recipe: Recipe
    data: Data


def train(folder: Path, process: Session, environment: Mapping[str, str] = os.environ) -> None:
    """Both jobs, to the end of each. An error of one is no other's: who can goes on."""
    order = json.loads(Path(environment[COMPANION_FILE]).read_text(encoding="utf-8"))
    places = [(folder, SideSeat(environment, process)), (Path(order["code"]), SideSeat(order["environ"], process))]
    jobs = [job for job in (_read(code, seat) for code, seat in places) if job is not None]
    if len(jobs) == 2:
        jobs = _pair(jobs, process)
    for job in jobs:
        _alone(job)


def _read(code: Path, seat: SideSeat) -> _Job | None:
    with contextlib.suppress(OSError):  # the first step that cannot be told parts them
        seat.announce_saves()  # whenever it is asked, also while it still loads
    try:
        data = rows.load(code)
        return _Job(seat, begun.settled(Recipe.of(seat.parameters()), data, seat), data)
    except _OWN as error:
        seat.fail(error)
        return None


def _alone(job: _Job) -> None:
    try:
        loop.train(job.recipe, job.data, job.seat)
    except _OWN as error:
        job.seat.fail(error)
    else:
        job.seat.end(0, "it is trained")


def _pair(jobs: Sequence[_Job], process: Session) -> list[_Job]:
    """Train both; whoever is to be trained alone now, as the other one cannot be. What goes wrong while both are in may
    be either's doing: each tries by itself."""
    try:
        return _train(jobs, process)
    except Exception as error:  # of whatever library
        traceback.print_exc()
        inside = [job for job in jobs if not job.seat.has_ended]
        for job in inside:
            if len(inside) == 1:
                job.seat.fail(error)
            elif isinstance(error, NothingInCommon):
                job.seat.part(str(error))
            else:
                job.seat.part(f"training together failed: {type(error).__name__}: {error}"[:_LONGEST_WHY])
        return []


def _train(jobs: Sequence[_Job], process: Session) -> list[_Job]:
    why = differing(jobs[0].recipe, jobs[1].recipe)
    if why is not None:
        raise NothingInCommon(f"they cannot be trained as one: {why}")
    prepared = model.prepare(jobs[0].recipe, jobs[0].data.labels)
    first, second = (_load(job, prepared) for job in jobs)
    if first is None or second is None:
        return [job for job in jobs if not job.seat.has_ended]
    shared = Shared(prepared, [job.data.labels for job in jobs], own_heads=True)
    sides = [_side(job, task, shared, n) for n, (job, task) in enumerate(zip(jobs, (first, second), strict=True))]
    seats = {side.name: job.seat for side, job in zip(sides, jobs, strict=True)}
    why = Together(shared, sides, seats, process).run()
    for name, seat in seats.items():
        if why is not None and not seat.has_ended:
            seat.part(why if name in why else "the two did not help each other")
    return []


def _load(job: _Job, prepared: Prepared) -> TrainingTask | None:
    try:
        return tasks.load(job.data, job.recipe, prepared)
    except ValueError as error:
        job.seat.fail(error)
        return None


def _side(job: _Job, task: TrainingTask, shared: Shared, number: int) -> Side:
    job.seat.describe(**job.recipe.layout)
    for remark in task.remarks:
        job.seat.say(f"training: {remark}")
    return Side(job.seat.job_id, job.recipe, task, job.seat, shared, number=number, say=job.seat.say)
