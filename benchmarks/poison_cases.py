"""One bad thing each: what is put into the stack, for how many rounds it stays, and how it is taken out again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.poison_agents import Agent, Program
from benchmarks.poison_ground import Ground

_LIVE = "state NOT IN ('succeeded', 'failed', 'cancelled', 'paused')"
_KEPT_LIVE = 4  # jobs of the poisoner's, in whatever states they come by


class NotReachedError(Exception):
    """There was nothing to poison: no such row, no job in such a state. Told, never counted as survived."""


Act = Callable[["Mallory"], Awaitable[None]]


async def nothing(_mallory: Mallory) -> None:
    return


@dataclass(frozen=True)
class Case:
    """`key` names it for good: `group subject`. `inject` raises NotReachedError where it could not."""

    group: str
    subject: str
    inject: Act
    cure: Act = nothing
    rounds: int = 1
    spares_project: bool = True  # False: the whole project is poisoned, and its good jobs are not looked at
    shares: bool = False  # it is about machines that her jobs share with the project's own
    beside: Act = nothing  # what she does at that time in the run without poison, where machines are shared

    @property
    def key(self) -> str:
        return f"{self.group} {self.subject}"


@dataclass
class Mallory:
    """The poisoner's part of the stack: jobs that only serve to be poisoned, in a project that has good ones too.

    `shares`: her jobs use the project's app, and so its machines; else they name an image of their own, which keeps
    them to machines of their own, so that what happens to these is seen apart from who had which machine."""

    place: Ground
    shares: bool = False
    job_ids: list[str] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)  # of the case that is in: what its cure must undo
    _number: int = 0

    @property
    def app_id(self) -> str:
        return self.place.mallory.app_id if self.shares else self.place.own_app_id

    async def keep_jobs(self) -> None:
        """Some jobs are always there: waiting, running, on the move, on rented machines."""
        mine = await self.place.execute(f"SELECT id FROM jobs WHERE id = ANY(:ids) AND {_LIVE}", ids=self.job_ids)
        for _ in range(_KEPT_LIVE - len(mine)):
            self._number += 1
            steps = (2_000, 30, 1_500, 120)[self._number % 4]
            template = {"training": {"steps": steps}, "gpu": {"memory_gb": 24}}
            job_id = await self.submit(f"bad-{self._number:03d}", template)
            self.place.programs[job_id] = Program(steps=steps)

    async def submit(self, name: str, template: dict[str, Any]) -> str:
        """One more job of hers: its id."""
        job_id = await self.place.mallory.submit(name, template, app_id=self.app_id)
        self.job_ids.append(job_id)
        return job_id

    async def job(self, state: str = "") -> str:
        """The id of a live job of hers."""
        wanted = f" AND state = '{state}'" if state else ""
        rows = await self.place.execute(
            f"SELECT id FROM jobs WHERE id = ANY(:ids) AND {_LIVE}{wanted} ORDER BY id DESC LIMIT 1", ids=self.job_ids
        )
        if not rows:
            raise NotReachedError(f"no job of hers is {state or 'live'}")
        job_id: str = rows[0].id
        return job_id

    async def node_ids(self) -> list[str]:
        """Machines that only jobs of hers use, newest first."""
        rows = await self.place.execute(
            "SELECT n.id FROM nodes n WHERE n.state NOT IN ('terminated', 'failed') AND n.project_id = :project_id AND "
            "n.rented_for_job_id = ANY(:ids) AND NOT EXISTS (SELECT FROM allocations a JOIN run_jobs r USING (run_id) "
            "WHERE a.node_id = n.id AND r.job_id <> ALL(:ids)) ORDER BY n.id DESC",
            ids=self.job_ids,
            project_id=self.place.mallory.project_id,
        )
        return [row.id for row in rows]

    async def node(self) -> str:
        found = await self.node_ids()
        if not found:
            raise NotReachedError("she has no machine now")
        return found[0]

    async def agent(self) -> Agent:
        """A machine of hers whose agent was let in and runs something."""
        for node_id in await self.node_ids():
            agent = self.place.agents.get(node_id)
            if agent is not None and agent.token and agent.runs:
                return agent
        raise NotReachedError("no agent of hers runs anything now")

    async def owned_ids(self) -> list[str]:
        """The ids of all rows that are hers alone: jobs, their runs, their machines."""
        runs = await self.place.execute(
            "SELECT DISTINCT run_id FROM run_jobs WHERE job_id = ANY(:ids)", ids=self.job_ids
        )
        return [*self.job_ids, *(row.run_id for row in runs), *await self.node_ids()]
