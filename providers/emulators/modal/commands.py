"""Commands run inside a sandbox beside its program, each with its output kept from the first byte."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path

_NOT_FOUND = 127
_READ_BYTES = 65_536
_INHERITED = ("PATH", "LANG", "LC_ALL", "TZ")


class SandboxCommand:
    """One process. It carries the sandbox's mark, so whoever ends the sandbox ends it too."""

    def __init__(self) -> None:
        self.returncode: int | None = None
        self._output = {1: bytearray(), 2: bytearray()}
        self._news = asyncio.Condition()
        self._process: asyncio.subprocess.Process | None = None
        self._running: asyncio.Task[None] | None = None

    async def start(self, arguments: list[str], environment: Mapping[str, str], directory: Path) -> None:
        """One that cannot be started has ended with 127, and says why on its error output."""
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        try:
            self._process = await asyncio.create_subprocess_exec(
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**inherited, **environment},
                cwd=directory,
                start_new_session=True,
            )
        except OSError as error:
            self._output[2] += f"{error}\n".encode()
            self.returncode = _NOT_FOUND
            return
        self._running = asyncio.create_task(self._follow(self._process))

    async def write(self, data: bytes, *, eof: bool) -> None:
        """To its standard input; what it no longer reads is lost."""
        pipe = None if self._process is None else self._process.stdin
        if pipe is None:
            return
        with suppress(ConnectionError):
            pipe.write(data)
            await pipe.drain()
        if eof:
            pipe.close()

    async def read(self, descriptor: int, offset: int) -> AsyncIterator[bytes]:
        """Its output from there on, as it comes, until it has ended."""
        while data := await self._more(descriptor, offset):
            yield data
            offset += len(data)

    async def _more(self, descriptor: int, offset: int) -> bytes:
        kept = self._output[descriptor]
        async with self._news:
            await self._news.wait_for(lambda: len(kept) > offset or self.returncode is not None)
            return bytes(kept[offset:])

    async def ended(self) -> int:
        """Its exit code; negative for a signal."""
        async with self._news:
            await self._news.wait_for(lambda: self.returncode is not None)
        assert self.returncode is not None
        return self.returncode

    async def kill(self) -> None:
        """End it; harmless when it has ended."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
        if self._running is not None:
            await self._running

    async def _follow(self, process: asyncio.subprocess.Process) -> None:
        await asyncio.gather(self._pump(1, process.stdout), self._pump(2, process.stderr))
        code = await process.wait()
        async with self._news:
            self.returncode = code
            self._news.notify_all()

    async def _pump(self, descriptor: int, pipe: asyncio.StreamReader | None) -> None:
        while pipe is not None and (data := await pipe.read(_READ_BYTES)):
            async with self._news:
                self._output[descriptor] += data
                self._news.notify_all()
