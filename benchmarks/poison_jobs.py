"""The good jobs: what they are, when they come, and what became of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from app.db import tables as t
from benchmarks.poison_agents import Program
from benchmarks.poison_ground import TICK_S, Ground, Tenant

FINAL = ("succeeded", "failed", "cancelled")
_OUTCOME = ("state", "end_reason", "step", "faults", "artifacts")
_WHERE = ("moves", "stays", "lines", "checkpoints")


@dataclass(frozen=True)
class GoodJob:
    """`tenant`: which of the tenants, the last number being the poisoner's own project. `pauses_at`, `resumes_at`:
    rounds after its submission."""

    name: str
    tenant: int
    round_number: int
    program: Program
    template: Mapping[str, Any]
    pauses_after: int | None = None

    async def submit(self, place: Ground) -> str:
        tenant = tenant_of(place, self.tenant)
        job_id = await tenant.submit(self.name, dict(self.template))
        place.programs[job_id] = self.program
        return job_id


@dataclass(frozen=True)
class Fate:
    """What became of a good job. Two fates are equal when nothing disturbed the job; its start may be a tick later."""

    state: str
    end_reason: str | None
    step: int
    faults: int
    moves: int
    stays: tuple[tuple[str, str | None, int | None], ...]  # of its runs: tier, end, step resumed from
    lines: tuple[tuple[str, int], ...]  # of the ledger, by payer: micro-dollars
    artifacts: tuple[tuple[str, str], ...]
    checkpoints: tuple[int, ...]
    waited_ms: int | None  # until its code first ran

    def differs(self, other: Fate, *, wherever: bool = False) -> list[str]:
        """In which ways this one was disturbed, compared with the same job without poison. `wherever`: on which of its
        project's machines it ran, and so at what price and with how many moves, is not looked at."""
        ways = []
        for name in (*_OUTCOME, *(() if wherever else _WHERE)):
            here, there = getattr(self, name), getattr(other, name)
            if here != there:
                ways.append(f"{name}: {there} without poison, {here} with it")
        if self.waited_ms is None or other.waited_ms is None:
            if self.waited_ms != other.waited_ms:
                ways.append(f"first start: {other.waited_ms} ms without poison, {self.waited_ms} ms with it")
        elif self.waited_ms - other.waited_ms > TICK_S * 1000:
            ways.append(f"first start {self.waited_ms - other.waited_ms} ms later")
        return ways


def good_jobs(count: int, rounds: int, tenants: int, *, most_steps: int = 2_000) -> list[GoodJob]:
    """`count` jobs that come evenly over so many rounds: short ones, ones worth a move, ones that fail, ones that are
    paused and resumed, with and without caps and stated steps."""
    jobs = []
    for number in range(count):
        kind = number % 8
        steps = {0: 40, 1: 90, 2: 1_500, 3: 60, 4: 1_700, 5: 150, 6: 700, 7: 25}[kind] + number % 7
        steps = min(steps, most_steps)
        stated = {"training": {"steps": steps}} if kind != 5 else {}
        caps = {"caps": {"max_cost_usd": 5}} if kind in (2, 3) else {}
        jobs.append(
            GoodJob(
                name=f"good-{number:03d}",
                tenant=number % (tenants + 1),
                round_number=number * rounds // count,
                program=Program(steps=steps, save_every=60, fails_at=20 if kind == 7 else None),
                template={**stated, **caps, "gpu": {"memory_gb": 24}, "labels": {"kind": str(kind)}},
                pauses_after=6 if kind == 6 else None,
            )
        )
    return jobs


class Play:
    """Submits the good jobs as their rounds come, and steers those that are to be paused and resumed."""

    def __init__(self, place: Ground, jobs: list[GoodJob]) -> None:
        self._place = place
        self._jobs = jobs
        self.ids: dict[str, str] = {}

    async def step(self) -> None:
        now = self._place.round_number
        for job in self._jobs:
            if job.round_number == now:
                self.ids[job.name] = await job.submit(self._place)
            elif job.pauses_after is not None and job.name in self.ids:
                http = tenant_of(self._place, job.tenant).http
                if now == job.round_number + job.pauses_after:
                    await http.post(f"/v1/jobs/{self.ids[job.name]}/pause", json={})
                elif now == job.round_number + job.pauses_after + 4:
                    await http.post(f"/v1/jobs/{self.ids[job.name]}/resume", json={})

    async def over(self) -> bool:
        if len(self.ids) < len(self._jobs):
            return False
        states = await self._place.execute(
            "SELECT DISTINCT state FROM jobs WHERE id = ANY(:ids)", ids=[*self.ids.values()]
        )
        return all(row.state in FINAL for row in states)

    async def fates(self) -> dict[str, Fate]:
        """By name."""
        by_job = {job_id: name for name, job_id in self.ids.items()}
        rows = await _Rows.read(self._place, [*by_job])
        return {name: rows.fate(job_id) for job_id, name in by_job.items()}


@dataclass(frozen=True)
class _Rows:
    jobs: Mapping[str, Any]
    runs: Mapping[str, list[Any]]
    lines: Mapping[str, Counter[str]]
    artifacts: Mapping[str, list[tuple[str, str]]]
    checkpoints: Mapping[str, list[int]]

    @classmethod
    async def read(cls, place: Ground, job_ids: list[str]) -> _Rows:
        async with place.database.transaction() as connection:
            jobs = {row.id: row for row in await connection.execute(select(t.jobs)) if row.id in set(job_ids)}
            runs: dict[str, list[Any]] = {job_id: [] for job_id in jobs}
            joined = select(t.runs, t.run_jobs.c.job_id, t.run_jobs.c.epoch).join(
                t.run_jobs, t.run_jobs.c.run_id == t.runs.c.id
            )
            for row in await connection.execute(joined.order_by(t.run_jobs.c.epoch)):
                if row.job_id in runs:
                    runs[row.job_id].append(row)
            lines: dict[str, Counter[str]] = {job_id: Counter() for job_id in jobs}
            for row in await connection.execute(select(t.ledger)):
                if row.job_id in lines:
                    lines[row.job_id][row.payer] += row.amount_micros
            artifacts: dict[str, list[tuple[str, str]]] = {job_id: [] for job_id in jobs}
            for row in await connection.execute(select(t.artifacts)):
                if row.job_id in artifacts:
                    artifacts[row.job_id].append((row.path, row.sha256))
            checkpoints: dict[str, list[int]] = {job_id: [] for job_id in jobs}
            for row in await connection.execute(select(t.checkpoints)):
                if row.job_id in checkpoints:
                    checkpoints[row.job_id].append(row.step)
        return cls(jobs, runs, lines, artifacts, checkpoints)

    def fate(self, job_id: str) -> Fate:
        job = self.jobs[job_id]
        return Fate(
            state=job.state,
            end_reason=job.end_reason,
            step=job.step,
            faults=job.faults,
            moves=job.moves,
            stays=tuple((run.tier, run.end_reason, run.resumed_from_step) for run in self.runs[job_id]),
            lines=tuple(sorted(self.lines[job_id].items())),
            artifacts=tuple(sorted(self.artifacts[job_id])),
            checkpoints=tuple(sorted(self.checkpoints[job_id])),
            waited_ms=None if job.first_running_ms is None else job.first_running_ms - job.submitted_ms,
        )


def tenant_of(place: Ground, number: int) -> Tenant:
    return place.mallory if number == len(place.tenants) else place.tenants[number]
