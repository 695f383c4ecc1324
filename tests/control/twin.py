"""A simulation and the service, side by side: what happens in the one is made to happen in the other.

A simulation is played first and written down: each action that it enacts, each thing that its machines do, and what
there is after each. The same actions are then enacted by the service on a real database, the same machines come up,
train, save, leave and die there, and after each the two are compared.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.control.context import ControlContext
from app.control.observe import observe
from app.core.board import COMING_NODE_STATES
from app.core.model.job import Resources
from app.core.model.node import NodeState
from app.core.model.offer import Offer
from app.core.model.plan import Action, Assign, Demote, Migrate, Provision, Release, Start
from app.core.model.run import RunState
from app.core.model.snapshot import JobView, NodeView, RunView, Snapshot
from app.db.decisions.snapshots import Memory
from app.simulator.engine import Life, SimulatedRun, Simulation
from app.simulator.scenario import Scenario, Task
from tests.control.moving import Moving
from tests.control.world import World
from tests.seeds import resources_json

# Jobs, each with its state and the machines and states of its runs; machines, each with its state and free GPUs.
Picture = tuple[dict[str, tuple[str, list[tuple[str, str]]]], dict[str, tuple[str, int]]]
# Until its code runs, an agent takes a run in two steps; a simulated one takes it at once.
_COMING_RUNS = (RunState.ASSIGNED, RunState.STARTING)


@dataclass(frozen=True, slots=True)
class Happening:
    """`what` happened at `at_ms` to a job, or to a machine; `after`: all that there was then."""

    at_ms: int
    what: str
    who: str
    action: Action | None
    after: Picture
    place: str = ""  # the machine of the run that this is of, or the one that was rented


class Told(Simulation):
    """Writes down what happens. A run loads what it begins with after its action, though at the same moment."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.story: list[Happening] = []

    def note(self, what: str, who: str, action: Action | None = None, place: str = "") -> None:
        board = self._board
        after = picture(board.jobs.values(), board.runs.values(), board.nodes.values())
        self.story.append(Happening(self._now_ms, what, who, action, after, place))

    def _enact(self, action: Action) -> bool:
        before = set(self._board.nodes)
        done = super()._enact(action)
        if done:
            rented = set(self._board.nodes) - before
            self.note("action", "", action, rented.pop() if rented else "")
        return done

    def _load(self, life: Life, run: SimulatedRun) -> None:
        self._at(self._now_ms, lambda: super(Told, self)._load(life, run))

    def _node_ready(self, node_id: str) -> None:
        known = node_id in self._board.nodes
        super()._node_ready(node_id)
        if known:
            self.note("ready", node_id)

    def _serverless_ready(self, life: Life, run: SimulatedRun) -> None:
        super()._serverless_ready(life, run)
        if not run.over:
            self.note("ready", run.view.node_id)

    def _go(self, life: Life, run: SimulatedRun) -> None:
        over = run.over
        super()._go(life, run)
        if not over:
            self.note("runs", life.task.job_id, place=run.view.node_id)

    def _saved(self, life: Life, run: SimulatedRun) -> None:
        self._leaving(life, run, lambda: super(Told, self)._saved(life, run))

    def _promote(self, life: Life, source: SimulatedRun, target: SimulatedRun) -> None:
        self._leaving(life, source, lambda: super(Told, self)._promote(life, source, target))

    def _leaving(self, life: Life, run: SimulatedRun, go: Callable[[], None]) -> None:
        over, place = run.over, run.view.node_id
        go()
        if not over:
            self.note("left", life.task.job_id, place=place)

    def _finish(self, life: Life, run: SimulatedRun) -> None:
        ends = not run.over and run.view.state == RunState.RUNNING
        super()._finish(life, run)
        if ends:
            self.note("finished", life.task.job_id, place=run.view.node_id)

    def _die(self, node_id: str) -> None:
        known = node_id in self._board.nodes
        super()._die(node_id)
        if known:
            self.note("died", node_id)


def picture(jobs: Iterable[JobView], runs: Iterable[RunView], nodes: Iterable[NodeView]) -> Picture:
    """What there is, in words that both have."""
    held: dict[str, list[tuple[str, str]]] = {}
    for run in runs:
        for job_id in run.job_ids:
            state = "coming" if run.state in _COMING_RUNS else str(run.state)
            held.setdefault(job_id, []).append((run.node_id, state))
    machines = {}
    for node in nodes:
        state = "coming" if node.state in COMING_NODE_STATES else str(node.state)
        machines[node.node_id] = (state, len(node.free_gpus))
    return {job.job_id: (str(job.state), sorted(held.get(job.job_id, []))) for job in jobs}, machines


class Twin:
    """The service, to which the same happens. `names`: what is called so in the simulation is called so here."""

    def __init__(self, world: World, folder: Path, scenario_offers: tuple[Offer, ...]) -> None:
        self.world = world
        self.folder = folder
        self.began_ms = world.clock.ms
        self.names: dict[str, str] = {}
        self.steps: dict[str, int] = {}
        world.cloud.on_offer = [self._offer(offer) for offer in scenario_offers]

    async def play(self, scenario: Scenario, story: list[Happening]) -> AsyncIterator[Happening]:
        """One thing after the other happens; each is given back when it has."""
        coming = sorted(scenario.tasks, key=lambda one: one.submit_ms, reverse=True)
        for one in story:
            while coming and coming[-1].submit_ms <= one.at_ms:
                await self._submit(coming.pop())
            self.world.clock.ms = self.began_ms + one.at_ms
            await self._follow(one)
            yield one

    async def _submit(self, task: Task) -> None:
        self.world.clock.ms = self.began_ms + task.submit_ms
        resources = resources_json(Resources(gpus_min=task.gpus, gpus_max=task.gpus))
        deadline_ms = self.began_ms + task.deadline_ms
        columns = {"name": task.job_id, "resources": resources, "start": "auto", "deadline_ms": deadline_ms}
        self.names[task.job_id] = await self.world.submit(**columns)

    async def _follow(self, one: Happening) -> None:
        match one.what:
            case "action":
                assert one.action is not None
                await self._enact(one.action, one.place)
            case "ready":
                await self.world.boot(self.names[one.who])
            case "died":
                self.world.cloud.die(self.names[one.who])
                await Moving(self.world, self.folder).loses(self.names[one.who])
            case _:
                await self._tell(one)
        await self.world.work()

    async def snapshot(self) -> Snapshot:
        return (await observe(self.context, Memory())).snapshot

    async def now(self) -> Picture:
        """In the simulation's names."""
        there = {mine: theirs for theirs, mine in self.names.items()}
        seen = await self.snapshot()
        jobs = [replace(job, job_id=there[job.job_id]) for job in seen.jobs]
        runs = [
            replace(run, job_ids=tuple(there[job] for job in run.job_ids), node_id=there[run.node_id])
            for run in seen.runs
        ]
        nodes = [
            replace(node, node_id=there[node.node_id])
            for node in seen.nodes
            if node.state is not NodeState.TERMINATING  # a simulated machine that is given back is gone at once
        ]
        return picture(jobs, runs, nodes)

    @property
    def context(self) -> ControlContext:
        return self.world.control.context

    async def _enact(self, action: Action, rented: str) -> None:
        moving = Moving(self.world, self.folder)
        changes: dict[str, Any] = {"versions": ()}
        for name in ("job_id", "for_job_id", "node_id"):
            if hasattr(action, name):
                changes[name] = self.names[getattr(action, name)]
        if isinstance(action, Start | Provision):
            changes["offer"] = self._offer(action.offer)
        if isinstance(action, Provision):
            changes["project_id"] = self.world.project_id
        if isinstance(action, Migrate | Demote):
            changes["run_id"] = await self._run_of(changes["job_id"])
        assert isinstance(action, Start | Assign | Provision | Release | Demote | Migrate), "the service refuses others"
        assert await moving.enact(replace(action, **changes)) == ()
        if rented:
            self.names[rented] = (await self.world.newest_node()).id
        if isinstance(action, Migrate):  # the simulated target is prepared at once
            moving.job_id = changes["job_id"]
            assert await moving.says(await self._run_of(moving.job_id, RunState.STANDBY), "prepared")

    async def _tell(self, one: Happening) -> None:
        """What the agent on that machine says."""
        moving = Moving(self.world, self.folder)
        moving.job_id = self.names[one.who]
        (run_id,) = [
            run.run_id
            for run in (await self.snapshot()).runs
            if run.job_ids == (moving.job_id,) and run.node_id == self.names[one.place]
        ]
        step = self.steps[one.who] = self.steps.get(one.who, 0) + 1
        match one.what:
            case "runs":
                await moving.says(run_id, "running", step)
            case "left":
                await moving.saves(run_id, step, final=True)
                await moving.says(run_id, "exited", step, exit_code=75, saved_after_stop=True)
            case "finished":
                await moving.says(run_id, "exited", step, exit_code=0)

    async def _run_of(self, job_id: str, state: RunState = RunState.RUNNING) -> str:
        (run_id,) = [
            run.run_id for run in (await self.snapshot()).runs if run.job_ids == (job_id,) and run.state is state
        ]
        return run_id

    def _offer(self, offer: Offer) -> Offer:
        return replace(offer, provider=self.world.cloud.name, offer_id=f"{offer.tier}-{offer.offer_id}")
