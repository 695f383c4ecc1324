"""Wake-ups through PostgreSQL: sent inside a transaction, delivered after its commit, coalesced by the server.

A wake-up is a hint, never a fact: every listener also polls. One payload may name several rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Text, bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

CONTROL = "allpass_control"
OPERATIONS = "allpass_operations"
NODE = "allpass_node"  # payload: node id
JOB = "allpass_job"  # payload: job ids
CHECKS = "allpass_checks"
HOST = "allpass_host"  # payload: host id

_BETWEEN = ","  # ids in one payload
_IDS_AT_ONCE = 200  # a payload has less than 8,000 bytes, and an id about 31

_NOTIFY = text("SELECT pg_notify(:channel, :payload)")
_NOTIFY_ALL = text("SELECT pg_notify(:channel, payload) FROM unnest(:payloads) AS payload").bindparams(
    bindparam("payloads", type_=ARRAY(Text))
)


async def control(connection: AsyncConnection) -> None:
    """Something that a decision depends on has changed."""
    await connection.execute(_NOTIFY, {"channel": CONTROL, "payload": ""})


async def operations(connection: AsyncConnection) -> None:
    """There is a provider operation to carry out."""
    await connection.execute(_NOTIFY, {"channel": OPERATIONS, "payload": ""})


async def checks(connection: AsyncConnection) -> None:
    """A check of a provider's credentials was asked for, or answered."""
    await connection.execute(_NOTIFY, {"channel": CHECKS, "payload": ""})


async def node(connection: AsyncConnection, node_id: str) -> None:
    """What this node's agent should do has changed."""
    await connection.execute(_NOTIFY, {"channel": NODE, "payload": node_id})


async def host(connection: AsyncConnection, host_id: str) -> None:
    """What this host of a pool should do has changed."""
    await connection.execute(_NOTIFY, {"channel": HOST, "payload": host_id})


async def job(connection: AsyncConnection, job_id: str) -> None:
    """This job has a new event, log chunk or metric."""
    await connection.execute(_NOTIFY, {"channel": JOB, "payload": job_id})


async def jobs(connection: AsyncConnection, job_ids: Sequence[str]) -> None:
    """The same for many jobs, in one statement: some hundred in each payload."""
    if job_ids:
        starts = range(0, len(job_ids), _IDS_AT_ONCE)
        payloads = [_BETWEEN.join(job_ids[start : start + _IDS_AT_ONCE]) for start in starts]
        await connection.execute(_NOTIFY_ALL, {"channel": JOB, "payloads": payloads})


def named_in(payload: str) -> list[str]:
    """The ids in a payload; one empty name where it has none."""
    return payload.split(_BETWEEN)
