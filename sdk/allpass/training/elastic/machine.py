"""The processes that one machine has of a training on several: one for each of its GPUs, from the beginning to the end.

On each machine the job's own process is the first of them; it starts the others, and says to the first machine what
becomes of them (`first_machine`, `further_machine`). Who takes part does not change: where a process or a machine is
lost, all end, and whoever runs the job begins it again from its last checkpoint.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, List, Mapping, NoReturn, Optional, Sequence

from allpass.training.elastic.gang import VISIBLE
from allpass.training.elastic.rank_process import RankProcess, write
from allpass.training.elastic.ranks import ManyRanks, RankFailed, Ranks, meeting_at
from allpass.training.elastic.seat import Seat
from allpass.training.elastic.stillness import JOINING_S, Presence
from allpass.training.session import Session

KILLED = -signal.SIGKILL  # the code of a process that ends as a killed one: what was lost is no fault of the code
LOOK_S = 0.1
_MOST_PASSED_S = 1.0  # of a look: more, and the whole job, or its host, was halted
_LAST_WORDS_S = 30.0  # for whoever sees what was lost to end this process
_END_S = 1.0
_LONGEST_WHY = 500


class Machine:
    """`command` starts one of its other processes, with `environment` over this process's own."""

    def __init__(
        self, seat: Seat, command: Sequence[str], gpus: Sequence[str], session: Session, environment: Mapping[str, str]
    ) -> None:
        self.seat = seat
        self._command = tuple(command)
        self._gpus = tuple(gpus)
        self._session = session
        self._environment = {**os.environ, **session.environment, **environment}
        self._place = Path(tempfile.mkdtemp(prefix="allpass-ranks-"))
        self._others: List[RankProcess] = []
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._is_over = False
        self.presence: Optional[Presence] = None  # of its processes, once they are to meet
        self._ranks: Optional[ManyRanks] = None

    @property
    def count(self) -> int:
        """Processes of the whole training."""
        return self.seat.nodes * len(self._gpus)

    def begin(self, task: Mapping[str, Any]) -> None:
        """Its other processes begin to load; they are told `task`. Raises OSError where there can be no more."""
        for slot, gpu in enumerate(self._gpus[1:], 1):
            ready = self._place / f"ready-{slot}"
            environment = {**self._environment, VISIBLE: gpu}
            one = RankProcess(self._command, task, gpu, self._rank(slot), ready, environment, True)
            self._others.append(one)
            self._watch_by(self._watch, one)
        self._watch_by(self._watch_all)

    def join(self, device: Any) -> Ranks:
        """This process as one of all, once it has loaded. A second time there is nobody to meet: raises RankFailed, if
        whoever sees what was lost has not ended this process before."""
        if self._ranks is not None:
            time.sleep(_LAST_WORDS_S)
            raise RankFailed(f"the processes of this training have lost each other: {self._ranks.broke}")
        self._await(lambda: all(one.has_loaded for one in self._others))
        address, port = self._meeting()
        meeting, file, slots = meeting_at(address, port), self._place / "presence", len(self._gpus)
        presence = Presence(file, 0, slots)
        for slot, one in enumerate(self._others, 1):
            told = {"slot": slot, "slots": slots, "meeting": meeting, "presence": str(file)}
            one.tell({"rank": one.rank, "count": self.count, **told})
        self.presence = presence
        self._ranks = ManyRanks(self._rank(0), self.count, meeting, device, presence)
        return self._ranks

    def _meeting(self) -> "tuple[str, int]":
        """Where all meet, once that is known."""
        raise NotImplementedError

    def _tell_others(self, **words: Any) -> None:
        """Other machines."""
        raise NotImplementedError

    def _look(self, passed_s: float) -> None:
        """Every `LOOK_S`, with the lock, until all is over."""
        raise NotImplementedError

    def _rank(self, slot: int) -> int:
        return self.seat.rank * len(self._gpus) + slot

    def in_words(self, rank: int) -> str:
        """E.g. "rank 3 of 4, on machine 1,"."""
        return f"rank {rank} of {self.count}, on machine {rank // len(self._gpus)},"

    def _await(self, is_there: Callable[[], bool]) -> None:
        while not is_there():
            self._check_wanted()
            time.sleep(LOOK_S / 10)

    def _check_wanted(self) -> None:
        """While it waits for others to load. Raises SystemExit."""

    def _watch_by(self, watch: Any, *of: Any) -> None:
        threading.Thread(target=watch, args=of, daemon=True).start()

    def _watch(self, one: RankProcess) -> None:
        """In a thread. One that ends before this process does is lost, whatever it says."""
        code = one.wait()
        failed = one.has_failed(code)
        self.end(f"{self.in_words(one.rank)} {one.in_words(code)}", one.exit_code(code) if failed else KILLED)

    def _watch_all(self) -> None:
        """In a thread."""
        last_s = time.monotonic()
        while not self._closing.wait(LOOK_S):
            now_s = time.monotonic()
            passed_s, last_s = min(now_s - last_s, _MOST_PASSED_S), now_s
            with self._lock:
                if self._is_over:
                    return
                for one in self._others:
                    one.loads_for_s += passed_s
                    if one.loads_for_s > JOINING_S and not one.has_loaded:
                        one.kill(f"hangs: it has not loaded within {JOINING_S:.0f} s")
                self._look(passed_s)

    def end_without(self, machine: int, why: Any) -> None:
        """Another machine is gone. What it has failed with is told by itself as well, and these words are those of one
        that has only lost it; where it has said nothing it was lost, and so is this one."""
        told = "" if why is None else f": {str(why)[:_LONGEST_WHY]}"
        self.end(f"connection closed by machine {machine}{told}", KILLED if why is None else 1)

    def end(self, why: str, code: int) -> None:
        """All of it, this process too, with these as its last words; unless it is over anyway."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            self._tell_others(failed=why)
            write(f"error: {why}: all processes of the training end")
            self._leave(code)

    def _leave(self, code: int) -> NoReturn:
        """At once, whatever this process is about."""
        for one in self._others:
            one.end(0.0)
        shutil.rmtree(self._place, ignore_errors=True)
        sys.stdout.flush()
        if code < 0:
            os.kill(os.getpid(), -code)
        os._exit(abs(code))

    def close(self) -> None:
        """Return when its other processes are gone."""
        with self._lock:
            self._is_over = True
        self._closing.set()
        for one in self._others:
            one.let_go()
        for one in self._others:
            one.end(_END_S)
        if self._ranks is not None:
            self._ranks.abandon()
        shutil.rmtree(self._place, ignore_errors=True)
