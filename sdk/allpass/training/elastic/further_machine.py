"""A further machine of a training on several: it is told by the first one what is trained, takes its parts of each
step, and ends with it. It tells nobody else anything.

Asked to leave, it has the first machine asked: that one saves, and all leave after the step that it has saved."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from typing import Any, Dict, Iterator, Mapping, Optional

from allpass.training.elastic.lines import BEAT_S, QUIET_S, Line
from allpass.training.elastic.machine import KILLED, LOOK_S, Machine
from allpass.training.elastic.ranks import Join, RankFailed
from allpass.training.elastic.stillness import JOINING_S
from allpass.training.session import EXIT_STOPPED

_ANSWER_S = 10.0
_PAUSE_S = 0.5


class FurtherMachine(Machine):
    """`connect` first: it is told then what there is to do."""

    _line: Optional[Line] = None
    _port = 0
    _since_beat_s = 0.0
    _has_asked = False

    def connect(self, facts: Mapping[str, str]) -> Dict[str, Any]:
        """The task, as the first machine says it. Raises RankFailed where that one is not reached, and SystemExit where
        this one was asked to leave meanwhile."""
        seat, until_s = self.seat, time.monotonic() + JOINING_S
        hello = {"key": seat.key, "machine": seat.rank, "gpus": len(self._gpus), "facts": dict(facts)}
        why: object = "it does not answer as the first machine of this job does"
        while time.monotonic() < until_s:
            if self._session.stop_requested():
                raise SystemExit(EXIT_STOPPED)
            try:
                line = Line(socket.create_connection((seat.address, seat.port), timeout=_ANSWER_S))
            except OSError as error:
                why = error
            else:
                line.tell(**hello)
                told = line.hear_within(_ANSWER_S) or {}
                if "failed" in told:
                    raise RankFailed(str(told["failed"]))
                if isinstance(told.get("task"), dict):
                    self._line, self._port = line, int(told["port"])
                    return dict(told["task"])
                line.close()
            time.sleep(_PAUSE_S)
        raise RankFailed(f"machine 0 was not reached at {seat.address}:{seat.port} within {JOINING_S:.0f} s: {why}")

    def follow(self) -> None:
        """Hear of the end of all from now on."""
        self._watch_by(self._hear)

    def await_end(self) -> None:
        """All steps are taken. What is left to do is the first machine's, and this process ends with it."""
        while True:
            time.sleep(LOOK_S)

    def fail(self, why: str) -> None:
        """This process cannot go on; the first machine is told why."""
        with self._lock:
            self._is_over = True
            self._tell_others(failed=why)
        self.close()

    def _meeting(self) -> "tuple[str, int]":
        return self.seat.address, self._port

    def _tell_others(self, **words: Any) -> None:
        if self._line is not None:
            self._line.tell(**words)

    def _hear(self) -> None:
        """In a thread."""
        assert self._line is not None
        why = None
        while (told := self._line.hear()) is not None:
            if "end" in told:
                with self._lock:
                    if not self._is_over:
                        self._is_over = True
                        self._leave(int(told["end"]))
                return
            why = told.get("failed", why)
        self.end_without(0, why)

    def _look(self, passed_s: float) -> None:
        assert self._line is not None
        self._since_beat_s += passed_s
        if self._session.stop_requested() and not self._has_asked:
            self._has_asked = True
            self._tell_others(stop=True)
        if self._since_beat_s >= BEAT_S:
            self._since_beat_s = 0.0
            self._tell_others(arrived=[] if self.presence is None else list(self.presence.arrived))
        self._line.quiet_s += passed_s
        if self._line.quiet_s > QUIET_S:
            self.end(f"connection timed out: machine 0 was not heard of for {QUIET_S:.0f} s", KILLED)


@contextlib.contextmanager
def following(machine: FurtherMachine, task: Mapping[str, Any]) -> Iterator[Join]:
    """While this lasts there is a process for each GPU of this machine; it does not return where all went well: this
    process ends with the first machine's. What is printed is the first machine's to say."""
    machine.follow()
    try:
        machine.begin(task)
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # noqa: PTH123 - no path of ours
            yield machine.join
            machine.await_end()
    except BaseException as error:
        sys.stdout.flush()
        machine.fail(f"{type(error).__name__}: {error}")
        raise
