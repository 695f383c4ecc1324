"""What a host is, and why nothing can run there: looked at before it joins, and again while it is a member.

GPUs on which processes of others compute are told as busy: on a workstation that people share they are theirs.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from workers.agent.gpus import ask
from workers.host.place import HostError, Member

OLDEST_DRIVER = (525, 60)  # that knows CUDA 12
GPUS, CPUS, CPUS_FOR_ALL = "gpus", "cpus", "cpus for all"
LIMIT_S = 20.0
_LEAST_FREE_BYTES = 5 * 1024**3
_COLUMNS = ("index", "uuid", "memory.total", "driver_version", "name")  # the name last: it may hold anything
_FORMAT = "--format=csv,noheader,nounits"
_MIB = 1024**2
_PRODUCT_UUID = Path("/sys/class/dmi/id/product_uuid")
_MOST_GPUS = 64
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{8,64}")
_VERSION = re.compile(r"(\d{1,5})(?:\.(\d{1,5}))?")
IsOurs = Callable[[int], bool]


@dataclass(frozen=True)
class HostCard:
    """A GPU as nvidia-smi tells of it."""

    index: int
    uuid: str
    memory_bytes: int
    driver: str
    name: str


class GpuLook(NamedTuple):
    """`why`: why there are none to be had; empty where there are."""

    gpus: tuple[HostCard, ...]
    why: str = ""


def look_at_gpus(program: str) -> GpuLook:
    """All that nvidia-smi tells of; lines that are none are left out."""
    found = program or shutil.which("nvidia-smi")
    if not found:
        return GpuLook((), "no GPU was found here (there is no nvidia-smi)")
    answer = ask([found, "--query-gpu=" + ",".join(_COLUMNS), _FORMAT], time.monotonic() + LIMIT_S)
    gpus = tuple(gpu for gpu in map(_read_gpu, answer.text.splitlines()) if gpu is not None)[:_MOST_GPUS]
    if gpus:
        return GpuLook(gpus, _too_old(gpus[0].driver))
    said = " ".join(answer.text.split())[:200]
    if answer.timed_out:
        return GpuLook((), f"no GPU can be used here: nvidia-smi has not answered within {LIMIT_S:g} s")
    return GpuLook((), f"no GPU can be used here: nvidia-smi says {said or 'nothing'!r}")


def _read_gpu(line: str) -> HostCard | None:
    cells = [cell.strip() for cell in line.split(",", len(_COLUMNS) - 1)]
    if len(cells) != len(_COLUMNS) or not _is_number(cells[0]) or not _is_number(cells[2]) or not cells[4]:
        return None
    name = "".join(letter if letter.isprintable() else "?" for letter in cells[4])[:100]
    return HostCard(int(cells[0]), cells[1], max(1, int(cells[2])) * _MIB, cells[3][:40], name)


def _too_old(driver: str) -> str:
    found = _VERSION.match(driver)
    if found is None or (int(found.group(1)), int(found.group(2) or 0)) >= OLDEST_DRIVER:
        return ""
    oldest = ".".join(map(str, OLDEST_DRIVER))
    return f"the NVIDIA driver {driver} is too old for the torch of today: update it to {oldest} or newer"


def busy_gpus(program: str, gpus: Sequence[HostCard], is_ours: IsOurs) -> Collection[int]:
    """Indices of those on which processes compute that are not ours. A driver that does not tell makes none busy."""
    found = program or shutil.which("nvidia-smi")
    if not found or not gpus:
        return frozenset()
    answer = ask([found, "--query-compute-apps=gpu_uuid,pid", _FORMAT], time.monotonic() + LIMIT_S)
    index_of = {gpu.uuid: gpu.index for gpu in gpus if _UUID.fullmatch(gpu.uuid)}
    busy = set()
    for line in answer.text.splitlines() if answer.code == 0 else ():
        uuid, _, pid = (cell.strip() for cell in line.partition(","))
        if uuid in index_of and _is_number(pid) and not is_ours(int(pid)):
            busy.add(index_of[uuid])
    return busy


def facts_of(
    root: Path, gives: str, nvidia_smi: str, keep_free_bytes: int, is_ours: IsOurs = lambda _: False
) -> dict[str, Any]:
    """As the service is told, `unusable` included."""
    look = look_at_gpus(nvidia_smi) if gives == GPUS else GpuLook(())
    busy = busy_gpus(nvidia_smi, look.gpus, is_ours)
    free = free_bytes(root)
    return {
        "cpus": os.cpu_count() or 1,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "disk_free_bytes": free,
        "gpus": [
            {"index": gpu.index, "name": gpu.name, "memory_bytes": gpu.memory_bytes, "busy": gpu.index in busy}
            for gpu in look.gpus
        ],
        "driver": look.gpus[0].driver if look.gpus else "",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}"[:200],
        "for_all": gives == CPUS_FOR_ALL,
        "unusable": (look.why or disk_trouble(root, free, keep_free_bytes))[:300],
    }


def hardware(source: Path = _PRODUCT_UUID) -> str:
    """Names this machine, physical or virtual, whatever disk it has; empty where it cannot be told, or not to us."""
    try:
        return source.read_text().strip().lower()
    except (OSError, UnicodeDecodeError):
        return ""


def free_bytes(root: Path) -> int:
    try:
        disk = os.statvfs(root)
    except OSError:
        return 0
    return disk.f_bavail * disk.f_frsize


def disk_trouble(root: Path, free: int, keep_free_bytes: int) -> str:
    """Why the disk is too full for anything new; empty where it is not."""
    if free >= keep_free_bytes:
        return ""
    return (
        f"the disk of {root} has {free / 1e9:.1f} GB free, and {keep_free_bytes / 1e9:.1f} GB are to stay free: make "
        "room, name a folder on another disk with --root, or a smaller --keep-free-gb"
    )


def usual_keep_free_bytes(root: Path) -> int:
    """A twentieth of the disk, and 5 GiB at least, are left to whoever else uses the host."""
    disk = os.statvfs(root)
    return max(_LEAST_FREE_BYTES, disk.f_blocks * disk.f_frsize // 20)


def check_usable(facts: dict[str, Any], gives: str) -> None:
    """Raises HostError, in one sentence."""
    if facts["unusable"]:
        hint = ", or join with --cpu to give its processors" if gives == GPUS and not facts["gpus"] else ""
        raise HostError(facts["unusable"] + hint)


def describe(member: Member, facts: dict[str, Any]) -> str:
    """`2 x NVIDIA A100`, or its processors."""
    if member.gives != GPUS:
        return f"{facts['cpus']} CPUs"
    names: dict[str, int] = {}
    for gpu in facts["gpus"]:
        names[gpu["name"]] = names.get(gpu["name"], 0) + 1
    return ", ".join(f"{number} x {name}" for name, number in sorted(names.items()))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 12
