"""Which jobs a node will likely run next. Advice, so that its agent may fetch what they need while others still run
there: no plan reads it, and a node that is told of a job may never get it."""

from __future__ import annotations

from collections.abc import Iterable

from app.core import queue
from app.core.board import shape_of
from app.core.model.node import SERVERFUL_TIERS, NodeState
from app.core.model.snapshot import JobView, NodeView
from app.core.policies.room import shape_fits


def next_jobs(node: NodeView, waiting: Iterable[JobView], now_ms: int) -> list[JobView]:
    """Those of `waiting` that the node could be given, were it empty: the earliest deadline first.

    They are of the node's own project. Nothing for a node that takes no job, or that is given back with its run
    (serverless).
    """
    if node.state != NodeState.READY or node.tier not in SERVERFUL_TIERS:
        return []
    fitting = (job for job in waiting if _may_start(job, now_ms) and job.project_id == node.project_id)
    shape = shape_of(node)
    return sorted((job for job in fitting if shape_fits(job.resources, shape)), key=queue.edf_key)


def _may_start(job: JobView, now_ms: int) -> bool:
    held = job.leaving or job.not_before_ms > now_ms or queue.has_spent_all(job)
    return queue.is_placeable(job) and not held
