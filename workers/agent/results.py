"""What a run may have left in its folders that is worth keeping: found, and chosen under limits.

Nothing is read here but names and sizes. A folder is chosen as a whole, the small ones first: half of a model is of no
use, and what is left behind for its size is most often data that was fetched.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from workers.agent.files import LONGEST_PATH, MOST_FILES, NOTE
from workers.agent.refusals import shown

MOST_KEPT = 10_000
LARGEST_FILE_BYTES = 5 * 1024**3  # of a file that is stored as one content: buckets take no larger one
MOST_TOLD = 20
LONGEST_WHY = 300

# Whose content comes from elsewhere, or is made again by whoever needs it.
_PASSED_OVER = re.compile(
    r"\.(git|hg|svn|cache|venv|tox|nox|eggs|allpass|ipynb_checkpoints|(mypy|pytest|ruff)_cache)"
    r"|__pycache__|node_modules|venv|(models|datasets|spaces)--.+"
)
_MARKERS = frozenset({"CACHEDIR.TAG", "pyvenv.cfg", "conda-meta"})  # a folder with one is a cache, or an environment
_PASSED_OVER_FILES = re.compile(r".*\.py[co]|\.DS_Store|\.env")


class Mark(NamedTuple):
    """What tells that a file was changed."""

    changed_ns: int
    size_bytes: int
    inode: int


class LeftOut(NamedTuple):
    """A file or folder that is not kept. `path` is `/` separated; `.`: the working folder itself."""

    path: str
    size_bytes: int
    files: int
    why: str

    def as_wire(self) -> Dict[str, Any]:
        return {**self._asdict(), "path": shown(self.path), "why": self.why[:LONGEST_WHY]}

    def told(self) -> str:
        """For a line of the log."""
        of = f" in {self.files:,} files" if self.files > 1 else ""
        return f"{shown(self.path)}, {size(self.size_bytes)}{of} ({self.why})"


@dataclass
class KeptFiles:
    """Files by path, and what nobody could keep."""

    within: str
    files: Dict[str, Mark] = field(default_factory=dict)
    left: List[LeftOut] = field(default_factory=list)
    count: int = 0


def find(top: Path, *, below: str = "", within: Optional[Path] = None, everything: bool = False) -> KeptFiles:
    """The files of `top`, of those at or below the path `below`. `everything`: caches and environments too.

    Links that lead out of `within` (default: `top`) are not followed, nor any to a folder. At most `MOST_FILES` entries
    are looked at.
    """
    root = os.path.realpath(top)
    found = KeptFiles(os.path.realpath(within or top))
    if top.is_symlink() or not top.is_dir():  # removed or replaced by the script
        return found
    start = Path(root, below)
    if not start.exists():
        found.left.append(LeftOut(below, 0, 0, "is named, and there is no such file or folder"))
    elif os.path.realpath(start) != os.fspath(start) or not f"{start}/".startswith(f"{root}/"):
        found.left.append(LeftOut(below, 0, 0, "is a link, or below one: name the folder that it leads to"))
    elif not start.is_dir():
        _look_at(found, root, below, everything=True)
    else:
        _walk(found, root, f"{below}/" if below else "", everything)
    return found


def _walk(found: KeptFiles, root: str, first: str, everything: bool) -> None:
    waiting = [first]
    while waiting:
        prefix = waiting.pop()
        try:
            with os.scandir(os.path.join(root, prefix)) as entries:  # noqa: PTH118 - folders have 100,000 files
                here = list(itertools.islice(entries, MOST_FILES - found.count + 1))
        except FileNotFoundError:  # removed while we looked
            continue
        except OSError as error:
            found.left.append(LeftOut(prefix.rstrip("/") or ".", 0, 0, f"cannot be read: {error.strerror}"))
            continue
        if prefix != first and not everything and any(entry.name in _MARKERS for entry in here):
            continue
        for entry in here:
            found.count += 1
            if found.count > MOST_FILES:
                found.left.append(LeftOut(prefix.rstrip("/") or ".", 0, 0, f"after {MOST_FILES:,} files nobody looked"))
                return
            path = prefix + entry.name
            if not entry.is_dir(follow_symlinks=False):
                _look_at(found, root, path, everything)
            elif everything or not _PASSED_OVER.fullmatch(entry.name):
                waiting.append(path + "/")


def _look_at(found: KeptFiles, root: str, path: str, everything: bool) -> None:
    name = path.rpartition("/")[2]
    if NOTE.fullmatch(name) or (not everything and _PASSED_OVER_FILES.fullmatch(name)):
        return
    full = os.path.join(root, path)  # noqa: PTH118 - as above
    try:
        facts = os.lstat(full)
        if stat.S_ISLNK(facts.st_mode):
            if not f"{os.path.realpath(full)}/".startswith(f"{found.within}/"):
                found.left.append(LeftOut(path, 0, 1, "is a link that leads out of the run's folder"))
                return
            facts = os.stat(full)  # noqa: PTH116 - as above
    except OSError:  # removed meanwhile, or a link to nothing
        return
    if stat.S_ISDIR(facts.st_mode):  # a link to a folder that is looked at itself
        return
    why = _why_not(path, facts)
    if why is None:
        found.files[path] = Mark(facts.st_mtime_ns, facts.st_size, facts.st_ino)
    else:
        found.left.append(LeftOut(path, facts.st_size if stat.S_ISREG(facts.st_mode) else 0, 1, why))


def _why_not(path: str, facts: os.stat_result) -> Optional[str]:
    if not stat.S_ISREG(facts.st_mode):
        return "is not a regular file"
    if facts.st_size > LARGEST_FILE_BYTES:
        return f"is larger than {size(LARGEST_FILE_BYTES)}, the most that one file may have: save it in several"
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return "has a name that is not UTF-8"
    if "\\" in path:
        return "has a backslash in its name"
    if len(path) > LONGEST_PATH:
        return f"has a path of {len(path)} characters: {LONGEST_PATH} at most"
    return None


@dataclass(frozen=True)
class ResultLimits:
    """`most_bytes` of what is new or changed in the working folder, `named_bytes` of what was named, `most_files` of
    both."""

    most_bytes: int
    named_bytes: int
    most_files: int = MOST_KEPT


def choose(
    named: Mapping[str, Mark], others: Mapping[str, Mark], limits: ResultLimits
) -> Tuple[List[str], List[LeftOut]]:
    """The paths that are kept, and what is left behind."""
    kept: List[str] = []
    left: List[LeftOut] = []
    for marks, most_bytes in ((named, limits.named_bytes), (others, limits.most_bytes)):
        room_bytes = most_bytes
        for paths, size_bytes in _in_folders(marks):
            if size_bytes > room_bytes:
                why = f"over the limit of {size(most_bytes)}"
            elif len(kept) + len(paths) > limits.most_files:
                why = f"over the limit of {MOST_KEPT:,} files: pack them"
            else:
                room_bytes -= size_bytes
                kept += paths
                continue
            left += [LeftOut(path, marks[path].size_bytes, 1, why) for path in paths]
    return kept, left


def _in_folders(marks: Mapping[str, Mark]) -> List[Tuple[List[str], int]]:
    """The files of each folder with their size in bytes; a file that is in none is by itself. Small ones first; of
    about the same size, the newest."""
    folders: Dict[str, List[str]] = {}
    for path in marks:
        folders.setdefault(path.rpartition("/")[0] or f"{path}/", []).append(path)
    sized = [(sorted(paths), sum(marks[path].size_bytes for path in paths)) for paths in folders.values()]

    def rank(one: Tuple[List[str], int]) -> Tuple[int, int]:
        paths, size_bytes = one
        return size_bytes.bit_length(), -max(marks[path].changed_ns for path in paths)

    return sorted(sized, key=rank)


def gathered(left: Iterable[LeftOut], kept: Iterable[str]) -> List[LeftOut]:
    """Those of one reason told together, by the highest folder of which nothing is kept; the largest first."""
    touched = {""}
    for path in kept:
        parent = path.rpartition("/")[0]
        while parent not in touched:
            touched.add(parent)
            parent = parent.rpartition("/")[0]
    groups: Dict[Tuple[str, str], List[LeftOut]] = {}
    for one in left:
        top = one.path
        while top.rpartition("/")[0] not in touched:
            top = top.rpartition("/")[0]
        groups.setdefault((top, one.why), []).append(one)
    told = [
        group[0]
        if len(group) == 1
        else LeftOut(top, sum(one.size_bytes for one in group), sum(one.files for one in group), why)
        for (top, why), group in groups.items()
    ]
    return sorted(told, key=lambda one: (-one.size_bytes, -one.files, one.path))


def size(size_bytes: int) -> str:
    """Decimal units, as the command line prints them."""
    value, unit = float(size_bytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{size_bytes} B" if unit == "B" else f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"
