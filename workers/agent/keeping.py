"""What a run leaves behind, on its way to the store: a little while it runs, the rest when its processes are gone.

Passes while it runs store what a machine that vanishes would take along, and shorten the end, which is paid for. One
comes before each checkpoint counts: a run that goes on from that writes none of what lay beside it again. Only the last
pass tells the job's owner what was left behind. Whatever fails here changes nothing of how the run ended.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import traceback
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence, Tuple

from workers.agent.api import Writer
from workers.agent.errors import Aborted, AgentError, Fenced, Forgotten, Unsafe
from workers.agent.files import Piece
from workers.agent.machine import Machine
from workers.agent.outputs_kept import OutputCollector, OutputSummary, OutputWish
from workers.agent.patience import patiently
from workers.agent.refusals import Refusals
from workers.agent.results import MOST_TOLD, LeftOut, gathered
from workers.agent.storing import File, Storing, Until
from workers.agent.transfers import Transfers
from workers.agent.workspace import Workspace

GROWING_BYTES = 16 * 1024 * 1024  # a larger file is kept early only when it stays as it is
EARLY_BYTES = 1024**3  # the largest file that is kept while the run goes on
_SHARE = 4  # passes take a fifth of the time at most
BATCH_BYTES = 256 * 1024 * 1024  # of the last pass, which registers what has arrived before it sends more
REGISTER_S = 5.0  # between two times
KEEP_UP_S = 10.0  # that a checkpoint waits for what lies beside it
_BRIEF_S = 1.0  # a pass that is over so soon may come before every checkpoint
LONGEST_S = 1800.0  # for what nobody has named
LAST_S = 10.0
SECONDS_S = 5.0  # of a machine that is taken away


class Keeper:
    """Of one run. `remember` what its folder holds before any of its code runs, `start`, `keep_up` before a checkpoint
    counts, and `finish` when its processes are gone. From any thread: `hurry` when it is asked to leave, `hasten` when
    its machine is taken away, `abandon` when nothing is wanted any more."""

    def __init__(
        self,
        spec: Mapping[str, Any],
        writer: Writer,
        machine: Machine,
        workspace: Workspace,
        say: Callable[[str], None],
        forgotten: threading.Event,
        transfers: Transfers,
    ) -> None:
        self._wish = OutputWish.of(spec)
        self._writer = writer
        self._machine = machine
        self._workspace = workspace
        self._say = say
        self._transfers = transfers
        self._leftovers = OutputCollector(workspace, self._wish)
        self._stored: Dict[str, Piece] = {}  # as the server knows it
        self._seen: Dict[str, File] = {}  # by the pass before
        self._storing = Storing(machine, writer)
        self._early = Until(forgotten)
        self._late = Until(forgotten)
        self._last = Until(forgotten, LAST_S)  # to tell what was kept, when the time for more is over
        self._beside: Optional[Until] = None  # of a pass that a checkpoint waits for
        self._hurried = threading.Event()
        self._pass = threading.Lock()  # one at a time
        self._pass_s = self._passed_s = 0.0  # how long the last one took, and when it was over
        self._forgotten = forgotten
        self._hasty = self._finishing = False
        self._thread: Optional[threading.Thread] = None

    def remember(self) -> None:
        self._leftovers.remember()

    def start(self) -> None:
        if self._wish is not None:
            self._thread = threading.Thread(target=self._work, name="results", daemon=True)
            self._thread.start()

    def keep_up(self) -> None:
        """A checkpoint is about to count. Returns when what lies in the folder now is kept, as far as passes go, or
        when there is no time for that. Never raises."""
        until = self._beside = Until(self._forgotten)
        until.hasten(KEEP_UP_S)
        is_long = self._pass_s > _BRIEF_S and time.monotonic() - self._passed_s < _SHARE * self._pass_s
        if self._wish is not None and not is_long and not self._hurried.is_set():
            self._pass_early(until, waits_s=KEEP_UP_S)

    def hurry(self) -> None:
        """What is under way gives way to the final checkpoint."""
        self._hurried.set()
        self._early.set()
        if self._beside is not None:
            self._beside.set()

    def hasten(self) -> None:
        """There are seconds, counted from when its processes are gone."""
        self._hasty = True
        if self._finishing:
            self._late.hasten(SECONDS_S)

    def abandon(self) -> None:
        self.hurry()
        self._late.set()
        self._last.set()

    def finish(self, step: int, *, succeeded: bool) -> None:
        """Keep what there is to keep now. Returns when it is safe, or was given up, and that was told."""
        self.hurry()
        if self._thread is not None:
            self._thread.join()
        if self._wish is None and not succeeded:
            return
        self._late.progress()
        self._finishing = True
        if self._hasty:
            self.hasten()
        refusals = Refusals(self._machine.api, self._writer, self._say, self._late)
        try:
            with self._pass:
                self._keep(refusals, step)
        except (Aborted, Fenced, Forgotten):
            self._say("nothing more of what the run left in its folders is kept: it was given up")
        except (AgentError, OSError) as error:
            refusals.tell("output", "the output directory", step, error)
        except Exception as error:  # whatever it was: the end of the run stays what it is
            traceback.print_exc(file=sys.stderr)
            refusals.tell("output", "the output directory", step, Unsafe(f"the agent failed: {type(error).__name__}"))

    # The passes

    def _work(self) -> None:
        every_s = 0.0 if self._wish is None else self._wish.every_s
        pause_s = every_s
        while not self._hurried.wait(pause_s):
            self._early.progress()
            self._pass_early(self._early)
            pause_s = max(every_s, _SHARE * self._pass_s)

    def _pass_early(self, until: Until, *, waits_s: float = -1) -> None:
        """A later pass, or the last one, tries again whatever fails in this one. `waits_s`: for another one."""
        if not self._pass.acquire(timeout=waits_s):
            return
        begun_s = time.monotonic()
        try:
            self._keep_early(until)
        except (AgentError, OSError):
            pass
        except Exception:  # whatever it was: neither passes nor checkpoints end with it
            traceback.print_exc(file=sys.stderr)
        finally:
            self._passed_s = time.monotonic()
            self._pass_s = self._passed_s - begun_s
            self._pass.release()

    def _keep_early(self, until: Until) -> None:
        """What is small, or has stayed as it is since the last pass."""
        files, left = self._leftovers.look(OutputSummary())
        seen, self._seen = self._seen, files
        settled = {
            path: file
            for path, file in files.items()
            if file.mark.size_bytes <= GROWING_BYTES or (file.mark.size_bytes <= EARLY_BYTES and seen.get(path) == file)
        }
        ready, _ = self._storing.read(settled, until)
        failed = self._storing.store(ready, self._stored.values(), until)
        kept = self._known_of(files)
        kept.update({path: one.piece for path, one in ready.items() if path not in failed})
        if kept != self._stored:
            patiently(lambda: self._report(kept, left, final=False), until)

    def _keep(self, refusals: Refusals, step: int) -> None:
        """The last pass."""
        output = OutputSummary()
        files, left = self._leftovers.look(output)
        if self._wish is not None and not self._wish.named and not output.files:
            self._late.hasten(LONGEST_S)
        kept, lost = self._send(files, left)
        output.whys += [why for path, why in lost.items() if files[path].folder == self._workspace.output]
        if output.whys:
            more = f", and {len(output.whys) - 1} more like it" if len(output.whys) > 1 else ""
            refusals.tell("output", "all of the output directory", step, Unsafe(output.whys[0] + more))
        left = gathered(
            [*left, *(LeftOut(path, files[path].mark.size_bytes, 1, why) for path, why in lost.items())], kept
        )
        if kept or self._wish is not None:
            until = self._last if self._late.is_set() else self._late
            until.progress()
            patiently(lambda: self._report(kept, left, final=True), until)
        if kept:
            self._say("1 output file is stored" if len(kept) == 1 else f"{len(kept)} output files are stored")
        for one in left[:MOST_TOLD]:
            self._say(f"left behind: {one.told()}")

    def _send(self, files: Mapping[str, File], left: Sequence[LeftOut]) -> Tuple[Dict[str, Piece], Dict[str, str]]:
        """What is kept, and why not, of the others. The small ones go first, and what has arrived is registered before
        the rest: a machine that ends meanwhile takes only that along."""
        kept = self._known_of(files)
        lost: Dict[str, str] = {}
        registered_s = time.monotonic()
        sending = self._transfers.begin("send", sum(file.mark.size_bytes for file in files.values()))
        try:
            for batch in _batches(files):
                ready, unread = self._storing.read(batch, self._late)
                failed = self._storing.store(ready, self._stored.values(), self._late, sending.advance)
                kept.update({path: one.piece for path, one in ready.items() if path not in failed})
                for path, why in {**unread, **failed}.items():
                    lost[path] = self._lost(path, batch[path], why, kept)
                if self._wish is not None and time.monotonic() - registered_s >= REGISTER_S:
                    registered_s = time.monotonic()
                    with contextlib.suppress(Aborted, OSError):
                        patiently(lambda: self._report(kept, left, final=False), self._late)
        finally:
            self._transfers.over(sending)
        return kept, lost

    def _lost(self, path: str, file: File, why: str, kept: Dict[str, Piece]) -> str:
        """Why the file is not kept as it is. As it was before, it is, unless it was removed."""
        if path not in kept:
            return why
        if not (file.folder / path).exists():
            del kept[path]
            return why
        return f"{why}; an earlier state of it is kept"

    def _known_of(self, files: Mapping[str, File]) -> Dict[str, Piece]:
        """Of these, what the server was told of already."""
        return {path: piece for path, piece in self._stored.items() if path in files}

    def _report(self, kept: Mapping[str, Piece], left: Sequence[LeftOut], *, final: bool) -> None:
        told: Dict[str, Any] = {}
        if self._wish is not None:
            told = {
                "joins": True,
                "final": final,
                "left": [one.as_wire() for one in left[:MOST_TOLD]],
                "left_files": sum(one.files for one in left),
                "left_bytes": sum(one.size_bytes for one in left),
            }
        self._machine.api.artifacts(self._writer, [piece.as_wire() for piece in kept.values()], told)
        self._stored = dict(kept)


def _batches(files: Mapping[str, File]) -> Iterator[Dict[str, File]]:
    """Small ones first."""
    batch: Dict[str, File] = {}
    size_bytes = 0
    for path, file in sorted(files.items(), key=lambda one: one[1].mark.size_bytes):
        if batch and size_bytes + file.mark.size_bytes > BATCH_BYTES:
            yield batch
            batch, size_bytes = {}, 0
        batch[path] = file
        size_bytes += file.mark.size_bytes
    if batch:
        yield batch
