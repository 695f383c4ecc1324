"""Jobs that wait, with what a machine would have to fetch to run them: what advice to agents is made of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Row, bindparam, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.job import NO_AFFINITY, PLACEABLE_JOB_STATES, JobState
from app.core.model.snapshot import JobView, NodeView
from app.db.bids import is_bid
from app.db.decisions.job_views import job_view
from app.db.decisions.node_memory import node_view
from app.db.tables import app_versions, jobs, nodes
from app.db.unreadable import RowReading

MOST_WAITING = 64  # of each state


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job without a place; its view knows no affinity, which is about who else is on a node. `model`: the base model
    that its parameters name, if they do."""

    view: JobView
    bundle_sha256: str
    bundle_size_bytes: int
    entrypoint: str
    pip: tuple[str, ...]
    environment_sha256: str
    model: str | None
    libraries: Any = None  # that it goes on with


def _first(state: JobState) -> Any:
    """By id, which is by submission: an index of jobs has them in this order, and no more of them are looked at."""
    ids = select(jobs.c.id).where(jobs.c.project_id == bindparam("project_id"), jobs.c.state == state)
    return select(ids.order_by(jobs.c.project_id, jobs.c.state, jobs.c.id).limit(MOST_WAITING).subquery().c.id)


_WAITING = (
    select(jobs, *(column for column in app_versions.c if column.name not in ("id", "app_id", "version", "created_ms")))
    .join(app_versions, app_versions.c.id == jobs.c.app_version_id)
    .where(jobs.c.id.in_(union_all(*(_first(state) for state in sorted(PLACEABLE_JOB_STATES)))))
)
_NODE = select(nodes, is_bid().label("is_bid")).where(nodes.c.id == bindparam("node_id"))


async def waiting_jobs(
    connection: AsyncConnection, project_id: str, *, now_ms: int, usual_image: str
) -> list[WaitingJob]:
    """Of each state, the first `MOST_WAITING` by submission, in no order, of those that can be read. `usual_image`: as
    for `read_snapshot`."""
    rows = await connection.execute(_WAITING, {"project_id": project_id})
    reading = RowReading()
    read = (reading.of(jobs.name, row.id, partial(_waiting_job, row, now_ms, usual_image)) for row in rows)
    return [job for job in read if job is not None]


async def read_node(
    connection: AsyncConnection, node_id: str, *, now_ms: int, usual_image: str, lifetime_margin_ms: int
) -> NodeView:
    """The node as a decision sees it, but for what is free of it."""
    row = (await connection.execute(_NODE, {"node_id": node_id})).one()
    return node_view(row, set(), now_ms, usual_image, lifetime_margin_ms)


def _waiting_job(row: Row[Any], now_ms: int, usual_image: str) -> WaitingJob:
    model = row.parameters.get("model") if isinstance(row.parameters, dict) else None
    return WaitingJob(
        view=job_view(row, now_ms, 0, usual_image, NO_AFFINITY),
        bundle_sha256=row.bundle_sha256,
        bundle_size_bytes=row.bundle_size_bytes,
        entrypoint=row.entrypoint,
        pip=tuple(row.pip),
        environment_sha256=row.environment_sha256,
        model=model if isinstance(model, str) else None,
        libraries=None if row.checkpoint_id is None else row.libraries,
    )
