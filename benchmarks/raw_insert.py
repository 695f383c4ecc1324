"""The rate to compare with: one autocommit INSERT ... RETURNING per job, straight through asyncpg.

The strongest form: statements prepared, connections held, uvloop. Run as a process of its own by `benchmarks.submit`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import sys
import time
from typing import Any

import asyncpg
import uvloop


async def measure(database_url: str, row: dict[str, Any], *, callers: int, connections: int, seconds: float) -> float:
    """Rows per second into `jobs`, each with a new id and otherwise like `row`."""
    names = ", ".join(f'"{name}"' for name in row)
    marks = ", ".join(f"${number}" for number in range(1, len(row) + 1))
    statement = f"INSERT INTO jobs ({names}, state) VALUES ({marks}, 'queued') RETURNING id"
    opened = [await asyncpg.connect(database_url) for _ in range(connections)]
    idle: asyncio.Queue[Any] = asyncio.Queue()
    for connection in opened:
        idle.put_nowait(await connection.prepare(statement))
    assert next(iter(row)) == "id"
    values = list(row.values())[1:]
    prefix = secrets.token_hex(8)
    numbers = itertools.count()
    until = time.perf_counter() + seconds

    async def caller() -> None:
        while time.perf_counter() < until:
            prepared = await idle.get()
            await prepared.fetchval(f"job_{prefix}{next(numbers):08d}", *values)
            idle.put_nowait(prepared)

    started = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    elapsed_s = time.perf_counter() - started
    for connection in opened:
        await connection.close()
    return next(numbers) / elapsed_s


def main() -> None:
    """Arguments as one JSON object; prints the rate of a second run, the first one warms up."""
    given = json.loads(sys.argv[1])
    seconds = given.pop("seconds")
    uvloop.run(measure(**given, seconds=min(1.0, seconds)))
    print(json.dumps({"rate": uvloop.run(measure(**given, seconds=seconds))}))


if __name__ == "__main__":
    main()
