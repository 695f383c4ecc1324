"""How much of this machine's memory a training may still have. Nobody is told where the system does not say."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Optional

_NO_LIMIT_BYTES = 1 << 60  # what control groups of the first kind say instead
_FILES = ("inactive_file", "active_file")  # the kernel takes these back


def available_bytes(root: Path = Path("/")) -> Optional[int]:
    """Of the host, and of this process's control group where that has a limit: the smaller one."""
    known = [one for one in (_of_host(root), _of_group(root)) if one is not None]
    return min(known, default=None)


def _of_host(root: Path) -> Optional[int]:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _of_group(root: Path) -> Optional[int]:
    """As a container sees its own: mounted at the root."""
    group = root / "sys/fs/cgroup"
    for folder, limit, usage, prefix in (
        (group, "memory.max", "memory.current", ""),
        (group / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ):
        with contextlib.suppress(OSError, ValueError):  # "max" is no number: there is no limit
            limit_bytes = int((folder / limit).read_text())
            if limit_bytes >= _NO_LIMIT_BYTES:
                continue
            used_bytes = int((folder / usage).read_text()) - _file_bytes(folder / "memory.stat", prefix)
            return max(0, limit_bytes - max(0, used_bytes))
    return None


def _file_bytes(stat: Path, prefix: str) -> int:
    names = {prefix + name for name in _FILES}
    pairs = (line.split() for line in stat.read_text().splitlines())
    return sum(int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] in names)
