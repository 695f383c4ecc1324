"""Agents on rented machines: level-triggered as the real one, and with nothing to train.

An agent says what is until the server has heard it. What a dead server did not acknowledge is said again to the next.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from allpass.wire.agent import (
    ArtifactReport,
    CheckpointCommit,
    CheckpointOpen,
    DesiredRun,
    ExitReport,
    File,
    JoinRequest,
    MetricReport,
    MetricReportPoint,
    RunReport,
    SyncRequest,
)
from app.errors import Conflict, Fenced, Unauthenticated
from app.ports.objects import content_key

if TYPE_CHECKING:
    from tests.crashes.stage import Stage


@dataclass(frozen=True)
class Program:
    """User code: a step each second. `save_every`: steps between checkpoints that it saves by itself."""

    steps: int = 30
    fails_at: int | None = None
    save_every: int | None = None
    is_elastic: bool = False  # it changes its GPUs when it is to


@dataclass
class Running:
    """One run on this machine."""

    desired: DesiredRun
    phase: str = "preparing"
    first_step: int = 0
    started_ms: int = 0
    step: int = 0
    saved_step: int = 0
    uses: list[int] | None = None  # its GPUs, as its code has said since it runs
    has_left: bool = False  # the code saved and is over; the agent has yet to store and to tell it
    exit: ExitReport | None = None

    def writer(self) -> dict[str, object]:
        return {"run_id": self.desired.run_id, "job_id": self.desired.job_id, "epoch": self.desired.epoch}

    def report(self) -> RunReport:
        told = {"phase": self.phase, "step": self.step, "exit": self.exit, "saves": True}
        if self.uses is not None:
            told["gpus"] = {"used": self.uses, "leaving": [], "refused": []}
        return RunReport.model_validate({**self.writer(), **told})

    def leave(self, **how: object) -> None:
        self.phase, self.exit = "exited", ExitReport.model_validate(how)


class Agent:
    """One machine's. `turn` raises Crashed when the server dies under it; the next turn takes up where that one was."""

    def __init__(self, stage: Stage, node_id: str, join_token: str, nonce: str) -> None:
        self._stage = stage
        self._node_id = node_id
        self._join_token = join_token
        self._nonce = nonce
        self._token = ""  # until it is let in
        self._seen = 0
        self.runs: dict[str, Running] = {}
        self.asleep = False  # its machine is there and does nothing: stopped, swapped out, cut off

    def runs_code_of(self, job_id: str) -> bool:
        runs = (run for run in self.runs.values() if run.desired.job_id == job_id)
        return any(run.phase == "running" and not run.has_left for run in runs)

    async def turn(self) -> None:
        if self.asleep:
            return
        await self._sync()
        for run in list(self.runs.values()):
            before = run.phase
            await self._live(run)
            if run.phase != before:
                await self._sync()

    async def _sync(self) -> None:
        reports = [run.report() for run in self.runs.values()]
        request = SyncRequest(agent_version="1", seen=self._seen, wait_ms=0, runs=reports)
        joining = JoinRequest(agent_version="1", nonce=self._nonce)
        try:
            if not self._token:
                self._token = await self._stage.call(lambda server: server.join(self._join_token, joining))
            reply = await self._stage.call(lambda server: server.sync(self._token, request))
        except (Conflict, Unauthenticated):
            self.runs.clear()
            return
        self._seen = reply.version
        if reply.runs is not None:
            self._apply(reply.runs)

    def _apply(self, wishes: list[DesiredRun]) -> None:
        wanted = {wish.run_id: wish for wish in wishes}
        self.runs = {run_id: run for run_id, run in self.runs.items() if run_id in wanted}
        for run_id, wish in wanted.items():
            self.runs.setdefault(run_id, Running(wish)).desired = wish

    async def _live(self, run: Running) -> None:
        if run.phase == "exited":
            return
        if run.desired.want == "kill":
            run.leave(signal=9)
        elif run.phase == "preparing" and run.desired.want == "standby":
            run.phase = "prepared"
        elif run.phase in ("preparing", "prepared"):
            if run.desired.want != "standby":
                await self._start(run)
        else:
            await self._train(run)

    async def _start(self, run: Running) -> None:
        if run.desired.want == "checkpoint":
            run.leave(signal=15)
            return
        resume = run.desired.spec.resume
        if resume is not None:
            (piece,) = resume.files
            key = content_key(run.desired.spec.project_id, piece.sha256)
            stored = await self._stage.objects.get(key)
            assert stored == _content(run.desired.job_id, resume.step), "it resumes from something else"
            run.first_step = run.step = run.saved_step = resume.step
        self._stage.code_starts(run.desired.job_id)
        run.phase, run.started_ms = "running", self._stage.clock.now_ms()

    async def _train(self, run: Running) -> None:
        program = self._stage.program
        if run.exit is not None:
            return
        if program.is_elastic:
            run.uses = list(run.desired.spec.use_gpus)
        seconds = (self._stage.clock.now_ms() - run.started_ms) // 1000
        run.step = run.step if run.has_left else max(run.step, min(program.steps, run.first_step + seconds))
        if program.fails_at is not None and run.step >= program.fails_at:
            run.step = program.fails_at
            run.leave(exit_code=1, last_lines="ValueError: no")
            return
        try:
            if run.desired.want == "checkpoint":
                run.has_left = True
                await self._save(run, final=True)
                run.leave(exit_code=0, saved_after_stop=True)
            elif run.step >= program.steps:
                await self._finish(run)
            elif program.save_every is not None and run.step - run.saved_step >= program.save_every:
                await self._save(run)
        except Fenced:
            run.leave(signal=9)

    async def _save(self, run: Running, *, final: bool = False) -> None:
        job_id = run.desired.job_id
        piece = await self._store(run, _content(job_id, run.step))
        opening = CheckpointOpen.model_validate({**run.writer(), "step": run.step, "files": [piece.model_dump()]})
        opened = await self._stage.call(lambda server: server.open_checkpoint(self._token, opening))
        point = MetricReportPoint(step=run.step, at_ms=self._stage.clock.now_ms(), values={"loss": 1 / (1 + run.step)})
        measured = MetricReport.model_validate({**run.writer(), "points": [point]})
        await self._stage.call(lambda server: server.record_metrics(self._token, measured))
        commit = CheckpointCommit(job_id=job_id, epoch=run.desired.epoch, final=final)
        checkpoint_id = opened.checkpoint_id
        await self._stage.call(lambda server: server.commit_checkpoint(self._token, checkpoint_id, commit))
        run.saved_step = run.step

    async def _finish(self, run: Running) -> None:
        piece = await self._store(run, f"the model of {run.desired.job_id}".encode())
        left = ArtifactReport.model_validate({**run.writer(), "files": [piece]})
        await self._stage.call(lambda server: server.record_artifacts(self._token, left))
        run.leave(exit_code=0)

    async def _store(self, run: Running, content: bytes) -> File:
        """Straight into the store: no byte of it passes through the server."""
        sha256 = hashlib.sha256(content).hexdigest()
        await self._stage.objects.put(content_key(run.desired.spec.project_id, sha256), content, sha256=sha256)
        return File(path="model", sha256=sha256, size_bytes=len(content))


def _content(job_id: str, step: int) -> bytes:
    return f"{job_id} at step {step}".encode()
