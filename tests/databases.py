"""Databases of tests: made from a template or empty, and dropped by whoever made them.

A suite makes thousands. Left behind they fill a disk of 30 GB. Each is six hundred files that are created and removed
within seconds, for which ext4 takes ten times as long as a folder in memory does: their server keeps them there.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import asyncpg
from sqlalchemy.engine import make_url

from app.stack.postgres import EmbeddedPostgres

_MEMORY = Path("/dev/shm")
_LEAST_FREE_BYTES = 4 * 1024**3  # a run's databases take a tenth of it; containers often have 64 MB there
_PREFIX = "allpass-test-databases-"
_numbers = itertools.count(1)


@contextmanager
def server_folder(memory: Path = _MEMORY) -> Iterator[Path]:
    """A new folder for a server's files, in memory where that has room. What runs that were killed left there goes."""
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= _LEAST_FREE_BYTES
    if roomy:
        for left in memory.glob(f"{_PREFIX}*"):
            if not Path("/proc", left.name.removeprefix(_PREFIX).partition("-")[0]).exists():
                shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=memory if roomy else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


class Databases:
    """Those that one test, or one module, made on a server; all are dropped at the end of the `with`."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self._server = server
        self._names: list[str] = []

    def __enter__(self) -> Databases:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._names and self._server.alive():
            execute(self._server.url(), *(f"DROP DATABASE {name} WITH (FORCE)" for name in self._names))

    def make(self, template: str | None = None) -> str:
        """The URL of a new one: empty, or with all that is in the database of this name. Nobody may be in that."""
        name = f"test_{next(_numbers)}"
        copied = f" TEMPLATE {template} STRATEGY FILE_COPY" if template else ""
        execute(self._server.url(), f"CREATE DATABASE {name}{copied}")
        self._names.append(name)
        return self._server.url(name)


def name_of(url: str) -> str:
    return str(make_url(url).database)


def execute(url: str, *statements: str) -> Any:
    """Over a connection of its own, one after the other; the rows of the last one."""

    async def run() -> Any:
        connection = await asyncpg.connect(url)
        try:
            return [await connection.fetch(statement) for statement in statements][-1]
        finally:
            await connection.close()

    return asyncio.run(run())
