"""Wake-ups through PostgreSQL: sent inside a transaction, delivered after its commit, coalesced by the server.

A wake-up is a hint, never a fact: every listener also polls.
"""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

CONTROL = "allpass_control"
OPERATIONS = "allpass_operations"
NODE = "allpass_node"  # payload: node id
JOB = "allpass_job"  # payload: job id
CHECKS = "allpass_checks"

_NOTIFY = text("SELECT pg_notify(:channel, :payload)")


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


async def job(connection: AsyncConnection, job_id: str) -> None:
    """This job has a new event, log chunk or metric."""
    await connection.execute(_NOTIFY, {"channel": JOB, "payload": job_id})
