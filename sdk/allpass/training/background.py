"""One save at a time beside the training: the newest one waits, older ones that wait give way."""

from __future__ import annotations

import threading
from typing import Callable, Optional


class Background:
    """Works off jobs in a thread of its own, which exists only while there is work.

    The interpreter does not end before the work does. An error of a job is raised by the next call of anything here.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards the rest
        self._running: Optional[int] = None
        self._waiting: "Optional[tuple[int, Callable[[], None], Callable[[], None]]]" = None
        self._error: Optional[BaseException] = None

    def submit(self, step: int, job: Callable[[], None], dropped: Callable[[], None]) -> None:
        """Run `job` soon. Should a newer one come before it begins, `dropped` is called instead."""
        self.check()
        with self._changed:
            given_up, self._waiting = self._waiting, (step, job, dropped)
            if self._running is None:
                self._running = step
                threading.Thread(target=self._work, name="allpass-save").start()
        if given_up is not None:
            given_up[2]()

    def is_busy(self) -> bool:
        """Whether a save is under way or waits."""
        with self._changed:
            return self._running is not None

    def wait(self, *, drop_waiting: bool = False) -> None:
        """Return when all is done; with `drop_waiting`, what has not begun is given up."""
        with self._changed:
            given_up = None
            if drop_waiting:
                given_up, self._waiting = self._waiting, None
            self._changed.wait_for(lambda: self._running is None)
        if given_up is not None:
            given_up[2]()
        self.check()

    def check(self) -> None:
        """Raise what a job raised, once."""
        with self._changed:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._waiting is None:
                    self._running = None
                    self._changed.notify_all()
                    return
                (self._running, job, _), self._waiting = self._waiting, None
            try:
                job()
            except BaseException as error:  # whatever it is: told where somebody listens
                with self._changed:
                    self._error = error
