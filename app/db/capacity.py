"""How much of a PostgreSQL server is taken, asked once by whoever looks at a set-up."""

from __future__ import annotations

from dataclasses import dataclass

import asyncpg

_ROOM = """
    SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int AS most,
           (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')::int AS used
"""


@dataclass(frozen=True, slots=True)
class ServerCapacity:
    version: int
    free_connections: int


async def read_room(database_url: str, *, timeout_s: float) -> ServerCapacity:
    """Major version, and the connections that are not in use."""
    connection = await asyncpg.connect(database_url, timeout=timeout_s, command_timeout=timeout_s)
    try:
        row = await connection.fetchrow(_ROOM)
        return ServerCapacity(connection.get_server_version().major, row["most"] - row["used"])
    finally:
        await connection.close()
