"""The other processes of a training on several GPUs: started by the first one, which they do not outlive.

The first process is the job's own. It alone has a session that tells anything: it hears that it is to stop, saves,
reports and exports; the others (`follower`) take their parts of each step until it is gone. So nothing has to be agreed
on before a job leaves: the step that the first process has saved is the step at which all leave.

Between two steps the others may change: one whose GPU is wanted elsewhere leaves, one that has loaded takes part. One
that is lost costs the step that was being taken, which those that are left take again; another one is begun in its
place. After every change the first process hands over what a step depends on (`handing_over`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from allpass.training.elastic import stillness
from allpass.training.elastic.rank_process import RankProcess, write
from allpass.training.elastic.ranks import ManyRanks, PeerLost, RankFailed, Ranks
from allpass.training.elastic.stillness import JOINING_S, Presence, Stillness
from allpass.training.elastic.wanted_gpus import WantedGpus
from allpass.training.session import Session

VISIBLE = "CUDA_VISIBLE_DEVICES"
MOST_LOST = 3  # processes that are replaced: where more are lost, another machine is better
_END_S = 1.0  # for a process to leave by itself: it has nothing to lose
LEAVING_S = 10.0  # the same, where the training goes on: somebody waits for its GPU
LOSS_S = 20.0  # for those that are left to find that one is gone, and to come together again, at least
_LOOK_S = 0.1  # between two looks at who is there, and who is wanted


class Gang:
    """What the first process has of the others."""

    def __init__(
        self,
        command: Sequence[str],
        task: Mapping[str, Any],
        wanted: WantedGpus,
        session: Session,
        environment: Mapping[str, str],
        most_lost: int = MOST_LOST,
    ) -> None:
        """`command` starts one of the others, with `environment` over this process's own; it is told `task`."""
        self._command = tuple(command)
        self._task = task
        self._environment = {**os.environ, **session.environment, **environment}
        self._session = session
        self._most_lost = most_lost
        self._told: Mapping[str, Any] = {}  # of its GPUs
        self._wanted = wanted
        self._place = Path(tempfile.mkdtemp(prefix="allpass-ranks-"))
        self._members: list[RankProcess] = []  # by rank, from 1
        self._coming: list[RankProcess] = []  # load
        self._leaving: list[RankProcess] = []  # were let go, and are not gone yet
        self._begun = self._met = self._lost = self._astray = 0
        self._watching: list[threading.Thread] = []
        self._lock = threading.RLock()
        self._is_over = False
        self._is_broken = False  # one was lost of those who have met last
        self._is_to_change = False
        self._longest_s = 0.0  # that nothing moved, of all meetings before
        self._pause_ms: int | None = None  # of their last change
        self._has_measured = False  # how long parts take
        self._closing = threading.Event()
        self._presence: Presence | None = None
        self._ranks: Ranks | None = None

    def start(self) -> None:
        """The others begin to load. Raises OSError where there can be no more processes."""
        for rank, gpu in enumerate(self._wanted.names[1:], 1):
            self._begin(gpu, rank, is_needed=True)
        self._watch_by(self._watch_all)

    def join(self, device: Any) -> Ranks:
        """This process as the first of those that are to take part by now, once all are there. The first time all that
        there are to be are waited for. Raises RankFailed where they lose each other though none is gone."""
        while self._met == 0 and not all(one.has_loaded for one in self._coming):
            time.sleep(_LOOK_S / 10)
        while True:
            with contextlib.suppress(PeerLost):  # one of them has ended before all had met
                self._ranks = self._meet(device)
                return self._ranks

    def _meet(self, device: Any) -> Ranks:
        with self._lock:
            self._explain()
            self._members = self._chosen()
            self._met += 1
            self._is_broken = self._is_to_change = False
            count = 1 + len(self._members)
            if count == 1:
                self._presence = None
                return Ranks(self._changes)
            meeting = (self._place / f"meeting-{self._met}").as_uri()
            file = self._place / f"meeting-{self._met}.presence"
            self._presence = presence = Presence(file, 0, count)
            for rank, one in enumerate(self._members, 1):
                one.rank = rank
                one.tell({"rank": rank, "count": count, "meeting": meeting, "presence": str(file)})
        return ManyRanks(
            0, count, meeting, device, presence, is_to_change=self._changes, is_given_up=lambda: self._is_broken
        )

    def close(self) -> None:
        """Return when the others are gone."""
        with self._lock:
            self._is_over = True
        self._closing.set()
        for one in (*self._members, *self._coming, *self._leaving):
            one.let_go()
        for one in (*self._members, *self._coming, *self._leaving):
            one.end(_END_S)
        for thread in self._watching:
            thread.join(_END_S)
        if self._ranks is not None:
            self._ranks.abandon()
        shutil.rmtree(self._place, ignore_errors=True)

    def _changes(self) -> bool:
        return self._is_to_change

    def _begin(self, gpu: str, rank: int, *, is_needed: bool) -> None:
        self._begun += 1
        ready = self._place / f"ready-{self._begun}"
        one = RankProcess(self._command, self._task, gpu, rank, ready, {**self._environment, VISIBLE: gpu}, is_needed)
        self._coming.append(one)
        self._watch_by(self._watch, one)

    def _watch_by(self, watch: Any, *of: Any) -> None:
        self._watching.append(threading.Thread(target=watch, args=of, daemon=True))
        self._watching[-1].start()

    def _explain(self) -> None:
        """Why they meet: where nothing was to change and nobody is gone, not again and again."""
        has_reason = self._met == 0 or self._is_broken or self._is_to_change
        self._astray = 0 if has_reason else self._astray + 1
        if self._astray > MOST_LOST:
            broke = self._ranks.broke if isinstance(self._ranks, ManyRanks) else ""
            raise RankFailed(f"the processes of this training lose each other again and again: {broke}")

    def _chosen(self) -> list[RankProcess]:
        """Those that are to take part now, by rank; the others are let go."""
        wanted = self._wanted.names
        loaded = [one for one in self._coming if one.has_loaded]
        self._coming = [one for one in self._coming if one not in loaded]
        found = []
        for one in (*self._members, *loaded):
            if one.gpu in wanted:
                found.append(one)
            else:
                one.let_go()
                self._leaving.append(one)
        return sorted(found, key=lambda one: wanted.index(one.gpu))

    def _watch(self, one: RankProcess) -> None:
        """In a thread. One that ends before the first process does is lost, whatever it says."""
        code = one.wait()
        broken: Ranks | None = None
        with self._lock:
            if one in self._members:
                self._members.remove(one)
                then = "those that are left take its step again, and another process begins in its place"
                self._lose(one, code, then)
                self._is_broken, broken = True, self._ranks
            elif one in self._coming:
                self._coming.remove(one)
                if one.is_needed:
                    self._lose(one, code, "another process begins in its place")
                else:
                    self._do_without(one, code)
            elif one in self._leaving:
                self._leaving.remove(one)
        if isinstance(broken, ManyRanks):  # whoever waits for it in the middle of a step would do so for ever
            broken.break_off()

    def _do_without(self, one: RankProcess, code: int) -> None:
        """It has never taken part, and was not to from the start."""
        if not self._is_over and one.gpu in self._wanted.names:
            write(f"training: no process could begin on GPU {one.gpu}: it {one.in_words(code)}")
            self._wanted.give_up(one.gpu)

    def _lose(self, one: RankProcess, code: int, then: str) -> None:
        """One that has found something wrong would only find it again, and so would another one after some."""
        if self._is_over or one.gpu not in self._wanted.names:
            return
        self._lost += 1
        why = f"rank {one.rank} of {self._count} {one.in_words(code)}"
        if self._lost > self._most_lost or one.has_failed(code):
            self._end(why, one.exit_code(code))
        write(f"training: {why}: {then}")
        try:
            self._begin(one.gpu, one.rank, is_needed=True)
        except OSError as error:
            self._end(f"{why}, and no other one could begin: {error}", one.exit_code(code))

    @property
    def _count(self) -> int:
        return len(self._wanted.names)

    def _watch_all(self) -> None:
        """In a thread: who is wanted, who has come, and whether anything moves."""
        still, met, apart_s, last_s = Stillness(), 0, 0.0, time.monotonic()
        while not self._closing.wait(_LOOK_S):
            now_s = time.monotonic()
            passed_s, last_s = min(now_s - last_s, 10 * _LOOK_S), now_s  # more: the whole job, or its host, was halted
            with self._lock:
                if self._is_over:
                    return
                self._heed()
                self._look_at_coming(passed_s)
                self._look_at_leaving(passed_s)
                self._tell_gpus()
                self._longest_s = max(self._longest_s, still.longest_s)
                self._has_measured |= self._ranks is not None and self._ranks.rounds > 1
                if met != self._met:
                    still, met, apart_s = Stillness(), self._met, 0.0
                if self._presence is None:
                    continue
                apart_s = apart_s + passed_s if self._is_apart(self._presence) else 0.0
                if apart_s > self._loss_s:
                    self._bring_together(self._presence)
                    apart_s = 0.0
                elif (why := still.look(self._presence.doing, self._presence.arrived, passed_s)) is not None:
                    self._unblock(why, still, self._presence)
                    still = Stillness()

    def _heed(self) -> None:
        """Those that are wanted and not there begin to load; that they have is told in the next round."""
        self._wanted.look()
        wanted = self._wanted.names
        there = {one.gpu for one in (*self._members, *self._coming, *self._leaving)}
        for rank, gpu in enumerate(wanted[1:], 1):
            if gpu not in there:
                with contextlib.suppress(OSError):  # tried again
                    self._begin(gpu, rank, is_needed=False)
        for one in self._coming:
            if one.gpu not in wanted:
                one.let_go()
        if self._met:
            arrive = bool(self._coming) and all(one.has_loaded for one in self._coming)
            self._is_to_change = arrive or any(one.gpu not in wanted for one in self._members)

    def _look_at_coming(self, passed_s: float) -> None:
        for one in self._coming:
            one.loads_for_s += passed_s
            if one.loads_for_s > JOINING_S and not one.has_loaded:
                one.kill(f"hangs: it has not loaded within {JOINING_S:.0f} s")

    def _look_at_leaving(self, passed_s: float) -> None:
        for one in self._leaving:
            one.leaves_for_s += passed_s
            if one.leaves_for_s > LEAVING_S:
                one.kill(f"did not leave within {LEAVING_S:.0f} s")

    def _tell_gpus(self) -> None:
        """Which GPUs the training uses, which it is about to leave, and those that no process could begin on: whoever
        gives them out waits for it. And for how long their last change had no step taken."""
        if not self._wanted.may_change or self._met == 0:
            return
        leaving = {one.gpu for one in (*self._leaving, *self._coming) if one.gpu not in self._wanted.names}
        pause_s = None if self._ranks is None else self._ranks.pause_s
        if pause_s is not None:
            self._pause_ms = round(pause_s * 1000)
        told = {
            "used": [self._wanted.names[0], *(one.gpu for one in self._members)],
            "leaving": sorted(leaving),
            "refused": sorted(self._wanted.refused),
            **({} if self._pause_ms is None else {"pause_ms": self._pause_ms}),
        }
        if told != self._told:
            with contextlib.suppress(OSError):  # a disk that is full: told with the next change
                self._session.tell(gpus=told)
                self._told = told

    @property
    def _loss_s(self) -> float:
        """One that is left may be about a part of its own for as long as parts take, and hears of a loss after it."""
        if not self._has_measured:
            return stillness.LEAST_S
        return max(LOSS_S, stillness.TIMES * self._longest_s)

    def _is_apart(self, presence: Presence) -> bool:
        """Whether this process waits for others which are either gone or do not come."""
        if presence.doing is not stillness.Doing.MEETING:
            return False
        has_met = min(presence.arrived) > 0
        return self._is_broken or (self._met > 1 and not has_met)

    def _bring_together(self, presence: Presence) -> None:
        """Who does not come out of what broke is lost as well; where that is this process, all is."""
        if self._is_broken:
            self._end("the first process does not come out of a step that another one was lost in", 1)
        self._kill(stillness.late(presence.arrived), "does not come out of a step that another one was lost in")

    def _unblock(self, why: str, still: Stillness, presence: Presence) -> None:
        """One that is there and hangs would have the others wait for ever."""
        late = stillness.late(presence.arrived)
        if self._met == 0 or not late or 0 in late:
            self._end(why, 1)
        self._kill(late, f"hangs: {still.since}")

    def _kill(self, ranks: Sequence[int], why: str) -> None:
        for one in self._members:
            if one.rank in ranks:
                one.kill(why)

    def _end(self, why: str, code: int) -> None:
        """All of it, this process too, with these as its last words; unless it is over anyway."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            for one in (*self._members, *self._coming, *self._leaving):
                one.end(0.0)
            shutil.rmtree(self._place, ignore_errors=True)
            sys.stdout.flush()
            write(f"error: {why}: the others were ended")
            os._exit(code)
