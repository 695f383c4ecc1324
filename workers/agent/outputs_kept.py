"""What a run has left in its folders that is to be kept: the output directory, what is new or changed in the working
folder, and what was named. Nothing is read here but names and sizes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, Iterable, List, Mapping, Optional, Set, Tuple

from workers.agent.files import Fence
from workers.agent.refusals import shown
from workers.agent.results import MOST_KEPT, LeftOut, Mark, ResultLimits, choose, find, gathered
from workers.agent.storing import File
from workers.agent.workspace import Workspace


@dataclass(frozen=True)
class OutputWish:
    """What is to be kept of the working folder, as the server says it."""

    named: Tuple[str, ...]
    takes_changed: bool
    limits: ResultLimits
    every_s: float

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> "Optional[OutputWish]":
        """None for a server that knows of the output folder alone."""
        keep = spec.get("keep")
        if keep is None:
            return None
        outputs = (spec.get("template") or {}).get("outputs")
        named = tuple(path for path in outputs or () if path != ".")
        limits = ResultLimits(int(keep["most_bytes"]), int(keep["named_bytes"]))
        return cls(named, outputs is None or "." in outputs, limits, float(keep["every_s"]))


@dataclass
class OutputSummary:
    """How many files are in the output directory, and why not all of them are kept."""

    files: int = 0
    whys: List[str] = field(default_factory=list)


class OutputCollector:
    """Of one run. `remember` what its folder holds before any of its code runs."""

    def __init__(self, workspace: Workspace, wish: Optional[OutputWish]) -> None:
        self._workspace = workspace
        self._wish = wish
        self._output_fence = Fence(workspace.home, workspace.uid)
        self._code_fence = Fence(workspace.code, workspace.uid)
        self._before: Dict[str, Mark] = {}

    def remember(self) -> None:
        """The code as it was unpacked is no result."""
        if self._wish is not None:
            self._before = find(self._workspace.code, everything=True).files

    def look(self, output: OutputSummary) -> Tuple[Dict[str, File], List[LeftOut]]:
        """What is there to be kept, by the path that it will have, and what is not. `output` gets what of the output
        directory is not: it is told by itself."""
        folder = self._workspace.output
        found = find(folder, within=self._workspace.home, everything=True)
        names = sorted(found.files)
        output.files = len(names)
        output.whys += [f"{shown(one.path)} {one.why}" for one in found.left]
        if len(names) > MOST_KEPT:
            why = f"it has {len(names):,} files, and the first {MOST_KEPT:,} are stored: pack the others"
            output.whys.insert(0, why)
        files = {path: File(folder, self._output_fence, found.files[path]) for path in names[:MOST_KEPT]}
        if self._wish is None:
            return files, []
        kept, left = self._of_the_code(self._wish, MOST_KEPT - len(files))
        taken = {*files, *_folders_of(files)}
        for path, mark in kept.items():
            if path in taken or not files.keys().isdisjoint(_folders_of([path])):
                left.append(LeftOut(path, mark.size_bytes, 1, "the output directory has a file of that name"))
            else:
                files[path] = File(self._workspace.code, self._code_fence, mark)
        return files, left

    def _of_the_code(self, wish: OutputWish, most_files: int) -> Tuple[Dict[str, Mark], List[LeftOut]]:
        named: Dict[str, Mark] = {}
        left: List[LeftOut] = []
        for path in wish.named:
            found = find(self._workspace.code, below=path, everything=True)
            named.update(found.files)
            left += found.left
        changed = find(self._workspace.code)
        left += changed.left
        others = {
            path: mark for path, mark in changed.files.items() if path not in named and self._before.get(path) != mark
        }
        limits = replace(wish.limits, most_files=most_files)
        kept, behind = choose(named, others if wish.takes_changed else {}, limits)
        left += behind
        if not wish.takes_changed:
            left += [LeftOut(path, mark.size_bytes, 1, "is not named (--keep)") for path, mark in others.items()]
        marks = {**others, **named}
        return {path: marks[path] for path in kept}, gathered(left, kept)


def _folders_of(paths: Iterable[str]) -> Set[str]:
    """All that these are in."""
    folders: Set[str] = set()
    for path in paths:
        parent = path.rpartition("/")[0]
        while parent and parent not in folders:
            folders.add(parent)
            parent = parent.rpartition("/")[0]
    return folders
