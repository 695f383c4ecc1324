"""A process that two runs share: the lead's, which starts it, and its companion's (`workers/trainer/together.py`).

Each has a seat in it. One who is to stop is told by a file, and tells by another one that it has left; the process goes
on with the other. Only when both are to stop does the process hear of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

from workers.agent.errors import Unsafe
from workers.agent.files import give_to
from workers.agent.process import Ended, Process
from workers.agent.workspace import Workspace

LOOK_S = 0.1
LINGER_MS = 10_000  # for the end of a process that both have left
KILLED_GRACE_MS = 120_000  # who is to stop at once frees nothing before the other: that one is not to suffer for it
MOST_END_BYTES = 64 * 1024
LONGEST_WHY = 500
LOG_NAME = "companion.log"
_BLOCK_BYTES = 64 * 1024

Output = Callable[[bytes], None]


class Guest(NamedTuple):
    """What a companion brings: its folders, the environment that its code would have found, and where its log goes."""

    workspace: Workspace
    environ: Dict[str, str]
    output: Output


class Sharing:
    """Thread-safe. First the two find together: the companion comes, the lead takes it along; or either goes alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())  # guards all below
        self._guest: Optional[Guest] = None
        self._guest_is_gone = False  # it will not come any more
        self._lead_is_gone = False  # it will not take anybody along any more
        self._seats: List[Seat] = []  # the lead's, and the companion's, once the process was started
        self._process: Optional[Process] = None
        self._is_asked = False
        self._held = 0
        self._ended: Optional[Ended] = None
        self.guest_is_removed = threading.Event()  # nothing of the companion is left on this machine

    # From the companion's thread.

    def come(self, guest: Guest, check_wanted: Callable[[], None]) -> "Optional[Seat]":
        """Wait for the lead to start: the companion's seat, or None when it has to go by itself. `check_wanted` raises
        when it is not to come any more."""
        with self._changed:
            self._guest = guest
            self._changed.notify_all()
            while not self._seats and not self._lead_is_gone:
                self._changed.wait(LOOK_S)
                try:
                    if not self._seats:
                        check_wanted()
                except BaseException:
                    self._guest_is_gone = True  # before the lead can take it along
                    raise
            return self._seats[1] if self._seats else None

    def stay_away(self) -> None:
        """The companion does not come, or no more. Calling it later is harmless."""
        with self._changed:
            self._guest_is_gone = True
            self._changed.notify_all()

    # From the lead's thread.

    def await_guest(self, check_wanted: Callable[[], None]) -> None:
        """Until the companion is here or will not come."""
        with self._changed:
            while self._guest is None and not self._guest_is_gone:
                self._changed.wait(LOOK_S)
                check_wanted()

    def begin(
        self,
        lead: Workspace,
        environ: Dict[str, str],
        output: Output,
        start: Callable[[Dict[str, str], Output], Process],
    ) -> "Optional[Seat]":
        """Start the process with both: the lead's seat. None when there is no companion any more."""
        with self._changed:
            guest = self._guest
            if guest is None or self._guest_is_gone:
                self.go_alone()
                return None
            guest.workspace.started.touch()
            seats = [
                Seat(self, lead, output, None),
                Seat(self, guest.workspace, guest.output, guest.workspace.home / LOG_NAME),
            ]
            self._process = start({**environ, **_meeting(lead, guest, seats)}, self._pass_on)
            self._seats = seats
            self._changed.notify_all()
        threading.Thread(target=self._reap, args=(self._process,), name="shared-process", daemon=True).start()
        return seats[0]

    def go_alone(self) -> None:
        """Nobody is taken along any more. Calling it later is harmless."""
        with self._changed:
            self._lead_is_gone = True
            self._changed.notify_all()

    # From any thread.

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Both may be asked in here: what they are to do is decided at the end."""
        with self._changed:
            self._held += 1
        try:
            yield
        finally:
            with self._changed:
                self._held -= 1
                self._act()

    @property
    def pid(self) -> Optional[int]:
        """Of the shared process's guard, once it has begun."""
        return None if self._process is None else self._process.pid

    def ask(self, seat: "Seat", wish: str, grace_ms: int) -> None:
        """This one is to `leave`, or is to be killed."""
        with self._changed:
            if seat.asked != "kill":
                seat.asked = wish
            seat.grace_ms = grace_ms
            self._act()

    def left(self, seat: "Seat") -> bool:
        """This one has left for good; whether the other one had before."""
        with self._changed:
            seat.has_left = True
            inside = [one for one in self._seats if not one.has_left]
            if not inside and self._process is not None:
                self._process.terminate(LINGER_MS)
            self._act()
            return not inside

    def await_end(self, timeout_s: Optional[float] = None) -> Optional[Ended]:
        """How the process ended; None when it has not yet."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended is not None, timeout_s)
            return self._ended

    def await_gone(self) -> None:
        """Until there is no process of theirs."""
        with self._changed:
            self._changed.wait_for(lambda: self._process is None or self._ended is not None)

    def _act(self) -> None:
        process = self._process
        if self._held or process is None or self._ended is not None:
            return
        inside = [one for one in self._seats if not one.has_left]
        if inside and all(one.asked == "kill" for one in inside):
            process.kill()
        elif inside and all(one.asked is not None for one in inside):
            if not self._is_asked:
                self._is_asked = True
                process.terminate(max(one.grace_ms for one in inside))
        else:
            for one in inside:
                if one.asked is not None:
                    one.tell(process)

    def _reap(self, process: Process) -> None:
        ended = process.wait()
        with self._changed:
            self._ended = ended
            self._changed.notify_all()

    def _pass_on(self, data: bytes) -> None:
        """What the process writes is the lead's, or of who is left."""
        for seat in self._seats:
            if not seat.has_left:
                seat.output(data)
                return


class Seat:
    """One run's part in a shared process; to its run it is the process."""

    def __init__(self, sharing: Sharing, workspace: Workspace, output: Output, log: Optional[Path]) -> None:
        self.asked: Optional[str] = None  # these three are guarded by the sharing's lock
        self.has_left = False
        self.grace_ms = 0
        self.output = output
        self.leave = workspace.home / "leave"
        self.end = workspace.home / "end.json"
        self._sharing = sharing
        self._fence = workspace.fence()
        self._killer: Optional[threading.Timer] = None
        self._log = None
        if log is not None:
            log.touch()
            give_to(workspace.uid, log)
            self._log = self._fence.open(log)

    @property
    def pid(self) -> Optional[int]:
        return self._sharing.pid

    def terminate(self, grace_ms: int) -> None:
        self._sharing.ask(self, "leave", grace_ms)

    def kill(self) -> None:
        self._sharing.ask(self, "kill", KILLED_GRACE_MS)

    def wait(self) -> Ended:
        """Until this run has left the process, or the process is over."""
        while True:
            ended = self._sharing.await_end(LOOK_S)
            told = self._told()
            self._read_log()
            if told is not None or ended is not None:
                break
        was_last = self._sharing.left(self)
        if self._killer is not None:
            self._killer.cancel()
        if ended is None and was_last:  # GPUs are free when the process is gone
            ended = self._sharing.await_end()
        self._read_log()
        if self._log is not None:
            self._log.close()
        return told or ended or Ended(signal=9)

    def tell(self, process: Process) -> None:
        """Once: leave, and the other goes on. Should that take too long, both are killed."""
        if self._killer is not None:
            return
        with contextlib.suppress(OSError):
            os.close(os.open(self.leave, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        self._killer = threading.Timer(self.grace_ms / 1000, process.kill)
        self._killer.daemon = True
        self._killer.start()

    def _told(self) -> Optional[Ended]:
        """What the process says of this run's end."""
        try:
            with self._fence.open(self.end) as file:
                told: Any = json.loads(file.read(MOST_END_BYTES))
            parted = told.get("parted")
            code = told["exit_code"]
            if isinstance(code, int) and 0 <= code <= 255:
                return Ended(int(code), parted=None if parted is None else str(parted)[:LONGEST_WHY])
        except FileNotFoundError:
            return None
        except (OSError, Unsafe, ValueError, KeyError, TypeError, AttributeError):
            pass
        return Ended(1)  # it is written whole, by a rename: what cannot be read is not the trainer's

    def _read_log(self) -> None:
        while self._log is not None:
            data = self._log.read(_BLOCK_BYTES)
            if not data:
                return
            self.output(data)


def _meeting(lead: Workspace, guest: Guest, seats: "List[Seat]") -> Dict[str, str]:
    """What the process finds of both in its environment."""
    mine, its = ({"ALLPASS_LEAVE_FILE": str(one.leave), "ALLPASS_END_FILE": str(one.end)} for one in seats)
    own = {name: value for name, value in guest.environ.items() if name.startswith("ALLPASS_")}
    own.update(its, ALLPASS_LOG_FILE=str(guest.workspace.home / LOG_NAME))
    file = lead.home / "companion.json"
    file.write_text(json.dumps({"environ": own, "code": str(guest.workspace.code)}), encoding="utf-8")
    file.chmod(0o600)
    give_to(lead.uid, file)
    return {**mine, "ALLPASS_COMPANION_FILE": str(file)}
