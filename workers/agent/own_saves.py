"""Checkpoints that a script keeps by itself, in folders (or files) that the template names: `out/checkpoint-*`.

They are offered when they are complete, and put back where they were before a further run of the job (`laying.py`).
Such a script knows no request to save: it is asked to leave when it has just saved, if that comes in time.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from workers.agent.errors import Unsafe
from workers.agent.files import listing
from workers.agent.process import Ended
from workers.agent.workspace import Workspace, first_step

LOOK_S = 1.0
CATCH_S = 0.02  # between two looks, once it is to leave
STILL_S = 2.0  # nobody has written, where it has what the one before had
PASSED_S = 0.5  # where there is a newer one
CAUGHT_S = (
    0.0  # the same, once it is to leave: nobody writes there now, and it is looked at again when the process is gone
)
UNKNOWN_STILL_S = 10.0  # where nothing tells what it will have
_SMALLEST_SHARE = 0.9  # of the size that a file had before
_MOST_ENTRIES = 10_000
_DIGITS = 12
_LOOKED_AT = 3  # of the newest ones

Marks = Dict[str, Tuple[int, int, int]]  # change time, size and inode, by the path from the code on
Terminate = Callable[[int], None]


class Pattern(NamedTuple):
    """`folder/before*after`, where `*` stands for the number of steps that are finished."""

    folder: str
    before: str
    after: str

    @classmethod
    def of(cls, template: Mapping[str, Any]) -> "Optional[Pattern]":
        """None for a job that names none, or what this release cannot read."""
        text = (template.get("checkpoints") or {}).get("folders")
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


class Found(NamedTuple):
    """A checkpoint as it lies there."""

    step: int
    name: str
    marks: Marks


class OwnSaves:
    """Of one run. `offer` is called with what is complete and whether it came after the request to leave; `refuse` with
    a step, a name and why it is not kept. Both from a thread of its own, or from who calls `finish`."""

    def __init__(
        self,
        spec: Mapping[str, Any],
        workspace: Workspace,
        pattern: Pattern,
        offer: Callable[[Found, bool], None],
        refuse: Callable[[int, str, Exception], None],
    ) -> None:
        self._pattern = pattern
        self._code = workspace.code
        self._offer = offer
        self._refuse = refuse
        self._begun = first_step(spec)
        self._known: Dict[str, int] = {}  # sizes of the files of the newest complete one
        self._still: Dict[int, Tuple[Marks, float]] = {}  # since when it is as it is
        self._offered: Optional[Found] = None
        self._moments: List[float] = []  # when the last two were found
        self._told: "set[str]" = set()
        self._wake, self._over, self._hurried = threading.Event(), threading.Event(), threading.Event()
        self._asked: Optional[Tuple[Terminate, int]] = None
        self._at_stop: Optional[Found] = None
        self._caught: Optional[Found] = None
        self._was_told_to_leave = False
        self._steps_before = set(self._entries())
        self._before = self._newest()
        if self._before is not None and self._before.step == self._begun:  # put back: what the next ones will have
            self._known = self._sizes(self._before)
        self._thread = threading.Thread(target=self._work, name="own-saves", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask(self, terminate: Terminate, grace_ms: int) -> None:
        """Have it leave once it has saved, or when half of the grace is over. Returns at once."""
        self._asked = (terminate, grace_ms)
        self._wake.set()

    def hasten(self) -> None:
        """There is no time to wait for a save."""
        self._hurried.set()

    def finish(self, ended: Ended) -> None:
        """Offer what is complete, now that nobody writes any more."""
        self._over.set()
        self._hurried.set()
        self._wake.set()
        self._thread.join()
        try:
            self._offer_last(ended)
        except (OSError, Unsafe) as error:
            self._tell(self._begun, str(self._pattern), error)

    # Its thread

    def _work(self) -> None:
        begun_s = time.monotonic()
        try:
            while not self._over.is_set() and self._asked is None:
                self._look()
                self._wake.wait(LOOK_S)
            begun_s = time.monotonic()
            if self._asked is not None:
                self._catch(begun_s + self._asked[1] / 2000)
        except Exception:  # whatever it was: the process is asked to leave
            traceback.print_exc(file=sys.stderr)
        finally:
            if self._asked is not None and not self._over.is_set():
                terminate, grace_ms = self._asked
                self._was_told_to_leave = True
                terminate(max(0, grace_ms - round(1000 * (time.monotonic() - begun_s))))

    def _look(self) -> None:
        try:
            found = self._complete(STILL_S)
        except (OSError, Unsafe) as error:
            if not isinstance(error, FileNotFoundError):  # removed while we looked
                self._tell(self._begun, str(self._pattern), error)
            return
        if found is not None and found != self._offered:
            self._moments = [*self._moments[-1:], time.monotonic()]
            self._take(found, after_stop=False)

    def _catch(self, until_s: float) -> None:
        """Wait for what it saves next, where that is likely to come in time."""
        self._at_stop = self._newest()
        if len(self._moments) > 1 and 2 * self._moments[1] - self._moments[0] > until_s:
            return
        while time.monotonic() < until_s and not self._hurried.wait(CATCH_S):
            try:
                found = self._complete(CAUGHT_S)
            except (OSError, Unsafe):
                continue
            if found is not None and found not in (self._at_stop, self._offered):
                self._caught = found
                return

    def _offer_last(self, ended: Ended) -> None:
        if ended.exit_code == 0 and not self._was_told_to_leave:
            return
        found = self._newest()
        if self._caught is not None and found != self._caught:  # it had begun the next one
            found = self._found(self._caught.step, self._caught.name)
            if found != self._caught:
                return
        if found is None or found in (self._offered, self._before):
            return
        came_after = self._was_told_to_leave and found != self._at_stop
        if found == self._caught or self._is_whole(found, ended, left_by_itself=came_after):
            self._take(found, after_stop=came_after)

    def _is_whole(self, found: Found, ended: Ended, *, left_by_itself: bool) -> bool:
        """Of a process that may have been killed while it wrote."""
        left = left_by_itself and (ended.orderly or (ended.exit_code is not None and ended.exit_code < 128))
        if self._known and not self._is_like_before(found):
            return False
        return left or time.time() - written_s(found) >= (STILL_S if self._known else UNKNOWN_STILL_S)

    def _take(self, found: Found, *, after_stop: bool) -> None:
        self._offered = found
        self._known = self._sizes(found)
        self._offer(found, after_stop)

    # What lies there

    def _complete(self, still_s: float) -> Optional[Found]:
        """The newest that is. One that has a newer one beside it is: a script writes one after the other."""
        now_s = time.monotonic()
        entries = self._entries()
        self._check_goes_on(entries)
        steps = sorted(step for step in entries if step > self._begun)
        self._still = {step: self._still[step] for step in steps if step in self._still}
        for step in reversed(steps[-_LOOKED_AT:]):
            found = self._found(step, entries[step])
            if found is None or found == self._before:
                continue
            marks, since_s = self._still.get(step, ({}, now_s))
            if marks != found.marks:
                since_s = now_s
                self._still[step] = found.marks, now_s
            if step != steps[-1]:
                is_still = time.time() - written_s(found) >= PASSED_S
            else:
                is_still = now_s - since_s >= (still_s if self._is_like_before(found) else UNKNOWN_STILL_S)
            if is_still and not is_written(self._code / self._place(found.name)):
                return found
        return None

    def _is_like_before(self, found: Found) -> bool:
        """It has all the files that the one before had, and none is much smaller."""
        sizes = self._sizes(found)
        return bool(self._known) and all(
            name in sizes and sizes[name] >= size * _SMALLEST_SHARE for name, size in self._known.items()
        )

    def _sizes(self, found: Found) -> Dict[str, int]:
        top = len(self._place(found.name))
        return {path[top:]: size for path, (_, size, _) in found.marks.items()}

    def _newest(self) -> Optional[Found]:
        entries = self._entries()
        return self._found(max(entries), entries[max(entries)]) if entries else None

    def _found(self, step: int, name: str) -> Optional[Found]:
        """None where nothing is in it."""
        place, marks = self._place(name), {}
        is_folder = (self._code / place).is_dir()
        paths = [f"{place}/{path}" for path in listing(self._code / place)] if is_folder else [place]
        for path in paths:
            try:
                facts = (self._code / path).lstat()
            except FileNotFoundError:  # removed while we looked
                continue
            marks[path] = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
        return Found(step, name, marks) if marks else None

    def _entries(self) -> Dict[int, str]:
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

    def _check_goes_on(self, entries: Mapping[int, str]) -> None:
        """One before the step that it was given back is one of a training that has begun again."""
        early = [step for step in entries if step < self._begun and step not in self._steps_before]
        if early:
            words = (
                f"it was given back what it had saved at step {self._begun}, in the same place, and has begun again: a "
                "script that is to be moved looks for the newest when it starts, and goes on from there"
            )
            self._tell(min(early), self._place(entries[min(early)]), Unsafe(words))

    def _place(self, name: str) -> str:
        return f"{self._pattern.folder}/{name}".lstrip("/")

    def _tell(self, step: int, name: str, error: Exception) -> None:
        """Each reason once."""
        if str(error) not in self._told:
            self._told.add(str(error))
            self._refuse(step, name, error)


def written_s(found: Found) -> float:
    """When its newest file was, by the clock of this machine."""
    return max(changed_ns for changed_ns, _, _ in found.marks.values()) / 1e9


def is_written(path: Path) -> bool:
    """Whether any process has a file there open for writing, as far as the system tells."""
    top = os.path.realpath(path)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            descriptors = list((process / "fd").iterdir())
        except OSError:  # it has ended, or is none of ours
            continue
        for one in descriptors:
            try:
                target = os.fspath(one.readlink())
                if f"{target}/".startswith(f"{top}/") and _writes(process, one.name):
                    return True
            except OSError:
                continue
    return False


def _writes(process: Path, descriptor: str) -> bool:
    told = (process / "fdinfo" / descriptor).read_text()
    flags = next((line.split()[1] for line in told.splitlines() if line.startswith("flags:")), "0")
    return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY
