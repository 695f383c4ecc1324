"""How far a run's bytes have got, told to the server now and then: who waits for them is patient while they come.

Short transfers are never told. A server of an older release does not hear of any.
"""

from __future__ import annotations

import threading
from typing import Callable, Optional

from workers.agent.api import Api, Writer
from workers.agent.errors import AgentError, Refused

TELL_S = 5.0


class TransferProgress:
    """Bytes that are read, sent or fetched one after the other. For any number of threads."""

    def __init__(self, kind: str, total_bytes: int) -> None:
        self.kind = kind
        self.total_bytes = total_bytes
        self._lock = threading.Lock()
        self._done_bytes = 0

    def advance(self, count: int) -> None:
        with self._lock:
            self._done_bytes += count

    @property
    def done_bytes(self) -> int:
        with self._lock:
            return min(self._done_bytes, self.total_bytes)


class Transfers:
    """Of one run: the newest transfer is the one that is told, in a thread of its own, until it is `over`."""

    def __init__(self, api: Api, writer: Writer, gone: threading.Event) -> None:
        self._api = api
        self._writer = writer
        self._gone = gone
        self._changed = threading.Condition()  # guards the next three
        self._now: Optional[TransferProgress] = None
        self._thread: Optional[threading.Thread] = None
        self._is_deaf = False

    def begin(self, kind: str, total_bytes: int) -> TransferProgress:
        """`kind`: read, send or fetch."""
        transfer = TransferProgress(kind, total_bytes)
        with self._changed:
            self._now = transfer
            if self._thread is None and not self._is_deaf:
                self._thread = threading.Thread(target=self._work, name="transfers", daemon=True)
                self._thread.start()
        return transfer

    def over(self, transfer: TransferProgress) -> None:
        with self._changed:
            if self._now is transfer:
                self._now = None
                self._changed.notify_all()

    def _work(self) -> None:
        told: Optional[TransferProgress] = None
        told_bytes = -1
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._now is None, TELL_S)
                now = self._now
                if now is None or self._gone.is_set():
                    self._thread = None
                    return
            done_bytes = now.done_bytes
            if (now, done_bytes) == (told, told_bytes):
                continue
            try:
                self._api.transfer(self._writer, kind=now.kind, done_bytes=done_bytes, total_bytes=now.total_bytes)
            except Refused:
                with self._changed:
                    self._is_deaf, self._thread = True, None
                return
            except AgentError:
                continue  # unreachable: it is told again
            told, told_bytes = now, done_bytes


def in_transfer(
    transfers: Optional[Transfers], kind: str, total_bytes: int, work: Callable[[TransferProgress], None]
) -> None:
    """Do `work`, which tells the transfer how far it is."""
    if transfers is None:
        work(TransferProgress(kind, total_bytes))
        return
    transfer = transfers.begin(kind, total_bytes)
    try:
        work(transfer)
    finally:
        transfers.over(transfer)
