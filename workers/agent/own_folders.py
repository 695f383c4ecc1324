"""Where a script keeps checkpoints of its own, and what lies there: names, sizes, and whether anybody still writes."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Optional, Tuple

from workers.agent.errors import Unsafe
from workers.agent.files import listing

_MOST_ENTRIES = 10_000
_DIGITS = 12

Marks = Dict[str, Tuple[int, int, int]]  # change time, size and inode, by the path from the code on


class Pattern(NamedTuple):
    """`folder/before*after`, where `*` stands for the number of steps that are finished."""

    folder: str
    before: str
    after: str

    @classmethod
    def of(cls, template: Mapping[str, Any]) -> "Optional[Pattern]":
        """None for a job that names none, or what this release cannot read."""
        told = template.get("checkpoints")
        text = told.get("folders") if isinstance(told, dict) else None
        if not isinstance(text, str):
            return None
        folder, _, name = text.rpartition("/")
        before, star, after = name.partition("*")
        is_safe = not text.startswith("/") and not {"..", "."} & set(text.split("/")) and "\0" not in text
        return cls(folder, before, after) if star and "*" not in folder + after and is_safe else None

    def step_of(self, name: str) -> Optional[int]:
        """Of a name in the folder; None for any other name."""
        found = re.fullmatch(rf"{re.escape(self.before)}([0-9]{{1,{_DIGITS}}}){re.escape(self.after)}", name)
        return None if found is None else int(found.group(1))

    def step_of_path(self, path: str) -> Optional[int]:
        """Of a path from the code on: that of a file in such a folder, or of such a file."""
        prefix = f"{self.folder}/" if self.folder else ""
        return self.step_of(path[len(prefix) :].split("/", maxsplit=1)[0]) if path.startswith(prefix) else None

    def __str__(self) -> str:
        return f"{self.folder}/{self.before}*{self.after}".lstrip("/")


class OwnCheckpoint(NamedTuple):
    """A checkpoint as it lies there."""

    step: int
    name: str
    marks: Marks


class OwnFolders:
    """Those of a pattern in the folder of the code. All of it raises OSError, and Unsafe for what cannot be stored."""

    def __init__(self, code: Path, pattern: Pattern, uid: Optional[int]) -> None:
        self._code = code
        self._uid = uid
        self._pattern = pattern

    def newest(self) -> Optional[OwnCheckpoint]:
        entries = self.entries()
        return self.found(max(entries), entries[max(entries)]) if entries else None

    def entries(self) -> Dict[int, str]:
        """Names by step. Nothing where the folder is none of the code's own, or a link."""
        folder = Path(os.path.realpath(self._code), self._pattern.folder)
        if os.path.realpath(folder) != os.fspath(folder) or not folder.is_dir():
            return {}
        found: Dict[int, str] = {}
        with os.scandir(folder) as entries:
            for count, entry in enumerate(entries):
                if count >= _MOST_ENTRIES:
                    raise Unsafe(f"its folder has more than {_MOST_ENTRIES:,} files and folders")
                step = self._pattern.step_of(entry.name)
                if step is not None and not entry.is_symlink():
                    found[step] = max(entry.name, found.get(step, ""))
        return found

    def found(self, step: int, name: str) -> Optional[OwnCheckpoint]:
        """None where nothing is in it."""
        place, marks = self.place(name), {}
        is_folder = (self._code / place).is_dir()
        paths = [f"{place}/{path}" for path in listing(self._code / place)] if is_folder else [place]
        for path in paths:
            try:
                facts = (self._code / path).lstat()
            except FileNotFoundError:  # removed while we looked
                continue
            marks[path] = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
        return OwnCheckpoint(step, name, marks) if marks else None

    def place(self, name: str) -> str:
        """Its path from the code on."""
        return f"{self._pattern.folder}/{name}".lstrip("/")

    def sizes(self, found: OwnCheckpoint) -> Dict[str, int]:
        """Of its files, by their paths in it."""
        top = len(self.place(found.name))
        return {path[top:]: size for path, (_, size, _) in found.marks.items()}

    def is_written(self, found: OwnCheckpoint) -> bool:
        return is_written(self._code / self.place(found.name), self._uid)


def written_s(found: OwnCheckpoint) -> float:
    """When its newest file was, by the clock of this machine."""
    return max(changed_ns for changed_ns, _, _ in found.marks.values()) / 1e9


def is_written(path: Path, uid: Optional[int] = None) -> bool:
    """Whether any process (of this user) has a file there open for writing, as far as the system tells. Whoever asks
    wants to know at once: a training goes on meanwhile."""
    top = f"{os.path.realpath(path)}/"
    return any(_writes(process, top) for process in _processes(uid))


def _processes(uid: Optional[int]) -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir("/proc") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # it has ended
                if entry.name.isdigit() and (uid is None or entry.stat().st_uid == uid):
                    yield entry.path


def _writes(process: str, top: str) -> bool:
    try:
        descriptors = os.listdir(f"{process}/fd")  # noqa: PTH208 - names are enough
    except OSError:  # it has ended, or is none of ours
        return False
    for one in descriptors:
        with contextlib.suppress(OSError):
            if f"{os.readlink(f'{process}/fd/{one}')}/".startswith(top):  # noqa: PTH115 - as above
                told = Path(process, "fdinfo", one).read_text()
                flags = next((line.split()[1] for line in told.splitlines() if line.startswith("flags:")), "0")
                if int(flags, 8) & os.O_ACCMODE != os.O_RDONLY:
                    return True
    return False
