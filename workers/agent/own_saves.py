"""Checkpoints that a script keeps by itself, in folders (or files) that the template names: `out/checkpoint-*`.

They are offered when they are complete, and put back where they were before a further run of the job (`laying.py`).
Such a script knows no request to save: it is asked to leave when it has just saved, if that comes in time.
"""

from __future__ import annotations

import math
import sys
import threading
import time
import traceback
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from workers.agent.errors import Unsafe
from workers.agent.own_folders import Marks, OwnCheckpoint, OwnFolders, Pattern, written_s
from workers.agent.process import Ended
from workers.agent.workspace import Workspace, first_step

LOOK_S = 1.0
CATCH_S = 0.02  # between two looks, once it is to leave
PATIENT_S = 0.1  # the same, where nobody says when it will
STILL_S = 2.0  # nobody has written, where it has what the one before had
PASSED_S = 0.5  # where there is a newer one
CAUGHT_S = (
    0.0  # the same, once it is to leave: nobody writes there now, and it is looked at again when the process is gone
)
UNKNOWN_STILL_S = 10.0  # where nothing tells what it will have
_SMALLEST_SHARE = 0.9  # of the size that a file had before
_LOOKED_AT = 3  # of the newest ones

Terminate = Callable[[int], None]


class OwnSaves:
    """Of one run. `offer` is called with what is complete and whether it came after the request to leave; `refuse` with
    a step, a name and why it is not kept. Both from a thread of its own, or from who calls `finish`."""

    def __init__(
        self,
        spec: Mapping[str, Any],
        workspace: Workspace,
        pattern: Pattern,
        offer: Callable[[OwnCheckpoint, bool], None],
        refuse: Callable[[int, str, Exception], None],
    ) -> None:
        self._pattern = pattern
        self._folders = OwnFolders(workspace.code, pattern, workspace.uid)
        self._offer = offer
        self._refuse = refuse
        self._begun = first_step(spec)
        self._known: Dict[str, int] = {}  # sizes of the files of the newest complete one
        self._still: Dict[int, Tuple[Marks, float]] = {}  # since when it is as it is
        self._offered: Optional[OwnCheckpoint] = None
        self._moments: List[float] = []  # when the last two were found
        self._told: "set[str]" = set()
        self._wake, self._over, self._hurried = threading.Event(), threading.Event(), threading.Event()
        self._telling = threading.Lock()  # guards who was told, so that nobody is who need not leave
        self._asked: Optional[Tuple[Terminate, int]] = None
        self._asked_s = 0.0
        self._until_s = 0.0  # it may have saved, and leaves all the same when it has not
        self._at_stop: Optional[OwnCheckpoint] = None
        self._caught: Optional[OwnCheckpoint] = None
        self._was_told_to_leave = False
        self._steps_before: "set[int]" = set()
        self._before: Optional[OwnCheckpoint] = None
        self._is_back = False  # it was given back what it had saved
        self._thread = threading.Thread(target=self._work, name="own-saves", daemon=True)

    def remember(self) -> None:
        """What lies there before any code of the run runs: nothing new."""
        try:
            self._steps_before = set(self._folders.entries())
            self._before = self._folders.newest()
        except (OSError, Unsafe) as error:
            self._tell(self._begun, str(self._pattern), error)
        if self._before is not None and self._before.step == self._begun:
            self._is_back = True
            self._known = self._folders.sizes(self._before)  # the next ones will have it, too

    def start(self) -> None:
        self._thread.start()

    def ask(self, terminate: Terminate, grace_ms: int, *, patiently: bool = False) -> None:
        """Have it leave once it has saved, or when half of the grace is over; `patiently`: only when it has saved.
        Returns at once."""
        self._asked_s = time.monotonic()
        self._until_s = math.inf if patiently else self._asked_s + grace_ms / 2000
        self._asked = (terminate, grace_ms)
        self._wake.set()

    def let_be(self) -> bool:
        """Who was asked patiently need not leave; False where it was told already."""
        with self._telling:
            if self._was_told_to_leave:
                return False
            self._wake.clear()
            self._asked = None
        return True

    @property
    def was_told(self) -> bool:
        """Its process, to leave."""
        return self._was_told_to_leave

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
        while not self._over.is_set() and not self._was_told_to_leave:
            try:
                while not self._over.is_set() and self._asked is None:
                    self._look()
                    self._wake.wait(LOOK_S)
                self._catch()
            except Exception:  # whatever it was: the process is asked to leave
                traceback.print_exc(file=sys.stderr)
            finally:
                self._tell_to_leave()

    def _tell_to_leave(self) -> None:
        with self._telling:
            asked = self._asked
            if asked is None or self._over.is_set():
                self._caught = None
                return
            self._was_told_to_leave = True
        terminate, grace_ms = asked
        passed_s = 0.0 if self._until_s == math.inf else time.monotonic() - self._asked_s
        terminate(max(0, grace_ms - round(1000 * passed_s)))

    def _look(self) -> None:
        try:
            found = self._complete(STILL_S)
            if found is not None and found != self._offered:
                self._moments = [*self._moments[-1:], time.monotonic()]
                self._take(found, after_stop=False)
        except FileNotFoundError:  # removed while we looked
            return
        except (OSError, Unsafe) as error:
            self._tell(self._begun, str(self._pattern), error)
        except Exception:  # whatever it was: this thread is who asks the process to leave
            traceback.print_exc(file=sys.stderr)

    def _catch(self) -> None:
        """Wait for what it saves next, where that is likely to come in time."""
        self._at_stop, self._caught = self._folders.newest(), None
        while self._asked is not None and time.monotonic() < self._until_s:
            if self._hurried.wait(PATIENT_S if self._until_s == math.inf else CATCH_S):
                return
            if len(self._moments) > 1 and 2 * self._moments[1] - self._moments[0] > self._until_s:
                return
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
        found = self._folders.newest()
        if self._caught is not None and found != self._caught:  # it had begun the next one
            found = self._folders.found(self._caught.step, self._caught.name)
            if found != self._caught:
                return
        if found is None or found in (self._offered, self._before):
            return
        came_after = self._was_told_to_leave and found != self._at_stop
        if found == self._caught or self._is_whole(found, ended, left_by_itself=came_after):
            self._take(found, after_stop=came_after)

    def _is_whole(self, found: OwnCheckpoint, ended: Ended, *, left_by_itself: bool) -> bool:
        """Of a process that may have been killed while it wrote."""
        left = left_by_itself and (ended.orderly or (ended.exit_code is not None and ended.exit_code < 128))
        if self._known and not self._is_like_before(found):
            return False
        return left or time.time() - written_s(found) >= (STILL_S if self._known else UNKNOWN_STILL_S)

    def _take(self, found: OwnCheckpoint, *, after_stop: bool) -> None:
        self._offered = found
        self._known = self._folders.sizes(found)
        self._offer(found, after_stop)

    # What lies there

    def _complete(self, still_s: float) -> Optional[OwnCheckpoint]:
        """The newest that is. One that has a newer one beside it is: a script writes one after the other."""
        now_s = time.monotonic()
        entries = self._folders.entries()
        self._check_goes_on(entries)
        steps = sorted(step for step in entries if step > self._begun)
        self._still = {step: self._still[step] for step in steps if step in self._still}
        for step in reversed(steps[-_LOOKED_AT:]):
            found = self._folders.found(step, entries[step])
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
            if is_still and not self._folders.is_written(found):
                return found
        return None

    def _is_like_before(self, found: OwnCheckpoint) -> bool:
        """It has all the files that the one before had, and none is much smaller."""
        sizes = self._folders.sizes(found)
        return bool(self._known) and all(
            name in sizes and sizes[name] >= size * _SMALLEST_SHARE for name, size in self._known.items()
        )

    def _check_goes_on(self, entries: Mapping[int, str]) -> None:
        """One before the step that it was given back is one of a training that has begun again."""
        if not self._is_back:
            return
        early = [step for step in entries if step < self._begun and step not in self._steps_before]
        if early:
            words = (
                f"it was given back what it had saved at step {self._begun}, in the same place, and has begun again: a "
                "script that is to be moved looks for the newest when it starts, and goes on from there"
            )
            self._tell(min(early), self._folders.place(entries[min(early)]), Unsafe(words))

    def _tell(self, step: int, name: str, error: Exception) -> None:
        """Each reason once."""
        if str(error) not in self._told:
            self._told.add(str(error))
            self._refuse(step, name, error)
