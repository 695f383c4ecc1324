"""The folder in which a host keeps what it is: who it is to its pool, and what runs on it."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from pathlib import Path
from typing import IO, Any, NamedTuple

_NONCE = "nonce"
_MEMBER = "member.json"
_LEAVE = "leave"
_LOCK = "lock"


class HostError(Exception):
    """Said to whoever stands before the host, in one sentence."""


class Member(NamedTuple):
    """What a host is once it has joined. `gives`: `gpus`, or `cpus` where it gives its processors, `cpus for all` where
    also to jobs that name no GPU. `keep_free_bytes`: of its disk, whatever runs there. `hardware`: which machine it is,
    where that can be told: a disk may be copied."""

    url: str
    host_id: str
    host_token: str
    pool: str
    gives: str = "gpus"
    keep_free_bytes: int = 0
    nvidia_smi: str = ""
    python: str = ""
    hardware: str = ""


class HostPlace:
    """Everything is below `root`; secrets are readable by its owner alone."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def usual(cls) -> HostPlace:
        named = os.environ.get("ALLPASS_HOST_ROOT")
        if named:
            return cls(Path(named).absolute())
        return cls(Path("/var/lib/allpass-host") if os.geteuid() == 0 else Path.home() / ".allpass" / "host")

    @property
    def log_file(self) -> Path:
        return self.root / "host.log"

    def prepare(self) -> None:
        """Raises HostError where it cannot be written to."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self.root.chmod(0o711)  # passed through by users of jobs, listed by none
            self._write(".try", "")
            (self.root / ".try").unlink()
        except OSError as error:
            raise HostError(
                f"{self.root} cannot be written to ({error.strerror}): name another folder with --root, or free it"
            ) from error

    def nonce(self) -> str:
        """Made up at the first start: whoever has it is this host."""
        try:
            kept = (self.root / _NONCE).read_text().strip()
        except OSError:
            kept = ""
        if len(kept) == 64:
            return kept
        made = secrets.token_hex(32)
        self._write(_NONCE, made)
        return made

    def member(self) -> Member | None:
        """None: it is in no pool. What is cut short counts as nothing: whoever joins again is the same host."""
        try:
            told: dict[str, Any] = json.loads((self.root / _MEMBER).read_text())
            return Member(**{name: told[name] for name in Member._fields if name in told})
        except (OSError, ValueError, TypeError):
            return None

    def set_member(self, member: Member) -> None:
        self._write(_MEMBER, json.dumps(member._asdict()))

    def is_copied(self, hardware: str) -> bool:
        """Whether another machine has joined as this member, from whose disk this one was made."""
        member = self.member()
        return member is not None and bool(hardware and member.hardware) and hardware != member.hardware

    def forget(self) -> None:
        """It is in no pool any more. The nonce goes as well: who joins later is another host."""
        for name in (_MEMBER, _NONCE, _LEAVE):
            (self.root / name).unlink(missing_ok=True)

    def ask_to_leave(self) -> None:
        self._write(_LEAVE, "")

    def is_to_leave(self) -> bool:
        return (self.root / _LEAVE).exists()

    def lock(self) -> IO[str] | None:
        """Held while it is open; None: another process runs this host."""
        held = (self.root / _LOCK).open("a+")
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            held.close()
            return None
        return held

    def _write(self, name: str, text: str) -> None:
        """Whole or not at all, also if the power goes."""
        part = self.root / f".{name}.part"
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.root / name)
