"""Parts of checkpoints: what each machine of a job on several writes of a step (ADR 0111).

The first machine goes before: it sends its part of the newest step, and goes on to another one when the checkpoint of
that step is complete, or never will be. A further machine sends its part of the step that the first one is at, and of
the newest otherwise; so all of them meet at one step, however much faster they save than they send.
"""

from __future__ import annotations

import sys
import threading
import traceback
from typing import Callable, Dict, Optional, Set

from workers.agent.api import Writer
from workers.agent.checkpoints import inside
from workers.agent.errors import Aborted, AgentError, Fenced, Unsafe
from workers.agent.files import Fence
from workers.agent.machine import Machine
from workers.agent.metric_lines import PART, MetricLine, MetricTail, parse_all
from workers.agent.refusals import Refusals, shown
from workers.agent.transfers import Transfers
from workers.agent.uploading import Candidate, Upload, Way
from workers.agent.workspace import Workspace

LOOK_S = 0.5
_MOST_KEPT = 4  # candidates of a further machine: helpers keep two on the disk
_MARK = PART.encode()


class MemberParts:
    """What a further machine sends, in threads: from `start` until `finish`.

    `wanted`: the step that the first machine is at. `count`: how many machines there are.
    """

    def __init__(
        self,
        machine: Machine,
        writer: Writer,
        workspace: Workspace,
        say: Callable[[str], None],
        gone: threading.Event,
        transfers: Transfers,
        *,
        wanted: Callable[[], Optional[int]],
        count: int,
        on_fenced: Callable[[], None],
    ) -> None:
        self._fence = Fence(workspace.home, workspace.uid)
        self._way = Way(machine.api, machine.transport, writer, self._fence, transfers)
        self._refusals = Refusals(machine.api, writer, say, gone)
        self._folder = workspace.checkpoints
        self._tail = MetricTail(workspace.metrics, self._fence)
        self._say = say
        self._gone = gone
        self._wanted = wanted
        self._count = count
        self._on_fenced = on_fenced
        self._over = threading.Event()  # nothing more is written
        self._changed = threading.Condition()  # guards the next four
        self._saved: Dict[int, Candidate] = {}  # by step, the newest last
        self._done: Set[int] = set()
        self._sending: Optional[Upload] = None
        self._is_read = False  # all that was written
        self._reader = threading.Thread(target=self._read, name="parts", daemon=True)
        self._sender = threading.Thread(target=self._send, name="part", daemon=True)

    def start(self) -> None:
        self._reader.start()
        self._sender.start()

    def finish(self) -> None:
        """Return when what the first machine waits for, and the newest, are stored or given up."""
        self._over.set()
        self._reader.join()
        self._sender.join()

    # The reader's thread

    def _read(self) -> None:
        try:
            is_last = False
            while not is_last:
                is_last = self._over.wait(LOOK_S)
                self._look(final=is_last)
        except Exception:  # whatever it was: `finish` waits for what is known
            traceback.print_exc(file=sys.stderr)
        finally:
            self._tail.close()
            with self._changed:
                self._is_read = True
                self._changed.notify_all()

    def _look(self, *, final: bool) -> None:
        while True:
            try:
                texts = self._tail.read(final=final)
            except (OSError, Unsafe):  # not a file that can be read: no part was announced
                return
            for line in parse_all([text for text in texts if _MARK in text[0]]):
                if isinstance(line, MetricLine) and line.is_part and line.checkpoint is not None:
                    self._take(line.step, line.checkpoint)
            if self._tail.is_through:
                break
        self._turn()

    def _take(self, step: int, name: str) -> None:
        try:
            path = inside(self._folder, name)
        except Unsafe as error:
            self._refusals.tell("checkpoint", f"part {shown(name)}", step, error)
            return
        with self._changed:
            self._saved.pop(step, None)
            self._saved[step] = Candidate(path, step, part_of=self._count)
            self._done.discard(step)
            for old in list(self._saved)[:-_MOST_KEPT]:
                del self._saved[old]

    def _turn(self) -> None:
        """What is sent gives way to what the first machine waits for."""
        with self._changed:
            now, sending = self._next(), self._sending
            if sending is not None and now is not None and now.step == self._wanted() != sending.candidate.step:
                sending.halt.set()
            self._changed.notify_all()

    # The sender's thread

    def _send(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next() is not None or self._is_read)
                candidate = self._next()
                if candidate is None or self._gone.is_set():
                    return
                upload = self._sending = self._upload_of(candidate)
            is_over = self._run(upload)
            with self._changed:
                self._sending = None
                if is_over and self._saved.get(candidate.step) is candidate:
                    self._done.add(candidate.step)

    def _next(self) -> Optional[Candidate]:
        """With the lock."""
        open_ = [step for step in self._saved if step not in self._done]
        wanted = self._wanted()
        if wanted in open_:
            return self._saved[wanted]
        newest = list(self._saved)[-1:]
        return self._saved[newest[0]] if newest and newest[0] in open_ else None

    def _upload_of(self, candidate: Candidate) -> Upload:
        return Upload(
            self._way,
            candidate,
            self._gone,
            take_early=lambda: None,
            is_superseded=lambda: False,
            before_commit=lambda: None,
            on_full=lambda error: self._say(f"its part of step {candidate.step} waits: {error}"),
        )

    def _run(self, upload: Upload) -> bool:
        """Whether it is through, one way or the other: what gave way is not."""
        candidate = upload.candidate
        name = f"its part of step {candidate.step} ({shown(candidate.path.name)})"
        try:
            saved, _ = upload.run()
        except Aborted:
            return self._gone.is_set()
        except Fenced:
            if not upload.halt.is_set():
                self._on_fenced()
            return True
        except (AgentError, OSError) as error:
            if upload.halt.is_set():
                return False
            self._refusals.tell("checkpoint", name, candidate.step, error)
        else:
            self._say(f"{name} is stored ({len(saved.files)} files, {saved.size_bytes:,} bytes)")
        return True
