"""What a project has used and what that cost, from the ledger."""

from __future__ import annotations

from dataclasses import dataclass

from app.db.engine import Database
from app.db.jobs.reads import find_job
from app.db.money.usage import Grouping, UsageTotal, open_meters, sum_usage
from app.errors import InvalidInput, NotFound

_LABEL = "label:"
ACCEPTED = "job, app, label:NAME, key, day, provider, tier, size"
GROUP_PATTERN = r"^(job|app|key|day|provider|tier|size|label:[\s\S]+)$"


@dataclass(frozen=True, slots=True)
class Usage:
    """`open_nodes`: so many nodes are still charged for, and the total grows; 0 says that it is final."""

    total: UsageTotal
    open_nodes: int


async def report_usage(
    database: Database,
    project_id: str,
    group_by: str,
    *,
    from_ms: int | None,
    to_ms: int | None,
    limit: int,
    now_ms: int,
    job_id: str | None = None,
) -> Usage:
    """Cost and GPU time by group and payer, of the project or of one job. Raises InvalidInput for another grouping, and
    for times in disorder; NotFound where there is no such job."""
    grouping, label = parse_grouping(group_by)
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise InvalidInput("from: is not before `to`", param="from")
    async with database.transaction() as connection:
        if job_id is not None and await find_job(connection, project_id, job_id) is None:
            raise NotFound(f"there is no job {job_id!r} in this project")
        times = {"from_ms": from_ms, "to_ms": to_ms}
        total = await sum_usage(connection, project_id, grouping, label=label, job_id=job_id, limit=limit, **times)
        over = to_ms is not None and to_ms <= now_ms
        return Usage(total, 0 if over else await open_meters(connection, project_id))


def parse_grouping(text: str) -> tuple[Grouping, str]:
    """The grouping and, for labels, which one. Raises InvalidInput."""
    if text.startswith(_LABEL) and len(text) > len(_LABEL):
        return Grouping.LABEL, text.removeprefix(_LABEL)
    try:
        grouping = Grouping(text)
    except ValueError:
        raise InvalidInput(f"group_by: {text!r} is none of {ACCEPTED}", param="group_by") from None
    if grouping is Grouping.LABEL:
        raise InvalidInput("group_by: name the label, as in label:team", param="group_by")
    return grouping, ""
