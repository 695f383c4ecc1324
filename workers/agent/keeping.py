"""What a run leaves behind, on its way to the store: a little while it runs, the rest when its processes are gone.

Passes while it runs store what a machine that vanishes would take along, and shorten the end, which is paid for. Only
the last pass tells the job's owner what was left behind. Whatever fails here changes nothing of how the run ended.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from workers.agent.api import Writer
from workers.agent.errors import Aborted, AgentError, Fenced, Forgotten, Unsafe
from workers.agent.files import Fence, Piece
from workers.agent.machine import Machine
from workers.agent.patience import patiently
from workers.agent.refusals import Refusals, shown
from workers.agent.results import MOST_KEPT, MOST_TOLD, Left, Limits, Mark, choose, find, gathered
from workers.agent.storing import File, Storing, Until
from workers.agent.transfers import Transfers
from workers.agent.workspace import Workspace

GROWING_BYTES = 16 * 1024 * 1024  # a larger file is kept early only when it stays as it is
EARLY_BYTES = 1024**3  # the largest file that is kept while the run goes on
_SHARE = 4  # passes take a fifth of the time at most
LONGEST_S = 1800.0  # for what nobody has named
LAST_S = 10.0
SECONDS_S = 5.0  # of a machine that is taken away


@dataclass(frozen=True)
class Wish:
    """What is to be kept of the working folder, as the server says it."""

    named: Tuple[str, ...]
    takes_changed: bool
    limits: Limits
    every_s: float

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> "Optional[Wish]":
        """None for a server that knows of the output folder alone."""
        keep = spec.get("keep")
        if keep is None:
            return None
        outputs = (spec.get("template") or {}).get("outputs")
        named = tuple(path for path in outputs or () if path != ".")
        limits = Limits(int(keep["most_bytes"]), int(keep["named_bytes"]))
        return cls(named, outputs is None or "." in outputs, limits, float(keep["every_s"]))


class Keeper:
    """Of one run. `remember` what its folder holds before any of its code runs, `start`, and `finish` when its
    processes are gone. From any thread: `hurry` when it is asked to leave, `hasten` when its machine is taken away,
    `abandon` when nothing is wanted any more."""

    def __init__(
        self,
        spec: Mapping[str, Any],
        writer: Writer,
        machine: Machine,
        workspace: Workspace,
        say: Callable[[str], None],
        forgotten: threading.Event,
        transfers: Transfers,
    ) -> None:
        self._wish = Wish.of(spec)
        self._writer = writer
        self._machine = machine
        self._workspace = workspace
        self._say = say
        self._transfers = transfers
        self._output_fence = Fence(workspace.home, workspace.uid)
        self._code_fence = Fence(workspace.code, workspace.uid)
        self._before: Dict[str, Mark] = {}
        self._stored: Dict[str, Piece] = {}  # as the server knows it
        self._seen: Dict[str, File] = {}  # by the pass before
        self._storing = Storing(machine, writer)
        self._early = Until(forgotten)
        self._late = Until(forgotten)
        self._last = Until(forgotten, LAST_S)  # to tell what was kept, when the time for more is over
        self._hurried = threading.Event()
        self._hasty = self._finishing = False
        self._thread: Optional[threading.Thread] = None

    def remember(self) -> None:
        """The code as it was unpacked is no result."""
        if self._wish is not None:
            self._before = find(self._workspace.code, everything=True).files

    def start(self) -> None:
        if self._wish is not None:
            self._thread = threading.Thread(target=self._work, name="results", daemon=True)
            self._thread.start()

    def hurry(self) -> None:
        """What is under way gives way to the final checkpoint."""
        self._hurried.set()
        self._early.set()

    def hasten(self) -> None:
        """There are seconds, counted from when its processes are gone."""
        self._hasty = True
        if self._finishing:
            self._late.hasten(SECONDS_S)

    def abandon(self) -> None:
        self.hurry()
        self._late.set()
        self._last.set()

    def finish(self, step: int, *, succeeded: bool) -> None:
        """Keep what there is to keep now. Returns when it is safe, or was given up, and that was told."""
        self.hurry()
        if self._thread is not None:
            self._thread.join()
        if self._wish is None and not succeeded:
            return
        self._late.progress()
        self._finishing = True
        if self._hasty:
            self.hasten()
        refusals = Refusals(self._machine.api, self._writer, self._say, self._late)
        try:
            self._keep(refusals, step)
        except (Aborted, Fenced, Forgotten):
            self._say("nothing more of what the run left in its folders is kept: it was given up")
        except (AgentError, OSError) as error:
            refusals.tell("output", "the output directory", step, error)
        except Exception as error:  # whatever it was: the end of the run stays what it is
            traceback.print_exc(file=sys.stderr)
            refusals.tell("output", "the output directory", step, Unsafe(f"the agent failed: {type(error).__name__}"))

    # The passes

    def _work(self) -> None:
        every_s = 0.0 if self._wish is None else self._wish.every_s
        pause_s = every_s
        while not self._hurried.wait(pause_s):
            begun_s = time.monotonic()
            self._early.progress()
            with contextlib.suppress(AgentError, OSError):  # a later pass, or the last one, tries again
                self._keep_early()
            pause_s = max(every_s, _SHARE * (time.monotonic() - begun_s))

    def _keep_early(self) -> None:
        """What is small, or has stayed as it is since the last pass."""
        files, left = self._look(_Told())
        seen, self._seen = self._seen, files
        settled = {
            path: file
            for path, file in files.items()
            if file.mark.size_bytes <= GROWING_BYTES or (file.mark.size_bytes <= EARLY_BYTES and seen.get(path) == file)
        }
        ready, _ = self._storing.read(settled, self._early)
        failed = self._storing.store(ready, self._stored.values(), self._early)
        kept = {path: piece for path, piece in self._stored.items() if path in files}
        kept.update({path: one.piece for path, one in ready.items() if path not in failed})
        if kept != self._stored:
            patiently(lambda: self._report(kept, left, final=False), self._early)

    def _keep(self, refusals: Refusals, step: int) -> None:
        """The last pass."""
        output = _Told()
        files, left = self._look(output)
        if self._wish is not None and not self._wish.named and not output.files:
            self._late.hasten(LONGEST_S)
        ready, lost = self._storing.read(files, self._late)
        sending = self._transfers.begin("send", sum(one.piece.size_bytes for one in ready.values()))
        try:
            lost.update(self._storing.store(ready, self._stored.values(), self._late, sending.advance))
        finally:
            self._transfers.over(sending)
        kept = {path: one.piece for path, one in ready.items() if path not in lost}
        output.whys += [why for path, why in lost.items() if files[path].folder == self._workspace.output]
        if output.whys:
            more = f", and {len(output.whys) - 1} more like it" if len(output.whys) > 1 else ""
            refusals.tell("output", "all of the output directory", step, Unsafe(output.whys[0] + more))
        left = gathered([*left, *(Left(path, files[path].mark.size_bytes, 1, why) for path, why in lost.items())], kept)
        if kept or self._wish is not None:
            until = self._last if self._late.is_set() else self._late
            until.progress()
            patiently(lambda: self._report(kept, left, final=True), until)
        if kept:
            self._say("1 output file is stored" if len(kept) == 1 else f"{len(kept)} output files are stored")
        for one in left[:MOST_TOLD]:
            self._say(f"left behind: {one.told()}")

    def _look(self, output: "_Told") -> Tuple[Dict[str, File], List[Left]]:
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
                left.append(Left(path, mark.size_bytes, 1, "the output directory has a file of that name"))
            else:
                files[path] = File(self._workspace.code, self._code_fence, mark)
        return files, left

    def _of_the_code(self, wish: Wish, most_files: int) -> Tuple[Dict[str, Mark], List[Left]]:
        named: Dict[str, Mark] = {}
        left: List[Left] = []
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
            left += [Left(path, mark.size_bytes, 1, "is not named (--keep)") for path, mark in others.items()]
        marks = {**others, **named}
        return {path: marks[path] for path in kept}, gathered(left, kept)

    def _report(self, kept: Mapping[str, Piece], left: Sequence[Left], *, final: bool) -> None:
        told: Dict[str, Any] = {}
        if self._wish is not None:
            told = {
                "joins": True,
                "final": final,
                "left": [one.as_wire() for one in left[:MOST_TOLD]],
                "left_files": sum(one.files for one in left),
                "left_bytes": sum(one.size_bytes for one in left),
            }
        self._machine.api.artifacts(self._writer, [piece.as_wire() for piece in kept.values()], told)
        self._stored = dict(kept)


@dataclass
class _Told:
    """How many files are in the output directory, and why not all of them are kept."""

    files: int = 0
    whys: List[str] = field(default_factory=list)


def _folders_of(paths: Iterable[str]) -> Set[str]:
    """All that these are in."""
    folders: Set[str] = set()
    for path in paths:
        parent = path.rpartition("/")[0]
        while parent and parent not in folders:
            folders.add(parent)
            parent = parent.rpartition("/")[0]
    return folders
