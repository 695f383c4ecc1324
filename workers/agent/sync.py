"""The conversation with the control plane: what is goes up, what should be comes down.

Two threads ask. The poller waits on the server for news (long poll); the reporter tells local changes at once, over a
connection of its own. Their replies may cross, so each is applied only if its version is not below the highest one
seen: a wish that was overtaken never comes back.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, Callable, Dict

from workers.agent.errors import AgentError, Forgotten
from workers.agent.machine import Machine, facts, with_news
from workers.agent.patience import Backoff
from workers.agent.roster import Roster, remove_leftovers

WAIT_MS = 25_000
STEP_REPORT_S = 1.0
_PACE_S = 0.02  # between two polls, should a server answer each at once


class Sync:
    """`on_forgotten` is called once, when the server says that this node's token counts no longer; `on_answer` at each
    of its answers."""

    def __init__(
        self, machine: Machine, *, on_forgotten: Callable[[], None], on_answer: Callable[[], None] = lambda: None
    ) -> None:
        self.roster = Roster(machine, self.notify)
        self._machine = machine
        self._on_forgotten = on_forgotten
        self._on_answer = on_answer
        self._host = facts(machine.gpus.at_first, machine.config)
        self._apply_lock = threading.Lock()  # one reply at a time
        self._seen = 0
        self._report_every_s = STEP_REPORT_S
        self._news = threading.Condition()  # guards the next three; never held while talking or taking other locks
        self._urgent = False
        self._stepped = False
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._work, args=(self._poll,), name="poller", daemon=True),
            threading.Thread(target=self._work, args=(self._tell,), name="reporter", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float) -> None:
        """Both threads end, given that the transport was closed under them."""
        with self._news:
            self._stopped = True
            self._news.notify_all()
        for thread in self._threads:
            if thread.ident is not None:  # else we were never let in
                thread.join(timeout_s)

    def notify(self, urgent: bool) -> None:
        """Something changed here. Steps are told as often as the server wants to hear them, all else at once."""
        with self._news:
            self._urgent = self._urgent or urgent
            self._stepped = True
            self._news.notify_all()

    def _work(self, turn: Callable[[], None]) -> None:
        backoff = Backoff()
        while not self._stopped:
            try:
                turn()
                backoff.reset()
            except Forgotten as error:
                print(f"allpass agent: the server does not know this node any more: {error}", file=sys.stderr)
                self._on_forgotten()
                return
            except AgentError:
                self._pause(backoff.next_s())
            except Exception:  # the outermost frame: a reply that we cannot read must not end the conversation
                import traceback

                traceback.print_exc(file=sys.stderr)
                self._pause(backoff.next_s())

    def _poll(self) -> None:
        self._exchange(WAIT_MS)
        self._pause(_PACE_S)

    def _tell(self) -> None:
        with self._news:
            self._news.wait_for(lambda: self._urgent or self._stepped or self._stopped)
            if not self._urgent:
                self._news.wait_for(lambda: self._urgent or self._stopped, self._report_every_s)
            if self._stopped:
                return
            self._urgent = self._stepped = False
        try:
            self._exchange(0)
        except AgentError:
            self.notify(urgent=True)  # it is still untold
            raise

    def _exchange(self, wait_ms: int) -> None:
        reports = self.roster.reports()
        host = with_news(self._machine, self._host, draining=self.roster.draining)
        reply: Dict[str, Any] = self._machine.api.sync(
            seen=self._seen,
            wait_ms=wait_ms,
            runs=reports,
            host=host,
        )
        self._on_answer()
        self.roster.told(reports)
        self._machine.users.told(host.get("notices") or [])
        self._machine.calculation.heard(host)
        with self._apply_lock:
            version = int(reply["version"])
            if version < self._seen:
                return
            self._report_every_s = float(reply.get("report_every_ms", 1000.0 * STEP_REPORT_S)) / 1000
            if reply["runs"] is not None:  # else nothing is new since `seen`
                if self._seen == 0:
                    remove_leftovers(self._machine, reply["runs"])
                self.roster.apply(reply["runs"])
                self._seen = version
            self.roster.advise(reply.get("next") or [])

    def _pause(self, seconds: float) -> None:
        with self._news:
            self._news.wait_for(lambda: self._stopped, seconds)
