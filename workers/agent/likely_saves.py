"""Folders that look like checkpoints of a script that has told of none: its owner hears how the job could be moved.

Nobody acts on it. A script that saves does not have to go on from there when it starts, and whether it does only its
owner knows.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
from pathlib import Path
from typing import Callable, Iterator, Optional

from workers.agent.refusals import shown

_EVERY_S = 15.0
_MOST_ENTRIES = 2_000
_NAME = re.compile(r"(?i)((?:checkpoint|ckpt|global_?step|step|epoch|iter(?:ation)?)[-_]?)[0-9]{1,12}((?:\.\w{1,8})?)")


class LikelySaves:
    """Of one run. `is_known`: whether the code has said that it saves, or named a checkpoint."""

    def __init__(self, code: Path, is_known: Callable[[], bool], say: Callable[[str], None]) -> None:
        self._code = code
        self._is_known = is_known
        self._say = say
        self._before = set(_patterns(code))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="likely-saves", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._over.wait(_EVERY_S)
            found = None if self._is_known() else self._new()
            if found is not None:
                self._say(
                    f"{shown(found)} looks like where this script keeps checkpoints of its own. If it goes on from the "
                    f"newest when it starts, run it with --checkpoints {shown(found)!r}: then this job can be moved"
                )
                return

    def _new(self) -> Optional[str]:
        return next((pattern for pattern in _patterns(self._code) if pattern not in self._before), None)


def _patterns(code: Path) -> "Iterator[str]":
    """Of what is directly in the folder of the code, or in a folder of it."""
    for prefix in ("", *(f"{name}/" for name in _names(code, "") if not name.startswith("."))):
        for name in _names(code, prefix):
            found = _NAME.fullmatch(name)
            if found is not None:
                yield f"{prefix}{found.group(1)}*{found.group(2)}"


def _names(code: Path, prefix: str) -> "Iterator[str]":
    try:
        with os.scandir(code / prefix) as entries:
            for entry in itertools.islice(entries, _MOST_ENTRIES):
                if not entry.is_symlink():
                    yield entry.name
    except OSError:  # a file, or removed while we looked
        return
