"""What is asked for goes into the engine as soon as there is room, and what it writes goes back to the desk."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from workers.serving.desk import AnswerDesk, OpenAnswer
from workers.serving.door import NotServing, ServingDoor


class AnswersAtOnce:
    """`answered`: requests that are through, also those that failed."""

    def __init__(self, door: ServingDoor, engine: Any, most: int, answered: int = 0) -> None:
        self.answered = answered
        self.desk = AnswerDesk(door, most, self._prepare)
        self._door = door
        self._engine = engine
        self._writing: dict[Any, OpenAnswer] = {}  # by the engine's text
        self._next: tuple[OpenAnswer, list[int]] | None = None  # waits for room, and those after it with it

    @property
    def is_empty(self) -> bool:
        return not self._writing and self._next is None and self.desk.is_empty

    def turn(self, wait_s: float) -> bool:
        """Take in what has come, waiting as long where nothing is being written, and write one token of each text.
        Whether anything was done. Raises NotServing and OSError."""
        self.desk.check()
        begun = self._begin_all(0 if self._writing or self._next else wait_s)
        for row in [row for row, answer in self._writing.items() if answer.is_left]:
            self._engine.drop(row)
            self._end(row)
        for row, piece in self._engine.step() if self._writing else ():
            self._take(row, piece)
        return begun or bool(self._writing)

    def close(self) -> None:
        self.desk.close()

    def _begin_all(self, wait_s: float) -> bool:
        """Those that there is room for, in their order."""
        has_begun = False
        while True:
            if self._next is None:
                answer = self.desk.next(0 if has_begun else wait_s)
                if answer is None:
                    return has_begun
                prompt = self._guarded(answer, lambda answer=answer: self._read(answer))
                if prompt is None:
                    continue
                self._next = answer, prompt
            answer, prompt = self._next
            if not self._engine.takes(len(prompt)):
                return has_begun
            self._next = None
            row = self._guarded(answer, lambda answer=answer, prompt=prompt: self._begin(answer, prompt))
            if row is not None:
                self._writing[row] = answer
            has_begun = True

    def _read(self, answer: OpenAnswer) -> list[int]:
        prompt: list[int] = self._engine.encode(answer.request["body"])
        answer.prompt_tokens = len(prompt)
        return prompt

    def _begin(self, answer: OpenAnswer, prompt: list[int]) -> Any:
        name = answer.request.get("adapter")
        if isinstance(name, str) and not self._engine.has(name):
            if answer.error is not None:
                raise answer.error
            folder = answer.folder or fetched(self._door, answer.request)
            self._engine.load(name, folder)
        _forget(answer)
        return self._engine.begin(prompt, name if isinstance(name, str) else None, answer.request["body"])

    def _guarded(self, answer: OpenAnswer, act: Any) -> Any:
        """What is wrong with one request is told, and harms no other."""
        try:
            return act()
        except NotServing:
            raise
        except ValueError as error:
            answer.fail(str(error), is_request_wrong=True)
        except Exception as error:  # whatever a model's code raises: the next request may go well
            self._say(answer, error)
        _forget(answer)
        self.answered += 1
        self.desk.tell(answer)
        return None

    def _take(self, row: Any, piece: Any) -> None:
        answer = self._writing[row]
        if isinstance(piece, Exception):
            self._say(answer, piece)
        else:
            answer.add(piece.text, piece.tokens, piece.reason)
        self.desk.tell(answer)
        if answer.is_over:
            self._end(row)

    def _end(self, row: Any) -> None:
        del self._writing[row]
        self.answered += 1

    def _say(self, answer: OpenAnswer, error: Exception) -> None:
        print(f"serving: {answer.id} failed: {error!r}", flush=True)
        answer.fail(f"{type(error).__name__}: {str(error)[:500]}")

    def _prepare(self, answer: OpenAnswer) -> None:
        """In the thread that asks: an adapter is fetched while others are written."""
        name = answer.request.get("adapter")
        if isinstance(name, str) and not self._engine.has(name):
            try:
                answer.folder = fetched(self._door, answer.request)
            except Exception as error:
                answer.error = error


def fetched(door: ServingDoor, request: Any) -> Path:
    """The folder with an adapter's files, which is the caller's to remove."""
    folder = Path(tempfile.mkdtemp(prefix="adapter-"))
    try:
        for file, url in (request.get("files") or {}).items():
            door.fetch(url, folder / Path(file).name)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _forget(answer: OpenAnswer) -> None:
    if answer.folder is not None:
        shutil.rmtree(answer.folder, ignore_errors=True)
        answer.folder = None
