"""Results of symbolic runs on disk, so that the same question is answered at once."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, Mapping, Optional

MOST = 512  # of some 400 bytes each


def usual_folder() -> Path:
    """`allpass/symbolic` in the user's folder for what can be computed again."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "allpass" / "symbolic"


class Kept:
    """One file per result, named by the hash of its case and versions. The least used of more than `most` go.

    A disk that is full or read-only costs only the memory of results.
    """

    def __init__(self, folder: Path, most: int = MOST) -> None:
        self._folder, self._most = folder, most

    def find(self, key: str) -> "Optional[dict[str, Any]]":
        path = self._path(key)
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            path.touch()  # it was of use
        except (OSError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    def keep(self, key: str, result: "Mapping[str, Any]") -> None:
        """Whole or not at all, also with several processes at once."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=str(self._folder), suffix=".new")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    json.dump(result, file)
                Path(name).replace(self._path(key))
            except OSError:
                Path(name).unlink()
                raise
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        files = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        for path in files[: max(0, len(files) - self._most)]:
            path.unlink()

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"
