"""Independent calculations side by side, in processes of their own; the results come in the order of the questions."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from app.errors import AllpassError

Question = TypeVar("Question")
Answer = TypeVar("Answer")
Told = Callable[[int, float], None]  # the place of a question, and the share of it that is done
DONE, FAILED, PART = "done", "failed", "part"


class WorkersLost(AllpassError):
    """A process ended without an answer: it was killed, or memory ran out."""

    code = "simulation_lost"


def answer_all(
    work: Callable[[Question, Callable[[float], None]], Answer],
    questions: Sequence[Question],
    processes: int,
    told: Told,
) -> list[Answer]:
    """`work` on each question, in at most so many processes; with one, in this process. What it raises is raised here.

    `work` tells what share of it is done through its second argument. No process is left behind, whatever happens.
    """
    if processes <= 1 or len(questions) <= 1:
        # Mypy cannot follow a default that binds a loop's value.
        return [work(one, lambda share, place=place: told(place, share)) for place, one in enumerate(questions)]  # type: ignore[misc]
    return _ProcessPool(work, questions, told).run(min(processes, len(questions)))


def usual_processes() -> int:
    """As many as this process may use cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _ProcessPool:
    def __init__(self, work: Any, questions: Sequence[Any], told: Told) -> None:
        self._work, self._questions, self._told = work, questions, told
        self._answers: dict[int, Any] = {}
        self._next = 0
        self._context = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks

    def run(self, processes: int) -> list[Any]:
        started: list[tuple[Any, Connection]] = []
        resource_tracker.ensure_running()  # its start, else part of the first process's, lets Ctrl-C through again
        try:
            for _ in range(processes):
                here, there = self._context.Pipe()
                process = self._context.Process(target=_serve, args=(self._work, there), daemon=True)
                with _ctrl_c_held():
                    process.start()
                there.close()
                started.append((process, here))
                self._ask(here)
            self._listen([here for _, here in started])
        finally:
            for process, here in started:
                here.close()
                process.kill()
                process.join()
                process.close()
        return [self._answers[place] for place in range(len(self._questions))]

    def _ask(self, here: Connection) -> None:
        if self._next < len(self._questions):
            here.send((self._next, self._questions[self._next]))
            self._next += 1

    def _listen(self, pipes: list[Connection]) -> None:
        while len(self._answers) < len(self._questions):
            for pipe in wait(pipes):
                assert isinstance(pipe, Connection)
                try:
                    kind, place, content = pipe.recv()
                except EOFError:
                    raise WorkersLost(
                        "a simulating process was ended from outside, or ran out of memory; simulate fewer jobs at once"
                    ) from None
                if kind == PART:
                    self._told(place, content)
                elif kind == FAILED:
                    raise content
                else:
                    self._answers[place] = content
                    self._told(place, 1.0)
                    self._ask(pipe)


@contextmanager
def _ctrl_c_held() -> Iterator[None]:
    """A process that is started meanwhile never gets it, not even while it loads: Ctrl-C is for us, who end it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(work: Any, pipe: Connection) -> None:
    """In the process: questions in, answers out, until the pipe closes."""
    try:
        while True:
            place, question = pipe.recv()
            try:
                answer = work(question, lambda share, place=place: pipe.send((PART, place, share)))
            except Exception as error:
                pipe.send((FAILED, place, error))
            else:
                pipe.send((DONE, place, answer))
    except (EOFError, OSError):
        return
