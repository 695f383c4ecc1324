"""Long calculations for people, each in a process of its own: bounded in time and memory, at a low priority.

The process that serves and decides only waits for them. It is ended with the request, and knows nothing of the service:
neither its settings nor its database.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import resource
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from app.errors import AllpassError, InvariantBroken, TooLarge, TooManyRequests

Question = TypeVar("Question")
Answer = TypeVar("Answer")
_SERVE = "from app.services.kit.apart import serve; serve()"
_HANDED_ON = ("PATH", "LANG", "LC_ALL", "TMPDIR", "HOME")
_ALONE = {"HF_HUB_OFFLINE": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # each thread reserves memory
_GIVES_WAY = 10  # a tenth of what serves gets: at the lowest priority it would hardly run beside a busy service
_DONE, _FAILED, _NO_MEMORY = "done", "failed", "no memory"
_AGAIN_MS = 2_000


@dataclass(frozen=True, slots=True)
class WorkBounds:
    """What a calculation may take. `what`: as messages call it; `instead`: what to do where that is not enough."""

    what: str
    seconds: float
    memory_bytes: int
    instead: str


class Desk:
    """One calculation at a time for each project, and few in all."""

    def __init__(self, what: str, at_once: int) -> None:
        self._what = what
        self._places = asyncio.Semaphore(at_once)
        self._busy: dict[str, tuple[str | None, asyncio.Event]] = {}  # by project: under which key, and its end

    @asynccontextmanager
    async def place(self, project_id: str, key: str | None = None) -> AsyncIterator[None]:
        """Raises TooManyRequests while this project has one already, unless it is the same request, by its idempotency
        key: that one waits, and then has to look for the first answer."""
        while project_id in self._busy:
            mine, end = self._busy[project_id]
            if key is not None and key == mine:
                await end.wait()
                continue
            raise TooManyRequests(
                f"this project has another {self._what} under way, and one at a time is done; ask again when it is",
                retry_after_ms=_AGAIN_MS,
            )
        ended = asyncio.Event()
        self._busy[project_id] = key, ended
        try:
            async with self._places:
                yield
        finally:
            del self._busy[project_id]
            ended.set()


async def work_apart(work: Callable[[Question], Answer], question: Question, bounds: WorkBounds) -> Answer:
    """What `work`, a function of a module, answers. Raises what it raises, and TooLarge beyond the bounds."""
    sent = pickle.dumps((bounds.seconds, bounds.memory_bytes, work, question))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-c",
        _SERVE,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=_environment(),
    )
    try:
        async with asyncio.timeout(bounds.seconds):
            told, _ = await process.communicate(sent)
    except TimeoutError:
        raise _beyond(bounds, f"{bounds.seconds:g} seconds") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    answer: Answer = _read(told, bounds)
    return answer


def _read(told: bytes, bounds: WorkBounds) -> Any:  # whatever the work's answer is
    if not told:  # killed by what it took, or by somebody
        raise _beyond(bounds, _room(bounds))
    kind, content = pickle.loads(told)  # noqa: S301 - written by our own process
    if kind == _NO_MEMORY:
        raise _beyond(bounds, _room(bounds))
    if kind == _FAILED:
        raise content
    return content


def _room(bounds: WorkBounds) -> str:
    return f"{bounds.memory_bytes // 2**20} MiB of memory or {bounds.seconds:g} seconds"


def _beyond(bounds: WorkBounds, limit: str) -> TooLarge:
    return TooLarge(f"{bounds.what} takes more than the {limit} that it may have here; {bounds.instead}")


def _environment() -> dict[str, str]:
    """No secret of the service's is in it."""
    kept = {name: os.environ[name] for name in _HANDED_ON if name in os.environ}
    return {**kept, "PYTHONPATH": os.pathsep.join(one for one in sys.path if one), **_ALONE}


def serve() -> None:
    """In the process: one question from the standard input, its answer to the standard output."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed meanwhile is no part of the answer
    os.nice(_GIVES_WAY)
    seconds, memory_bytes, work, question = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the service
    whole = int(seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (whole, whole + 1))  # also where the service is gone
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    with answers:
        answers.write(_answer(work, question))


def _answer(work: Callable[[Any], Any], question: Any) -> bytes:
    try:
        return pickle.dumps((_DONE, work(question)))
    except MemoryError:
        return pickle.dumps((_NO_MEMORY, None))
    except AllpassError as error:
        return pickle.dumps((_FAILED, error))
    except Exception as error:  # a bug: whoever reads the service's log is told
        return pickle.dumps((_FAILED, InvariantBroken(f"{type(error).__name__}: {error}")))
