"""A run whose code keeps the GPUs that it begins with has others by beginning again, on the same machine, from what it
has saved (ADR 0129). What is decided of it; `restarting_run.py` does it.

Nothing is lost by that: only code that saves is asked to leave, once it has shown in this very process that it does.
What cannot begin again with another number goes back to the number it had, from the same checkpoint, and is not asked
again.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Set, Tuple

from workers.agent.process import Ended

# What tells of another beginning than the one from here.
_OF_BEGINNING = ("ALLPASS_RESUME_LEARNED", "ALLPASS_PROFILES", "ALLPASS_PLAN_FILE")
# Why it keeps its GPUs; "short": with others, nothing was left to do.
UNSAVED, FAILED, REFUSED, SHORT = "unsaved", "failed", "refused", "short"
PROVE_S = 300.0  # GPUs that were given up are held for so long, until the code has shown that it goes on without

Gpus = Tuple[int, ...]


class NextBegin(NamedTuple):
    """It is to begin again on these. `is_back`: for want of a better way, where it was."""

    gpus: Gpus
    is_back: bool = False


class Restarts:
    """Of one run; guarded by the run's lock."""

    def __init__(self, spec: Mapping[str, Any], now_s: Callable[[], float] = time.monotonic) -> None:
        self.is_on = True  # else its code changes its GPUs by itself
        self._now_s = now_s
        self._wanted: Gpus = tuple(spec.get("use_gpus") or ())
        self.used: Gpus = self._wanted or tuple(spec["gpu_indices"])
        self._has_begun = False
        self._follows = False  # the server has been told
        self.is_asked = False  # its process is to leave, to begin again
        self._left_s = 0.0  # when it heard of that, or the process before did
        self._after_save = False  # it hears of that only when it has saved
        self._before: Gpus = ()  # what it had before, as long as it may have to go back: until it takes a step there
        self._prove_until_s = 0.0
        self._had: Set[int] = {len(self.used)}  # numbers with which it has trained
        self._waits = False  # for the first sign of a process that has begun again
        self._is_back = False  # it has gone back to what it had, and taken no step there yet
        self.kept = ""
        self._pause_ms: Optional[int] = None

    def tell(self, spec: Mapping[str, Any]) -> None:
        """A server of a release that says nothing of it is one that wants nothing."""
        self._wanted = tuple(spec.get("use_gpus") or ()) or self._wanted
        if not self._has_begun:
            self.used = self._wanted or self.used
            self._had = {len(self.used)}

    def begin(self) -> Gpus:
        """Those that its next process has; the first one has what is wanted then."""
        self._has_begun = True
        return self.used

    @property
    def is_wanted(self) -> bool:
        return bool(self._wanted) and set(self._wanted) != set(self.used)

    def trains(self) -> None:
        """The process that runs now has taken a step."""
        self._settle()
        self._is_back = False
        if self._waits:
            self._waits = False
            self._pause_ms = round(1000 * (self._now_s() - self._left_s))

    def shows(self, *, after_save: bool = False) -> None:
        """It has shown that its code saves, or saves when it is asked to; `after_save`: no more than that it saves."""
        self._follows, self._after_save = True, after_save

    def is_due(self, *, shown: bool) -> bool:
        """Whether the process is to be asked now. `shown`: it has shown that it saves."""
        is_free = not self._before or self._now_s() >= self._prove_until_s
        return self.is_on and shown and self.is_wanted and not self.kept and not self.is_asked and is_free

    def refuse(self) -> None:
        """What it saves is of no use, or it does not go on from there: it is not asked any more."""
        if self._follows and not self.kept and not self.is_asked and not self._before:
            self.kept = REFUSED

    def ask(self) -> None:
        self.is_asked = True

    def hears(self) -> None:
        """The request reaches its process now: from here on it may stand still."""
        self._left_s = self._now_s()

    @property
    def may_begin_again(self) -> bool:
        """Whether the end of its process may be none of the run."""
        return self.is_on and (self.is_asked or bool(self._before) or self._is_back)

    def let_be(self) -> None:
        """It has not heard of it yet, and is not to any more."""
        self.is_asked = False

    def after(self, ended: Ended, *, saved: bool, told: bool, short: bool = False) -> Optional[NextBegin]:
        """What becomes of the run whose process has ended, though nobody wants the run to end; None: that was its end.
        `saved`: it has answered the request with a checkpoint; `told`: the request has reached it; `short`: it has
        taken no step, and by the word of the one before there were some left. An error of its own at that very moment
        looks as if it had not saved: it comes again where it goes back to, and is told there."""
        if self.is_asked and saved:
            return NextBegin(self._wanted)
        if self.is_asked and told and ended.exit_code != 0:
            self.kept = UNSAVED
            return NextBegin(self.used, is_back=True)
        if self._before and (short or ended.exit_code != 0):
            self.kept = FAILED if ended.exit_code != 0 else SHORT
            return NextBegin(self._before, is_back=True)
        return None

    def strands(self, ended: Ended) -> bool:
        """Whether a process that has so ended had gone back in vain: what lies on its disk may be no checkpoint, if
        what was there before was killed in the middle of writing it."""
        return self._is_back and ended.exit_code != 0

    def begun(self, begin: NextBegin) -> float:
        """Its next process is there; how long ago the one before was asked to leave."""
        now_s = self._now_s()
        is_new = len(begin.gpus) not in self._had
        keeps_its_own = set(self.used) <= set(begin.gpus)  # nothing has to be held for it
        self._before = self.used if not begin.is_back and (is_new or keeps_its_own) else ()
        self._prove_until_s = now_s + PROVE_S
        self.used, self.is_asked, self._waits, self._is_back = begin.gpus, False, True, begin.is_back
        return now_s - self._left_s

    def told(self) -> Dict[str, Any]:
        """To the server, of the GPUs that it has; nothing before its code has shown that it saves."""
        if not self.is_on or not self._follows or not self._wanted:
            return {}
        leaving = set(self._before) - set(self.used)
        if leaving and self._now_s() >= self._prove_until_s:  # where nothing is held, it may take its time
            self._settle()
            leaving = set()
        if self.is_asked:
            leaving |= set(self.used) - set(self._wanted)
        gpus: Dict[str, Any] = {"used": sorted(self.used), "leaving": sorted(leaving), "refused": []}
        if self._after_save:
            gpus["after_save"] = True
        if self.kept:
            gpus["kept"] = self.kept
        if self._pause_ms is not None:
            gpus["pause_ms"] = self._pause_ms
        return {"gpus": gpus}

    def _settle(self) -> None:
        """It need not go back any more."""
        self._had.add(len(self.used))
        self._before = ()


def counted(spec: Mapping[str, Any], gpus: int) -> Dict[str, str]:
    """How many GPUs it has now, for those that start a process for each (`torchrun`), and how many its job was written
    for (`allpass.training.gpus_factor`)."""
    asked = (spec["template"].get("gpu") or {}).get("count") or 1
    return {
        "PET_NPROC_PER_NODE": str(gpus),
        "ALLPASS_GPU_COUNT": str(gpus),
        "ALLPASS_GPU_COUNT_ASKED": str(asked),
    }


def begun_again(environ: Mapping[str, str], folder: Path, step: int) -> Dict[str, str]:
    """Of a process that goes on from that checkpoint. A layout was made for the GPUs that its run began with."""
    kept = {name: value for name, value in environ.items() if name not in _OF_BEGINNING}
    return {**kept, "ALLPASS_RESUME_DIR": str(folder), "ALLPASS_RESUME_STEP": str(step)}


def restarts(spec: Mapping[str, Any]) -> bool:
    """Whether the job's owner has its GPUs changed so."""
    is_wanted: bool = spec.get("template", {}).get("resize_by") == "restart"
    return is_wanted and spec.get("purpose", "train") == "train" and not spec.get("gang")
