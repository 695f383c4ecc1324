"""What machines of a host leave for those that come after them: environments, and files of models.

An environment is shared by jobs of one project alone, a model's file is known by its hash and its project's: jobs of
different projects have no folder in common.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

MODELS_BYTES = 64 * 1024**3
_PROJECT = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Kept:
    """Below `root`. Everything in it may be removed at any time: it is fetched or built again."""

    def __init__(self, root: Path, models_bytes: int = MODELS_BYTES) -> None:
        self._root = root
        self._models_bytes = models_bytes

    def environments(self, project_id: str, otherwise: Path) -> Path:
        """The project's folder of environments; `otherwise` for a project that has no name that could be one."""
        if not _PROJECT.fullmatch(project_id):
            return otherwise
        folder = self._root / "environments" / project_id
        folder.mkdir(parents=True, exist_ok=True)
        for one in (folder.parent, folder):
            one.chmod(0o711)
        return folder

    def lend_models(self, machine_root: Path) -> None:
        """Second names of all files, which cost nothing. The agent shows each project its own."""
        _link_all(self._root / "models", machine_root / "models")

    def gather_models(self, machine_root: Path) -> None:
        """Keep what the machine has fetched, within the limit: the least recently used go."""
        _link_all(machine_root / "models", self._root / "models")
        self.shrink(self._models_bytes)

    def shrink(self, most_bytes: int) -> None:
        """Whole models go, those that were not used for longest first."""
        models = self._models()
        left = sum(size for _, size, _ in models)
        for _, size, folder in sorted(models):
            if left <= most_bytes:
                return
            shutil.rmtree(folder, ignore_errors=True)
            left -= size

    def clear(self) -> None:
        for name in ("models", "environments"):
            shutil.rmtree(self._root / name, ignore_errors=True)

    def _models(self) -> list[tuple[float, int, Path]]:
        found = []
        for folder in (self._root / "models").glob("*/*"):
            try:
                size = sum(blob.stat().st_size for blob in folder.iterdir())
                found.append((folder.stat().st_mtime, size, folder))
            except OSError:
                continue
        return found


def _link_all(source: Path, target: Path) -> None:
    """Files two folders below `source`, by project and model. One that cannot be linked is left out."""
    for folder in sorted(source.glob("*/*")) if source.is_dir() else ():
        if folder.is_symlink() or not folder.is_dir():
            continue
        into = target / folder.parent.name / folder.name
        try:
            into.mkdir(parents=True, exist_ok=True)
            target.chmod(0o700)
            for blob in folder.iterdir():
                if not blob.is_symlink() and not (into / blob.name).exists():
                    os.link(blob, into / blob.name)
            times = folder.stat()
            os.utime(into, ns=(times.st_atime_ns, times.st_mtime_ns))
        except OSError:
            continue
