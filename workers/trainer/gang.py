"""The other processes of a training on several GPUs: started by the first one, which they neither outlive nor leave.

The first process is the job's own. It alone has a session that tells anything: it hears that it is to stop, saves,
reports and exports; the others (`follower`) take their parts of each step until it is gone. So nothing has to be agreed
on before a job leaves: the step that the first process has saved is the step at which all leave. Whatever else ends one
of them ends all, at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from allpass.recipe.settings import Recipe
from allpass.training.session import EXIT_STOPPED, Session
from workers.trainer.ranks import Join, ManyRanks, RankFailed, Ranks, alone
from workers.trainer.stillness import Presence, Stillness

VISIBLE = "CUDA_VISIBLE_DEVICES"
_COMMAND = (sys.executable, "-m", "workers.trainer.follower")
_END_S = 1.0  # for a process to leave by itself: it has nothing to lose
_LOSS_S = 5.0  # for one that is gone to be found gone
_LOOK_S = 1.0  # between two looks whether anything moves
_HELD_SIGNALS = {signal.SIGTERM, signal.SIGINT}  # which are the first process's to heed


def own_gpus(session: Session) -> tuple[str, ...]:
    """A name for each process that the job is to have, and this process narrowed to the first of them: to be called
    before CUDA is. Of played GPUs too, which are processors."""
    visible = [name for one in os.environ.get(VISIBLE, "").split(",") if (name := one.strip())]
    count = max(1, int((session.template().get("gpu") or {}).get("count") or 1))
    names = tuple(visible[:count] or map(str, range(count)))
    if visible:
        os.environ[VISIBLE] = names[0]
    return names


@contextlib.contextmanager
def gathered(folder: Path, recipe: Recipe, session: Session, gpus: Sequence[str]) -> Iterator[Join]:
    """While this lasts there is a process for each of `gpus`, and this one may join the others when it has loaded. Of
    one, nothing is started."""
    if len(gpus) == 1:
        yield alone
        return
    gang = Gang(folder, recipe, gpus)
    try:
        gang.start(session.environment)
        yield gang.join
    except RuntimeError as error:
        if not isinstance(error, (RankFailed, torch.cuda.OutOfMemoryError)):
            gang.await_loss()  # the way to another process broke: what ended that one is the reason
        raise
    finally:
        gang.close()


class Gang:
    """What the first process has of the others."""

    def __init__(self, folder: Path, recipe: Recipe, gpus: Sequence[str]) -> None:
        self.count = len(gpus)
        self._folder = folder
        self._recipe = replace(recipe, wandb=None, push_to=None)
        self._gpus = tuple(gpus)
        self._place = Path(tempfile.mkdtemp(prefix="allpass-ranks-"))
        self._members: list[RankProcess] = []
        self._watching: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._is_over = False
        self._closing = threading.Event()
        self._presence = Presence(self._place / "presence", 0, self.count)
        self._ranks: Ranks | None = None

    def start(self, environment: Mapping[str, str]) -> None:
        """The others begin to load. Raises OSError where there can be no more processes."""
        for rank in range(1, self.count):
            order = {
                "folder": str(self._folder),
                "recipe": self._recipe.parameters(),
                "rank": rank,
                "count": self.count,
                "meeting": str(self._meeting),
                "presence": str(self._place / "presence"),
            }
            self._members.append(RankProcess(order, {**os.environ, **environment, VISIBLE: self._gpus[rank]}))
        self._watching = [threading.Thread(target=self._watch, args=(one,), daemon=True) for one in self._members]
        self._watching.append(threading.Thread(target=self._watch_all, daemon=True))
        for thread in self._watching:
            thread.start()

    def join(self, device: Any) -> Ranks:
        """This process as the first of them, once all are there."""
        self._ranks = ManyRanks(0, self.count, self._meeting, device, self._presence)
        return self._ranks

    def await_loss(self) -> None:
        """Return when no process was lost after all: else this one ends here."""
        time.sleep(_LOSS_S)

    def close(self) -> None:
        """Return when the others are gone."""
        with self._lock:
            self._is_over = True
        self._closing.set()
        for member in self._members:
            member.let_go()
        for member in self._members:
            member.end(_END_S)
        for thread in self._watching:
            thread.join(_END_S)
        if self._ranks is not None:
            self._ranks.abandon()
        shutil.rmtree(self._place, ignore_errors=True)

    @property
    def _meeting(self) -> Path:
        return self._place / "meeting"

    def _watch(self, member: RankProcess) -> None:
        """In a thread. One that ends before the first process does has failed, whatever it says; whoever waits for it
        in the middle of a step would do so for ever."""
        code = member.wait()
        self._end(f"rank {member.rank} of {self.count} {member.in_words(code)}", _as_exit_code(code))

    def _watch_all(self) -> None:
        """In a thread. One that is there and hangs would have the others wait for ever."""
        stillness, last_s = Stillness(), time.monotonic()
        while not self._closing.wait(_LOOK_S):
            now_s = time.monotonic()
            passed_s, last_s = min(now_s - last_s, 2 * _LOOK_S), now_s  # more: the whole job, or its host, was halted
            why = stillness.look(self._presence.doing, self._presence.arrived, passed_s)
            if why is not None:
                self._end(why, 1)

    def _end(self, why: str, code: int) -> None:
        """All of it, this process too, with these as its last words; unless it is over anyway."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            for member in self._members:
                member.end(0.0)
            shutil.rmtree(self._place, ignore_errors=True)
            sys.stdout.flush()
            _write(f"error: {why}: the others were ended")
            os._exit(code)


class RankProcess:
    """One of the other processes. Its errors and warnings are told line by line, with its rank; it says nothing else
    that the first one does not say as well."""

    def __init__(self, order: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self.rank = order["rank"]
        self._last: deque[str] = deque(maxlen=1)
        held = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_SIGNALS)  # inherited, and never given up there
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own
                _COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environment,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its end is told
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()

    def wait(self) -> int:
        """Until it is over; tells meanwhile what it says."""
        assert self._process.stderr is not None
        with self._process.stderr as pipe:
            for data in pipe:
                line = data.decode(errors="replace").rstrip()
                if line:
                    self._last.append(line)
                    _write(f"rank {self.rank}: {line}")
        return self._process.wait()

    def let_go(self) -> None:
        """The end of its input is the end of its work."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def end(self, patience_s: float) -> None:
        """It is gone after so many seconds, and at once then; but for one whose GPU does not let go of it."""
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LOSS_S)

    def in_words(self, code: int) -> str:
        """How it ended, with its last words."""
        if code < 0:
            return f"was killed ({signal.Signals(-code).name})"
        last = "".join(self._last)
        return f"ended with code {code} before the training did{f', {last}' if last else ''}"


def _as_exit_code(code: int) -> int:
    """As a shell tells of a child; never as if the job had ended, or been asked to leave."""
    if code < 0:
        return 128 - code
    return 1 if code in (0, EXIT_STOPPED) else code


def _write(line: str) -> None:
    """At once, so that no two lines are mixed."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
