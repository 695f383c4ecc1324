"""Checkpoint folders on this machine's disk: complete or absent, the newest two kept."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Callable, Optional

KEEP = 2
_PARTIAL = ".partial-"
_ON_WINDOWS = os.name == "nt"


class CheckpointFolder:
    """The directory that holds `step-XXXXXXXX` folders. `keep` names one that is never pruned (the resumed one)."""

    def __init__(self, path: Path, keep: Optional[str] = None) -> None:
        self.path = path
        self._keep = Path(keep).absolute() if keep else None

    def path_of(self, step: int) -> Path:
        return self.path / f"step-{step:08d}"

    def write(self, step: int, write: Callable[[Path], None]) -> Path:
        """Let `write` fill a hidden folder, sync it, and rename it into place.

        A folder of the same step (left by an earlier experiment) gives way. When `write` raises, nothing appears.
        """
        partial = self.begin(step)
        try:
            write(partial)
            self.settle(step)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return self.path_of(step)

    def partial_of(self, step: int) -> Path:
        """What the folder of a step is called until it is complete."""
        return self.path / f"{_PARTIAL}{self.path_of(step).name}"

    def begin(self, step: int) -> Path:
        """An empty hidden folder, to be filled."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._remove_partial()
        partial = self.partial_of(step)
        partial.mkdir()
        return partial

    def settle(self, step: int, *, may_be_empty: bool = False) -> None:
        """The folder is filled: sync it, and rename it into place."""
        partial, target = self.partial_of(step), self.path_of(step)
        if not may_be_empty:
            _check_not_empty(partial, step)
        sync_tree(partial)
        if target.exists():
            old = self.path / f"{_PARTIAL}old-{target.name}"
            target.rename(old)
            shutil.rmtree(old)
        partial.rename(target)
        _sync(self.path)

    def prune(self, keep: int = KEEP) -> bool:
        """Delete all but the newest, by the time they were made; whether there was anything to delete."""
        found = [path for path in self.path.glob("step-*") if path.is_dir() and path != self._keep]
        found.sort(key=lambda path: (path.stat().st_mtime_ns, path.name))
        for path in found[:-keep]:
            shutil.rmtree(path, ignore_errors=True)
        return len(found) > keep

    def _remove_partial(self) -> None:
        """What a killed process left half-written. One process writes here, so none of it is in use."""
        for path in self.path.glob(f"{_PARTIAL}*"):
            shutil.rmtree(path)


def link_tree(source: Path, target: Path) -> None:
    """Make `target` hold the files of `source`: as hard links (no bytes are copied), or copies across file systems."""
    for folder, _, files in os.walk(source):
        into = target / Path(folder).relative_to(source)
        into.mkdir(parents=True, exist_ok=True)
        for name in files:
            original = Path(folder) / name
            try:
                os.link(original, into / name)
            except OSError:
                shutil.copy2(original, into / name)


def sync_tree(folder: Path) -> None:
    """Make files and names below `folder` survive a power cut."""
    for parent, _, files in os.walk(folder):
        for name in files:
            _sync(Path(parent) / name)
        _sync(Path(parent))


def _check_not_empty(folder: Path, step: int) -> None:
    if not any(folder.iterdir()):
        raise ValueError(f"the checkpoint of step {step} is empty: write(folder) must create files in it")


def _sync(path: Path) -> None:
    if _ON_WINDOWS and path.is_dir():
        return  # there, a folder cannot be opened
    descriptor = os.open(path, os.O_RDWR if _ON_WINDOWS else os.O_RDONLY)  # nor a file synced that is only read
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
