"""The whole service as it stands, in numbers over all projects: for those who operate it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

# One row per number: (what, three labels, number). Finished jobs and machines are not looked at: there may be many.
_STANDING = text("""
    SELECT 'job' AS what, jobs.state AS a, coalesce(held.tier, 'none') AS b, '' AS c, count(*) AS number
    FROM jobs LEFT JOIN (
        SELECT DISTINCT ON (run_jobs.job_id) run_jobs.job_id, runs.tier
        FROM runs JOIN run_jobs ON run_jobs.run_id = runs.id
        WHERE runs.state <> 'ended' AND runs.state <> 'standby' ORDER BY run_jobs.job_id, run_jobs.epoch DESC
    ) AS held ON held.job_id = jobs.id
    WHERE jobs.state NOT IN ('succeeded', 'failed', 'cancelled') GROUP BY 2, 3
    UNION ALL
    SELECT 'late', CASE WHEN deadline_given THEN 'given' ELSE 'inferred' END, '', '',
           count(*) FILTER (WHERE deadline_ms < :now AND pause_reason IS DISTINCT FROM 'user') FROM jobs
    WHERE state NOT IN ('succeeded', 'failed', 'cancelled') GROUP BY 2
    UNION ALL
    SELECT 'paused', coalesce(pause_reason, ''), '', '', count(*) FROM jobs
    WHERE state NOT IN ('succeeded', 'failed', 'cancelled') AND state = 'paused' GROUP BY 2
    UNION ALL
    SELECT 'node', state, tier, provider, count(*) FROM nodes
    WHERE state NOT IN ('terminated', 'failed') GROUP BY 2, 3, 4
    UNION ALL
    SELECT 'orphan', provider, '', '', count(*) FILTER (WHERE orphan) FROM nodes
    WHERE state NOT IN ('terminated', 'failed') GROUP BY 2
    UNION ALL
    SELECT 'price', tier, provider, '', sum(price_micros_per_hour) FROM nodes
    WHERE state NOT IN ('terminated', 'failed') GROUP BY 2, 3
    UNION ALL
    SELECT 'unmetered', '', '', '',
           greatest(0, coalesce(max(CAST(:now AS numeric) - coalesce(metered_until_ms, billed_from_ms)), 0))
    FROM nodes WHERE NOT meter_closed AND billed_from_ms IS NOT NULL
    UNION ALL
    SELECT 'spent', tier, provider, '', sum(amount_micros) FROM tier_spending GROUP BY 2, 3
    UNION ALL
    SELECT 'pending', provider, kind, coalesce(error_code, ''), count(*) FROM provider_operations
    WHERE state = 'pending' GROUP BY 2, 3, 4
    UNION ALL
    SELECT 'leader', '', '', '', term FROM leader_leases WHERE expires_at > clock_timestamp()
""")
_LAST_TICK = text("SELECT at_ms, dropped, plan -> 'signals' AS signals FROM ticks ORDER BY id DESC LIMIT 1")


@dataclass(frozen=True, slots=True)
class Count:
    what: str
    labels: tuple[str, str, str]
    number: int


@dataclass(frozen=True, slots=True)
class TickBrief:
    """The newest decision that is stored. `signals`: what the policy said of the world."""

    at_ms: int
    dropped: int
    signals: Mapping[str, float]


async def read_standing(connection: AsyncConnection, *, now_ms: int) -> list[Count]:
    """Of unfinished jobs: how many by state and tier, are late by who set the deadline, and are paused by reason. Of
    nodes that are not gone: how many by state, tier and provider, are orphans, and micro-dollars per hour; for how long
    none was metered at most. Micro-dollars by tier and provider; open operations; the leader's term if there is one."""
    rows = await connection.execute(_STANDING, {"now": now_ms})
    return [Count(row.what, (row.a, row.b, row.c), int(row.number)) for row in rows]


async def read_last_tick(connection: AsyncConnection) -> TickBrief | None:
    row = (await connection.execute(_LAST_TICK)).one_or_none()
    if row is None:
        return None
    return TickBrief(row.at_ms, row.dropped, {str(name): float(value) for name, value in row.signals or []})
