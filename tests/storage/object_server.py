"""The object store as a real process on loopback, for the tests of this folder."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from app.ports.objects import content_key
from app.storage.directory import DirectoryStore

SIGNING_KEY = "a-signing-key-for-tests-0123456789"
MAX_OBJECT_BYTES = 256 * 1024 * 1024
PROJECT = "proj_0123456789ABCDEFGHJK"


class RealClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep_ms(self, duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)


@dataclass
class ServerProcess:
    """`python -m app.storage.server`, as the product starts it. Started again, it listens on the same port."""

    root: Path
    options: tuple[str, ...] = ()
    wrapper: tuple[str, ...] = ()
    process: subprocess.Popen[str] | None = field(default=None, init=False)
    url: str = field(default="http://127.0.0.1:0", init=False)
    greeting: str = field(default="", init=False)

    def start(self) -> ServerProcess:
        port = self.url.rsplit(":", 1)[1]
        command = [*self.wrapper, sys.executable, "-m", "app.storage.server", "--root", str(self.root), "--port", port]
        self.process = subprocess.Popen(
            [*command, "--die-with-parent", *self.options],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "ALLPASS_OBJECTS_SIGNING_KEY": SIGNING_KEY},
        )
        assert self.process.stdout is not None
        self.greeting = self.process.stdout.readline()
        assert self.greeting.startswith("listening on "), "the server did not start"
        self.url = self.greeting.split()[2]
        return self

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None

    def store(self) -> DirectoryStore:
        """The same folder, as the API sees it: signs URLs that this server honours."""
        return DirectoryStore(self.root, self.url, SIGNING_KEY, max_object_bytes=MAX_OBJECT_BYTES, clock=RealClock())

    def temporary_files(self) -> list[Path]:
        folder = self.root / ".incoming"
        return sorted(folder.iterdir()) if folder.is_dir() else []

    def peak_memory_bytes(self) -> int:
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def key_of(data: bytes, project: str = PROJECT) -> str:
    return content_key(project, sha256_of(data))


def soon_ms() -> int:
    return time.time_ns() // 1_000_000 + 60_000


def eventually(condition: Callable[[], bool], what: str, deadline_s: float = 60.0) -> None:
    """Poll until it holds; fail with `what` when it never does."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.005)
