"""Agents that say over HTTP what real ones say, with nothing to train: a step takes a second of virtual time."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from benchmarks.poison_ground import Ground

_FENCED = (401, 404, 409)


@dataclass(frozen=True)
class Program:
    """What a job's code does: `steps`, one each second; a save each `save_every` steps; an end at `fails_at`."""

    steps: int = 60
    save_every: int = 60
    fails_at: int | None = None


@dataclass
class Running:
    """One run on this machine, as it is (`phase`, `step`) and as it should be (`desired`)."""

    desired: dict[str, Any]
    phase: str = "preparing"
    first_step: int = 0
    started_ms: int = 0
    step: int = 0
    saved_step: int = 0
    exit: dict[str, Any] | None = None

    def writer(self) -> dict[str, Any]:
        return {name: self.desired[name] for name in ("run_id", "job_id", "epoch")}

    def report(self) -> dict[str, Any]:
        told = {**self.writer(), "phase": self.phase, "step": self.step}
        return told if self.exit is None else {**told, "exit": self.exit}

    def leave(self, **how: Any) -> None:
        self.phase, self.exit = "exited", how


@dataclass
class Agent:
    """`turn` does what is due. An answer that fences or refuses ends the run it was about, as the real agent's does."""

    place: Ground
    node_id: str
    join_token: str
    nonce: str
    token: str = ""
    seen: int = 0
    asleep: bool = False
    runs: dict[str, Running] = field(default_factory=dict)

    async def turn(self) -> None:
        if self.asleep:
            return
        await self._sync()
        for run in list(self.runs.values()):
            before = run.phase
            await self._live(run)
            if run.phase != before:
                await self._sync()

    async def call(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """A call of this machine's agent. What the server cannot do now is asked again at the next turn."""
        bearer = {"Authorization": f"Bearer {self.token or self.join_token}"}
        answer = await self.place.api.post(f"/v1/agent/{path}", json=body, headers=bearer)
        if answer.status_code >= 500:
            self.place.server_errors.append(f"{path}: {answer.status_code}: {answer.text[:200]}")
        return answer

    async def _sync(self) -> None:
        if not self.token:
            answer = await self.call("join", {"agent_version": "1", "nonce": self.nonce})
            if answer.status_code != 200:
                return
            self.token = answer.json()["node_token"]
        reports = [run.report() for run in self.runs.values()]
        answer = await self.call("sync", {"agent_version": "1", "seen": self.seen, "wait_ms": 0, "runs": reports})
        if answer.status_code in _FENCED:
            self.runs.clear()
        if answer.status_code != 200:
            return
        reply = answer.json()
        self.seen = reply["version"]
        if reply["runs"] is not None:
            wanted = {wish["run_id"]: wish for wish in reply["runs"]}
            self.runs = {run_id: run for run_id, run in self.runs.items() if run_id in wanted}
            for run_id, wish in wanted.items():
                self.runs.setdefault(run_id, Running(wish)).desired = wish

    async def _live(self, run: Running) -> None:
        want = run.desired["want"]
        if run.phase == "exited":
            return
        if want == "kill":
            run.leave(signal=9)
        elif run.phase == "preparing" and want == "standby":
            run.phase = "prepared"
        elif run.phase in ("preparing", "prepared"):
            if want != "standby":
                await self._start(run)
        else:
            await self._train(run)

    async def _start(self, run: Running) -> None:
        if run.desired["want"] == "checkpoint":
            run.leave(signal=15)
            return
        resume = run.desired["spec"]["resume"]
        if resume is not None:
            run.first_step = run.step = run.saved_step = resume["step"]
        run.phase, run.started_ms = "running", self.place.clock.now_ms()

    async def _train(self, run: Running) -> None:
        program = self.place.programs.get(run.desired["job_id"], Program())
        seconds = (self.place.clock.now_ms() - run.started_ms) // 1000
        run.step = max(run.step, min(program.steps, run.first_step + seconds))
        if program.fails_at is not None and run.step >= program.fails_at:
            run.step = program.fails_at
            run.leave(exit_code=1, last_lines="ValueError: no")
        elif run.desired["want"] == "checkpoint":
            saved = await self._save(run, final=True)
            run.leave(**({"exit_code": 0, "saved_after_stop": True} if saved else {"signal": 15}))
        elif run.step >= program.steps:
            await self._finish(run)
        elif run.step - run.saved_step >= program.save_every:
            await self._save(run)

    async def _save(self, run: Running, *, final: bool = False) -> bool:
        job_id, epoch = run.desired["job_id"], run.desired["epoch"]
        piece = await self._stored(run, f"{job_id} at step {run.step}")
        point = {"step": run.step, "at_ms": self.place.clock.now_ms(), "values": {"loss": 1 / (1 + run.step)}}
        await self.call("metrics", {**run.writer(), "points": [point]})
        opened = await self.call("checkpoints", {**run.writer(), "step": run.step, "files": [piece]})
        if opened.status_code == 200:
            path = f"checkpoints/{opened.json()['checkpoint_id']}/commit"
            committed = await self.call(path, {"job_id": job_id, "epoch": epoch, "final": final})
            if committed.status_code in (200, 204):
                run.saved_step = run.step
                return True
        return False

    async def _finish(self, run: Running) -> None:
        piece = await self._stored(run, f"the model of {run.desired['spec']['job_name']}")
        told = await self.call("artifacts", {**run.writer(), "files": [piece]})
        if told.status_code == 204:
            run.leave(exit_code=0)
        elif told.status_code in _FENCED:
            run.leave(signal=9)

    async def _stored(self, run: Running, content: str) -> dict[str, Any]:
        """Straight into the store: no byte of it passes through the server."""
        data = content.encode()
        await self.place.store(run.desired["spec"]["project_id"], data)
        return {"path": "model", "sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}
