"""What the one-machine stack keeps on disk, and the secrets it makes for itself on first use."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from app.errors import Conflict, Unavailable

_OURS_ALONE, _PASSED_THROUGH = 0o700, 0o711
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True)
class StackPaths:
    """Paths under one data directory."""

    root: Path

    @property
    def postgres(self) -> Path:
        return self.root / "postgres" / "data"

    @property
    def objects(self) -> Path:
        return self.root / "objects"

    @property
    def cloud(self) -> Path:
        return self.root / "cloud"

    @property
    def emulated(self) -> Path:
        return self.root / "emulated"

    @property
    def here(self) -> Path:
        return self.root / "here"

    @property
    def agent(self) -> Path:
        return self.root / "agent.pyz"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def server_file(self) -> Path:
        """The settings of the server that serves now, but for accounts, for commands that look at it."""
        return self.root / "server.json"

    @property
    def client_file(self) -> Path:
        return self.root / "client.json"

    def create(self) -> None:
        """Make the directory, for us alone, also where an earlier version made it. Raises Unavailable naming it when
        that cannot be done.

        Where we are root, machines run user code as other users, who pass through to the folders of their machine: they
        can list nothing on the way, and enter nothing else.
        """
        way = _PASSED_THROUGH if os.geteuid() == 0 else _OURS_ALONE
        ours = (self.postgres.parent, self.objects, self.logs)
        with self.writing():
            self.root.mkdir(parents=True, exist_ok=True, mode=way)
            for folder in (*ours, self.cloud, self.emulated):
                folder.mkdir(exist_ok=True, mode=_OURS_ALONE)
            for folder in ours:
                folder.chmod(_OURS_ALONE)
            for folder in (self.root, self.cloud, self.emulated):
                folder.chmod(way)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Whatever keeps us from writing inside (rights, a full or read-only disk) is Unavailable, naming the
        directory."""
        try:
            yield
        except OSError as error:
            fix = "free some space, or choose" if error.errno in _NO_ROOM else "choose"
            raise Unavailable(
                f"the data directory {self.root} cannot be written ({error.strerror}); {fix} another with --data-dir",
                param="data_dir",
            ) from error

    def is_held(self) -> bool:
        """Whether a stack runs on this directory now. Makes nothing."""
        try:
            with (self.root / "lock").open("r") as handle:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def lock(self) -> IO[str]:
        """Hold the directory as long as the returned file is open. Raises Conflict when another stack holds it, and
        Unavailable when it cannot be written."""
        with self.writing():
            handle = (self.root / "lock").open("a+")
            os.fchmod(handle.fileno(), 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.seek(0)
            owner = handle.read().strip() or "unknown"
            handle.close()
            raise Conflict(
                f"the data directory {self.root} is in use by another Allpass (process {owner}); "
                "stop that one, or choose another directory with --data-dir",
                param="data_dir",
            ) from None
        try:
            with self.writing():
                handle.truncate(0)
                handle.write(str(os.getpid()))
                handle.flush()
        except BaseException:
            _close(handle)
            raise
        return handle

    def secrets(self) -> dict[str, str]:
        """The stack's own secrets, made once and kept in a file that only this user can read."""
        path = self.root / "secrets.json"
        with self.writing():
            if not path.exists():
                names = ("secret_key", "objects_signing_key", "local_cloud_key")
                fresh = path.with_suffix(".new")
                fresh.touch(mode=0o600)
                fresh.write_text(json.dumps({name: secrets.token_hex(32) for name in names}))
                fresh.replace(path)
            kept: dict[str, str] = json.loads(path.read_text())
        return kept


def _close(handle: IO[str]) -> None:
    with suppress(OSError):  # what could not be written is not written now either
        handle.close()
