"""The whole service in numbers, over all projects: for those who operate it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

# One row per number: (what, three labels, number). Finished jobs and machines are not counted here: there may be many.
_STANDING = text("""
    SELECT 'job' AS what, jobs.state AS a, coalesce(held.tier, 'none') AS b, '' AS c, count(*) AS number
    FROM jobs LEFT JOIN (
        SELECT DISTINCT ON (run_jobs.job_id) run_jobs.job_id, runs.tier
        FROM runs JOIN run_jobs ON run_jobs.run_id = runs.id
        WHERE runs.state NOT IN ('ended', 'standby') ORDER BY run_jobs.job_id, run_jobs.epoch DESC
    ) AS held ON held.job_id = jobs.id
    WHERE jobs.state NOT IN ('succeeded', 'failed', 'cancelled') GROUP BY 2, 3
    UNION ALL
    SELECT 'node', state, tier, provider, count(*) FROM nodes
    WHERE state NOT IN ('terminated', 'failed') GROUP BY 2, 3, 4
    UNION ALL
    SELECT 'spent', tier, provider, '', sum(metered_micros)::bigint FROM nodes GROUP BY 2, 3
    UNION ALL
    SELECT 'pending', provider, kind, coalesce(error_code, ''), count(*) FROM provider_operations
    WHERE state = 'pending' GROUP BY 2, 3, 4
    UNION ALL
    SELECT 'leader', '', '', '', term FROM leader_leases WHERE expires_at > clock_timestamp()
""")

# What ended or first ran since a moment: (what, id, three labels, when, how long it took).
_NEWS = text("""
    SELECT 'started' AS what, id, '' AS a, '' AS b, '' AS c, first_running_ms AS at_ms,
           first_running_ms - submitted_ms AS took_ms
    FROM jobs WHERE first_running_ms >= :since
    UNION ALL
    SELECT 'ended', id, state, coalesce(end_reason, ''), '', ended_ms, ended_ms - submitted_ms
    FROM jobs WHERE ended_ms >= :since
    UNION ALL
    SELECT 'operation', id, provider, kind,
           CASE WHEN state = 'done' THEN 'ok' ELSE coalesce(error_code, state) END, ended_ms, ended_ms - created_ms
    FROM provider_operations WHERE ended_ms >= :since
""")

_NEW_TICKS = text("""
    SELECT id, at_ms, duration_ms, dropped FROM ticks
    WHERE id > coalesce(CAST(:after AS bigint), (SELECT max(id) - 1 FROM ticks)) ORDER BY id
""")
_SIGNALS = text("SELECT plan -> 'signals' AS signals FROM ticks WHERE id = :id")


@dataclass(frozen=True, slots=True)
class Count:
    what: str
    labels: tuple[str, str, str]
    number: int


@dataclass(frozen=True, slots=True)
class News:
    """Something that happened once, at `at_ms`, after `took_ms`."""

    what: str
    row_id: str
    labels: tuple[str, str, str]
    at_ms: int
    took_ms: int


@dataclass(frozen=True, slots=True)
class TickBrief:
    number: int
    at_ms: int
    duration_ms: int
    dropped: int


async def read_standing(connection: AsyncConnection) -> list[Count]:
    """Jobs by state and tier, nodes by state, tier and provider, micro-dollars by tier and provider, open operations
    by provider, kind and last error, and the leader's term if there is one."""
    rows = await connection.execute(_STANDING)
    return [Count(row.what, (row.a, row.b, row.c), int(row.number)) for row in rows]


async def read_news(connection: AsyncConnection, *, since_ms: int) -> list[News]:
    """Jobs that first ran or ended, and operations that ended, from a moment on."""
    rows = await connection.execute(_NEWS, {"since": since_ms})
    return [News(row.what, row.id, (row.a, row.b, row.c), row.at_ms, row.took_ms) for row in rows]


async def read_ticks(connection: AsyncConnection, *, after: int | None) -> list[TickBrief]:
    """Decisions stored after that one (None: only the newest), in order."""
    return [TickBrief(*row) for row in await connection.execute(_NEW_TICKS, {"after": after})]


async def read_signals(connection: AsyncConnection, number: int) -> dict[str, float]:
    """What the policy said of the world in that decision."""
    found: list[Any] | None = (await connection.execute(_SIGNALS, {"id": number})).scalar_one_or_none()
    return {str(name): float(value) for name, value in found or []}
