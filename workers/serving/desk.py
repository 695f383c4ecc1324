"""Between the service and the engine: requests are asked for, and answers told, while texts are being written.

The engine never waits for the service. What it has written of an answer is told in one call as soon as the call before
is through, at most some times a second, so a slow service gets larger pieces and no more calls.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from workers.serving.door import ServingDoor

_TELLERS = 4
_TOLD_EVERY_S = 0.05
_ASK_S = 5.0  # a request to leave is heard between two polls


class OpenAnswer:
    """Of one request: what is written of it, as far as it was not told."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.id: str = request["id"]
        self.request = request
        self.prompt_tokens = 0
        self.is_left = False  # nobody listens any more
        self.is_told = False  # to its end
        self.folder: Path | None = None  # its adapter's files, where they were fetched
        self.error: Exception | None = None  # why they could not be
        self._texts: list[str] = []
        self._tokens = 0
        self._end: dict[str, Any] | None = None
        self._position = 0
        self.is_on_its_way = False
        self.told_at_s = 0.0
        self._lock = threading.Lock()

    def add(self, text: str, tokens: int, reason: str | None) -> None:
        with self._lock:
            self._texts.append(text)
            self._tokens = tokens
            if reason is not None:
                self._end = {"finish_reason": reason}

    def fail(self, message: str, *, is_request_wrong: bool = False) -> None:
        with self._lock:
            self._end = {"error": message[:1000], "is_request_wrong": is_request_wrong}

    @property
    def is_over(self) -> bool:
        return self._end is not None

    @property
    def has_news(self) -> bool:
        return not self.is_told and (self.is_over or any(self._texts))

    def news(self) -> dict[str, Any]:
        """What is to be told now; it counts as told."""
        with self._lock:
            told: dict[str, Any] = {"text": "".join(self._texts), "position": self._position, **(self._end or {})}
            if "error" in told:
                del told["text"], told["position"]
            else:
                told |= {"prompt_tokens": self.prompt_tokens, "completion_tokens": self._tokens}
            self._texts, self._position = [], self._position + 1
            self.is_told = self._end is not None
            return told


class AnswerDesk:
    """`most`: requests that are held at once. `prepare`: called with each in the thread that asks, and raises nothing.
    It must be closed."""

    def __init__(self, door: ServingDoor, most: int, prepare: Callable[[OpenAnswer], None] = lambda _: None) -> None:
        self._door = door
        self._most = most
        self._prepare = prepare
        self._open: dict[str, OpenAnswer] = {}
        self._taken: queue.SimpleQueue[OpenAnswer] = queue.SimpleQueue()
        self._untold: queue.SimpleQueue[OpenAnswer | None] = queue.SimpleQueue()
        self._news = threading.Condition()
        self._asks = True
        self._is_asking = False
        self._failure: BaseException | None = None
        self._threads = [threading.Thread(target=self._ask, daemon=True)]
        self._threads += [threading.Thread(target=self._tell, daemon=True) for _ in range(_TELLERS)]
        for thread in self._threads:
            thread.start()

    @property
    def is_empty(self) -> bool:
        """Nothing is held, and nothing can come of an earlier question."""
        with self._news:
            return not self._open and not (self._is_asking and not self._asks)

    def next(self, wait_s: float) -> OpenAnswer | None:
        """A request that came, waited for as long. Raises what has ended the asking: NotServing, OSError."""
        self.check()
        try:
            return self._taken.get(timeout=wait_s) if wait_s else self._taken.get_nowait()
        except queue.Empty:
            return None

    def check(self) -> None:
        """Raises what has ended the asking or the telling."""
        if self._failure is not None:
            raise self._failure

    def stop_asking(self) -> None:
        """What is held is answered; no more is taken."""
        with self._news:
            self._asks = False

    def tell(self, answer: OpenAnswer) -> None:
        """There is more of it. One call at a time, so that pieces arrive in their order."""
        with self._news:
            is_due = answer.is_over or time.monotonic() - answer.told_at_s >= _TOLD_EVERY_S
            if answer.is_on_its_way or not is_due or not answer.has_news:
                return
            answer.is_on_its_way = True
        self._untold.put(answer)

    def close(self) -> None:
        self.stop_asking()
        with self._news:
            self._news.notify_all()
        for _ in range(_TELLERS):
            self._untold.put(None)

    def _ask(self) -> None:
        try:
            while self._wait_for_place():
                with self._news:
                    held = sorted(self._open)
                request = self._door.take(_ASK_S, held)
                with self._news:
                    self._is_asking = False
                    if request is None or request["id"] in self._open:
                        continue
                    answer = self._open[request["id"]] = OpenAnswer(request)
                self._prepare(answer)
                self._taken.put(answer)
        except BaseException as error:
            self._failure = error
        finally:
            self._is_asking = False

    def _wait_for_place(self) -> bool:
        """False: no more is asked for."""
        with self._news:
            self._news.wait_for(lambda: len(self._open) < self._most or not self._asks)
            self._is_asking = self._asks
            return self._asks

    def _tell(self) -> None:
        while (answer := self._untold.get()) is not None:
            try:
                answer.is_left = not self._door.tell(answer.id, **answer.news())
            except HTTPError as error:  # the service takes no more of this one
                print(f"serving: {answer.id} could not be told: {error}", flush=True)
                answer.is_left = True
            except BaseException as error:
                self._failure = error
                return
            with self._news:
                answer.told_at_s = time.monotonic()
                answer.is_on_its_way = answer.is_over and not (answer.is_told or answer.is_left)
                if answer.is_told or answer.is_left:
                    self._open.pop(answer.id, None)
                    self._news.notify_all()
            if answer.is_on_its_way:
                self._untold.put(answer)
