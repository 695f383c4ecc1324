"""What a node will likely run next, told to its agent with every answer: it may fetch that while others still run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from allpass.recipe.libraries import pins
from allpass.recipe.packing import SCRIPT_NAME
from allpass.wire.agent import NextJob
from app.core.next_jobs import next_jobs
from app.db.decisions.next_jobs import WaitingJob, read_node, waiting_jobs
from app.db.engine import Database
from app.db.nodes.agents import NodeIdentity
from app.ports.clock import Clock
from app.ports.objects import ObjectStore, content_key
from app.settings import Settings

MOST = 2
READ_EVERY_MS = 2_000


class _Read(NamedTuple):
    at_ms: int
    jobs: list[WaitingJob]


class Advisor:
    """One for all agents of a process: what waits in a project is read at most every `READ_EVERY_MS`, however many of
    its nodes ask. For one event loop."""

    def __init__(self, database: Database, objects: ObjectStore, settings: Settings, clock: Clock) -> None:
        self._database = database
        self._objects = objects
        self._settings = settings
        self._clock = clock
        self._reads: dict[str, _Read] = {}  # by project

    async def next_for(self, node: NodeIdentity) -> list[NextJob]:
        """Of the node's own project alone; at most `MOST`, no two of which need the same. A job waits here and there at
        once: several nodes may be told of it."""
        waiting = await self._waiting(node.project_id)
        if not waiting:
            return []
        now_ms = self._clock.now_ms()
        async with self._database.statement() as connection:
            view = await read_node(
                connection,
                node.node_id,
                now_ms=now_ms,
                usual_image=self._settings.node_image,
                lifetime_margin_ms=round(self._settings.lifetime_margin_s * 1000),
            )
        by_id = {job.view.job_id: job for job in waiting}
        likely = next_jobs(view, (job.view for job in waiting), now_ms)
        wanted = _distinct(by_id[job.job_id] for job in likely)
        return [self._told(node.project_id, job, now_ms) for job in wanted[:MOST]]

    async def _waiting(self, project_id: str) -> list[WaitingJob]:
        now_ms = self._clock.now_ms()
        last = self._reads.get(project_id)
        if last is not None and 0 <= now_ms - last.at_ms < READ_EVERY_MS:
            return last.jobs
        self._reads = {known: read for known, read in self._reads.items() if 0 <= now_ms - read.at_ms < READ_EVERY_MS}
        self._reads[project_id] = _Read(now_ms, [] if last is None else last.jobs)  # for who asks while we read
        async with self._database.statement() as connection:
            jobs = await waiting_jobs(connection, project_id, now_ms=now_ms, usual_image=self._settings.node_image)
        self._reads[project_id] = _Read(now_ms, jobs)
        return jobs

    def _told(self, project_id: str, job: WaitingJob, now_ms: int) -> NextJob:
        key = content_key(project_id, job.bundle_sha256)
        return NextJob(
            project_id=project_id,
            bundle_sha256=job.bundle_sha256,
            bundle_size_bytes=job.bundle_size_bytes,
            bundle_url=self._objects.sign_get(key, expires_ms=now_ms + self._settings.signed_url_ttl_s * 1000),
            pip=list(job.pip),
            environment_sha256=job.environment_sha256,
            model=_model(job),
            pins=_pins(job),
        )


def _distinct(jobs: Iterable[WaitingJob]) -> list[WaitingJob]:
    """The first of those that need the same: a sweep is fetched once."""
    found: dict[tuple[str, str, str | None, tuple[str, ...]], WaitingJob] = {}
    for job in jobs:
        found.setdefault((job.bundle_sha256, job.environment_sha256, _model(job), tuple(_pins(job))), job)
    return list(found.values())


def _pins(job: WaitingJob) -> list[str]:
    return pins(job.libraries, job.pip) if job.entrypoint == SCRIPT_NAME else []


def _model(job: WaitingJob) -> str | None:
    """Of the built-in recipe; what other code does with a parameter of that name is its own affair."""
    return job.model if job.entrypoint == SCRIPT_NAME else None
