"""What machines left on the disk of a company that could not clear up after them, as when its disk was full."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from workers.machines.launch import MachineFiles

_OURS = frozenset({"root", "order", "script", "machine.log", "ended.json", "ended.draft"})
_log = logging.getLogger(__name__)


def sweep_leftovers(
    data_dir: Path, *, live: Collection[str], ended: Collection[str], files_of: Callable[[str], MachineFiles]
) -> int:
    """Remove the folders of machines that nobody knows, and the disks and tokens of those that have ended; how many
    there were. What is not the folder of a machine is left alone, and so is whatever a link leads to."""
    machines = data_dir.resolve() / "machines"
    if machines.is_symlink() or not machines.is_dir():
        return 0
    swept = 0
    for folder in sorted(machines.iterdir()):
        if folder.name in live or folder.is_symlink() or not folder.is_dir():
            continue
        try:
            if folder.name in ended:
                swept += files_of(folder.name).wipe()
            elif {entry.name for entry in folder.iterdir()} <= _OURS:
                shutil.rmtree(folder)
                swept += 1
        except OSError as error:
            _log.warning("what %s left could not be removed: %s", folder.name, error)
    if swept:
        _log.info("removed what %d machines had left", swept)
    return swept
