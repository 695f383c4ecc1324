"""The machine that leads a training on several: it waits for the others, tells them what is trained and where all meet,
and ends them with itself. It alone saves, reports and exports, as the first process of any training does."""

from __future__ import annotations

import contextlib
import hmac
import socket
import threading
import time
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from torch import distributed

from allpass.training.elastic.lines import BEAT_S, QUIET_S, Line
from allpass.training.elastic.machine import KILLED, Machine
from allpass.training.elastic.rank_process import write
from allpass.training.elastic.ranks import Join
from allpass.training.elastic.seat import Seat
from allpass.training.elastic.stillness import JOINING_S, Stillness, late
from allpass.training.session import EXIT_STOPPED, Session

_ANSWER_S = 10.0  # for whoever calls to say who it is
_LONGEST_HELLO = 64 * 1024  # bytes
_MOST_CALLERS = 256  # at once
_FAREWELL_S = 5.0


class FirstMachine(Machine):
    def __init__(
        self,
        seat: Seat,
        command: Sequence[str],
        gpus: Sequence[str],
        session: Session,
        environment: Mapping[str, str],
        facts: Mapping[str, str],
    ) -> None:
        """`facts`: what all machines should have alike, by name. Raises OSError where nobody can be let in."""
        super().__init__(seat, command, gpus, session, environment)
        self._facts = dict(facts)
        self._lines: Dict[int, Line] = {}  # by machine
        self._arrived: Dict[int, List[int]] = {}  # the same: how often its processes have come to where all meet
        self._hearing: List[threading.Thread] = []
        self._callers = threading.BoundedSemaphore(_MOST_CALLERS)
        self._still, self._since_beat_s, self._waits_s = Stillness(), 0.0, 0.0
        of_torch: Any = distributed
        self._store = of_torch.TCPStore(seat.address, 0, is_master=True, wait_for_workers=False)
        family = socket.AF_INET6 if ":" in seat.address else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((seat.address, seat.port))
        self._listener.listen(_MOST_CALLERS)

    def open(self, task: Mapping[str, Any]) -> None:
        """Whoever comes is told the task."""
        self._session.announce_together()
        self._watch_by(self._accept, {"task": dict(task), "port": self._store.port})
        self.begin(task)

    def say_farewell(self, code: int, why: str) -> None:
        """It has ended with this code: 0, 75 where it was asked to leave, or a failure's, of which it is told `why`."""
        with self._lock:
            self._is_over = True
            self._tell_others(**({"end": code} if not why else {"failed": why}))
            for line in self._lines.values():
                line.hang_up()
        until_s = time.monotonic() + _FAREWELL_S
        for thread in self._hearing:  # whoever hangs up at once may take back what it has said last
            thread.join(max(0.0, until_s - time.monotonic()))
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.close()

    def _meeting(self) -> "tuple[str, int]":
        self._await(lambda: len(self._lines) == self.seat.nodes - 1)
        return self.seat.address, self._store.port

    def _check_wanted(self) -> None:
        """Before all have met there is nothing to save."""
        if self._session.stop_requested():
            raise SystemExit(EXIT_STOPPED)

    def _accept(self, told: Mapping[str, Any]) -> None:
        """In a thread. Not more at once than can be heard: others wait, or give up."""
        while True:
            self._callers.acquire()
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            self._watch_by(self._let_in, link, told)

    def _let_in(self, link: socket.socket, told: Mapping[str, Any]) -> None:
        """In a thread. Whoever is no machine of this job hears nothing."""
        line = Line(link)
        hello = line.hear_within(_ANSWER_S, _LONGEST_HELLO) or {}
        self._callers.release()
        rank = _machine_in(hello, self.seat)
        with self._lock:
            if self._is_over or rank is None or rank in self._lines:
                line.close()
                return
            self._compare(rank, hello, line)
            line.tell(**told)
            self._arrived[rank] = []
            self._lines[rank] = line
            self._hearing.append(threading.current_thread())
        self._hear(rank, line)

    def _compare(self, rank: int, hello: Mapping[str, Any], line: Line) -> None:
        """With the lock. GPUs have to be as many; of what makes the last bits differ its owner hears."""
        if hello.get("gpus") != len(self._gpus):
            why = f"machine {rank} trains with {hello.get('gpus')} GPUs, and machine 0 with {len(self._gpus)}"
            line.tell(failed=why)
            self.end(why, 1)
        facts = hello.get("facts")
        found: Mapping[str, Any] = facts if isinstance(facts, dict) else {}
        for name, own in self._facts.items():
            if found.get(name, "") != own:
                other = str(found.get(name, "nothing"))[:100]
                write(f"training: machine {rank} has {name} {other}, and machine 0 {own}: last bits may differ")

    def _hear(self, rank: int, line: Line) -> None:
        why = None
        while (told := line.hear()) is not None:
            if told.get("stop"):
                self._session.request_stop()
            why = told.get("failed", why)
            arrived = told.get("arrived")
            if isinstance(arrived, list) and len(arrived) == len(self._gpus):
                self._arrived[rank] = [int(one) for one in arrived]
        self.end_without(rank, why)

    def _tell_others(self, **words: Any) -> None:
        for line in self._lines.values():
            line.tell(**words)

    def _look(self, passed_s: float) -> None:
        missing = [rank for rank in range(1, self.seat.nodes) if rank not in self._lines]
        self._waits_s += passed_s
        if missing and self._waits_s > JOINING_S:
            self.end(f"connection timed out: machine {missing[0]} has not come within {JOINING_S:.0f} s", KILLED)
        self._since_beat_s += passed_s
        if self._since_beat_s >= BEAT_S:
            self._since_beat_s = 0.0
            self._tell_others(beat=True)
        for rank, line in self._lines.items():
            line.quiet_s += passed_s
            if line.quiet_s > QUIET_S:
                self.end(f"connection timed out: machine {rank} was not heard of for {QUIET_S:.0f} s", KILLED)
        self._look_for_stillness(passed_s)

    def _look_for_stillness(self, passed_s: float) -> None:
        if self.presence is None or not all(self._arrived.values()):  # who has not met has said nothing of it
            return
        arrived = [*self.presence.arrived, *(one for _, some in sorted(self._arrived.items()) for one in some)]
        why = self._still.look(self.presence.doing, arrived, passed_s)
        if why is not None:
            whose = sorted({rank // len(self._gpus) for rank in late(arrived)})
            self.end(f"{why} (machine {', '.join(map(str, whose))})" if whose else why, KILLED)


def _machine_in(hello: Mapping[str, Any], seat: Seat) -> Optional[int]:
    """None for whoever is no further machine of this job."""
    rank = hello.get("machine")
    knows = hmac.compare_digest(str(hello.get("key")).encode(), seat.key.encode())
    if not knows or type(rank) is not int or not 0 < rank < seat.nodes:
        return None
    return rank


@contextlib.contextmanager
def leading(machine: FirstMachine, task: Mapping[str, Any]) -> Iterator[Join]:
    """While this lasts there is a process for each GPU of each machine, and this one may join them once it has loaded.
    The other machines hear how it ends."""
    code, why = 1, "it has failed"
    try:
        machine.open(task)
        yield machine.join
        code, why = 0, ""
    except SystemExit as leaving:
        if leaving.code in (0, EXIT_STOPPED, None):
            code, why = int(leaving.code or 0), ""
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise
    finally:
        machine.say_farewell(code, why)
