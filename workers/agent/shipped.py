"""uv, as the service ships it: for machines whose Python has no usable pip, and faster where it has one.

It is fetched when an environment is to be built for the first time, and proven by its hash before each use: where the
agent is no more than the code of users, that code could have changed it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
import zlib
from pathlib import Path
from typing import BinaryIO, Callable, NamedTuple, Optional

from workers.agent.api import Api
from workers.agent.errors import Corrupt, Refused, Unreachable
from workers.agent.patience import Backoff

_LARGEST_BYTES = 256 * 1024 * 1024
_PATIENCE_S = 120.0  # in all: without uv there is pip, and a machine waits that is paid for
_RETRY_S = 600.0  # after a refusal, or when it could not be had
_GZIP = 16 + zlib.MAX_WBITS


class _Told(NamedTuple):
    sha256: str
    size_bytes: int


class Shipped:
    """One for an agent, for any number of threads: they wait for one fetch."""

    def __init__(self, api: Api, folder: Path) -> None:
        self._api = api
        self._folder = folder
        self._lock = threading.Lock()
        self._had: Optional[Path] = None
        self._not_before_s = 0.0

    def program(self, gone: threading.Event) -> Optional[str]:
        """The path of uv; None where there is none for this machine, or it could not be had. Never raises for that."""
        with self._lock:
            if self._had is not None and _is_right(self._had):
                return str(self._had)
            self._had = None
            if time.monotonic() < self._not_before_s:
                return None
            self._had = self._fetch(gone)
            if self._had is None and not gone.is_set():
                self._not_before_s = time.monotonic() + _RETRY_S
            return None if self._had is None else str(self._had)

    def _fetch(self, gone: threading.Event) -> Optional[Path]:
        backoff, end_s = Backoff(), time.monotonic() + _PATIENCE_S
        while not gone.is_set() and time.monotonic() < end_s:
            try:
                told = self._told()
                return None if told is None else self._have(told, end_s)
            except Refused:  # an older service, or one that has another uv by now
                return None
            except (Unreachable, Corrupt):
                gone.wait(backoff.next_s())
            except OSError:  # a full disk: the build will say so
                return None
        return None

    def _have(self, told: _Told, end_s: float) -> Path:
        path = self._folder / f"uv-{told.sha256}"
        if not _is_right(path):
            _write(path, lambda file: self._unpack(told, file, end_s))
        return path

    def _told(self) -> Optional[_Told]:
        reply = self._api.installer(os.uname().machine)
        sha256, size_bytes = reply.get("sha256"), reply.get("size_bytes")
        if not isinstance(sha256, str) or not isinstance(size_bytes, int) or not sha256.isalnum():
            return None
        return _Told(sha256, size_bytes) if 0 < size_bytes <= _LARGEST_BYTES else None

    def _unpack(self, told: _Told, file: BinaryIO, end_s: float) -> None:
        unpacker, digest, size_bytes = zlib.decompressobj(_GZIP), hashlib.sha256(), 0
        try:
            for block in self._api.installer_blocks(told.sha256):
                data = unpacker.decompress(block, told.size_bytes + 1 - size_bytes)
                size_bytes += len(data)
                digest.update(data)
                file.write(data)
                if size_bytes > told.size_bytes or time.monotonic() > end_s:
                    break
        except zlib.error as error:
            raise Corrupt(f"uv: {error}") from error
        if digest.hexdigest() != told.sha256:
            raise Corrupt(f"uv: {size_bytes} bytes that are not what was announced")


def _write(path: Path, fill: Callable[[BinaryIO], None]) -> None:
    """Whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with part.open("wb") as file:
            fill(file)
        part.chmod(0o755)
        part.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()


def _is_right(path: Path) -> bool:
    """Whether it still is what its name says."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
    except OSError:
        return False
    return path.name == f"uv-{digest.hexdigest()}"
