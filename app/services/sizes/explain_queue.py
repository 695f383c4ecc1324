"""Where a job stands among those that share machines with elastic ones, and by what that was judged."""

from __future__ import annotations

from app.core.elastic.kinds import KindSource
from app.core.elastic.queues import PriorityQueue
from app.core.elastic.standing import QueueStanding
from app.core.explaining.facts import Remark
from app.core.policies.reasons import duration
from app.db.connection import Connection
from app.db.queues.standings import standing_of


async def explain_queue(connection: Connection, job_id: str, *, now_ms: int) -> list[Remark]:
    """Nothing of a job beside which no elastic one has trained."""
    standing = await standing_of(connection, job_id)
    if standing is None:
        return []
    data = {
        "kind": standing.kind.value,
        "kind_inferred": standing.source is not KindSource.LABEL,
        "queue": standing.queue.name.lower(),
    }
    return [Remark(f"{_words(standing)}{_since(standing, now_ms)}: {_meaning(standing)}", data)]


def _words(standing: QueueStanding) -> str:
    how = "is" if standing.source is KindSource.LABEL else "is taken to be"
    return f"it {how} {standing.kind} ({standing.because}), and stands in the {standing.queue.name.lower()} queue"


def _since(standing: QueueStanding, now_ms: int) -> str:
    return "" if standing.since_ms == 0 else f" since {duration(max(0, now_ms - standing.since_ms))}"


def _meaning(standing: QueueStanding) -> str:
    if standing.queue is PriorityQueue.INTERACTIVE:
        kept = ", and none of its own are lent" if standing.keeps_all else ""
        return f"elastic jobs of the project lend it GPUs before others{kept}"
    if standing.queue is PriorityQueue.BATCH:
        return "elastic jobs of the project lend GPUs to interactive jobs first"
    return "it has run for long; others are lent GPUs first, and of these its own come first"
