"""What the next jobs of this machine will need, fetched while others run: their code, and their environment.

The server's advice is no order: nothing here is needed, and whatever fails or is given up costs what it would have
saved. One thing is fetched at a time, and nothing is begun while a run is being prepared. When a run begins, what is
under way goes on if the run needs just that (contents and environments are made in turns, so that it waits, and finds
it), and is given up if not.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set

from workers.agent.environment import Builder, Need, forget_unused
from workers.agent.errors import Aborted, AgentError, MachineFailed
from workers.agent.files import Piece
from workers.agent.machine import Machine
from workers.agent.process import Ended, Process
from workers.agent.transfer import fetch
from workers.agent.workspace import Workspace, bare_environ

NICE = 15
MOST_UNUSED = 2  # environments that no run has asked for yet
LEAST_FREE_BYTES = 4 * 1024**3  # of the disk, for an environment: libraries for GPUs take gigabytes
RETRY_S = 600.0
_counter = itertools.count(1)


class Item(NamedTuple):
    """A thing that jobs need: `what` is bundle or environment, `sha256` which."""

    what: str
    project_id: str
    sha256: str


def items_of(spec: Mapping[str, Any]) -> List[Item]:
    """What a run or a job to come needs, in the order in which it needs it."""
    items = [Item("bundle", spec["project_id"], spec["bundle_sha256"])]
    return [*items, Item("environment", spec["project_id"], spec["environment_sha256"])] if spec["pip"] else items


class Errand:
    """One item that is being fetched."""

    def __init__(self, item: Item, job: Mapping[str, Any]) -> None:
        self.item = item
        self.job = job
        self.gone = threading.Event()
        self.is_claimed = False  # by a run that begins
        self.process: Optional[Process] = None
        self.thread: Optional[threading.Thread] = None

    def claim(self) -> None:
        self.is_claimed = True
        if self.process is not None:
            self.process.hasten()

    def give_up(self) -> None:
        self.gone.set()
        if self.process is not None:
            self.process.kill()

    def check(self) -> None:
        if self.gone.is_set():
            raise Aborted("no longer wanted")


class Prefetch:
    """Thread-safe. `is_busy`: whether a run of this machine is being prepared."""

    def __init__(self, machine: Machine, is_busy: Callable[[], bool], *, as_user: bool) -> None:
        self._machine = machine
        self._is_busy = is_busy
        self._uid = machine.config.prefetch_uid if as_user else None
        self._lock = threading.RLock()  # guards all below, and what errands have; never held while asking `is_busy`
        self._advice: List[Mapping[str, Any]] = []
        self._errand: Optional[Errand] = None
        self._built: Set[Item] = set()  # environments that are known to be there
        self._failed: Dict[Item, float] = {}  # until when they are left alone
        self._is_closed = False

    def tell(self, advice: Sequence[Mapping[str, Any]]) -> None:
        """What may be fetched from now on, the likeliest first; what is none of it is given up."""
        with self._lock:
            self._advice = list(advice)
            wanted = {item for job in advice for item in items_of(job)}
            self._built &= wanted
            errand = self._errand
            if errand is not None and errand.item not in wanted and not errand.is_claimed:
                errand.give_up()
        self._go_on()

    def begins(self, specs: Iterable[Mapping[str, Any]]) -> None:
        """Runs begin: the machine is theirs."""
        needed = {item for spec in specs for item in items_of(spec)}
        with self._lock:
            if self._errand is not None and self._errand.item in needed:
                self._errand.claim()
            elif self._errand is not None:
                self._errand.give_up()

    def close(self, timeout_s: float = 0.0) -> None:
        """Nothing is fetched any more."""
        with self._lock:
            self._is_closed = True
            errand = self._errand
            if errand is not None:
                errand.give_up()
        if errand is not None and errand.thread is not None:
            errand.thread.join(timeout_s)

    def _go_on(self) -> None:
        """Fetch the first thing that is not here, if nothing is under way."""
        if self._is_busy():
            return
        with self._lock:
            if self._errand is not None or self._is_closed:
                return
            self._errand = next(self._lacking(), None)
            if self._errand is not None:
                thread = threading.Thread(target=self._run, args=(self._errand,), name="prefetch", daemon=True)
                self._errand.thread = thread
                thread.start()

    def _lacking(self) -> Iterator[Errand]:
        now = time.monotonic()
        self._failed = {item: until for item, until in self._failed.items() if until > now}
        for job in self._advice:
            for item in items_of(job):
                if item not in self._failed and item not in self._built and not self._is_here(item):
                    yield Errand(item, job)

    def _is_here(self, item: Item) -> bool:
        return item.what == "bundle" and self._machine.contents.has(item.project_id, item.sha256)

    def _run(self, errand: Errand) -> None:
        """In a thread of its own."""
        failed = True
        workspace = Workspace(self._machine.config.root, f"prefetch-{os.getpid()}-{next(_counter)}", self._uid)
        try:
            workspace.create({"parameters": {}, "template": {}})
            workspace.hand_over()
            if errand.item.what == "bundle":
                self._fetch_code(errand, workspace)
            else:
                self._build(errand, workspace)
            failed = False
        except Aborted:
            failed = False
        except (AgentError, OSError) as error:
            print(f"allpass agent: not fetched ahead: {errand.item.what}: {error}", file=sys.stderr)
        finally:
            workspace.remove()
            with self._lock:
                self._errand = None
                if failed:
                    self._failed[errand.item] = time.monotonic() + RETRY_S
        self._go_on()

    def _fetch_code(self, errand: Errand, workspace: Workspace) -> None:
        contents, item = self._machine.contents, errand.item
        piece = Piece("bundle", item.sha256, errand.job["bundle_size_bytes"])
        file = workspace.spool / piece.path
        with contents.turn(item.project_id, item.sha256, errand.gone):
            if contents.has(item.project_id, item.sha256):
                return
            if not contents.has_room(piece.size_bytes):
                raise MachineFailed("there is no room for it")
            fetch(self._machine.transport, errand.job["bundle_url"], piece, file, errand.gone)
            contents.keep(item.project_id, item.sha256, file)
            if not contents.has(item.project_id, item.sha256):
                raise MachineFailed("it could not be kept")

    def _build(self, errand: Errand, workspace: Workspace) -> None:
        config = self._machine.config
        with contextlib.suppress(OSError):
            forget_unused(config.cache, MOST_UNUSED - 1)
        if shutil.disk_usage(config.cache).free < LEAST_FREE_BYTES:
            raise MachineFailed("there is no room for it")

        def execute(argv: Sequence[str], environ: Dict[str, str], output: Callable[[bytes], None]) -> Ended:
            return self._execute(errand, workspace, argv, environ, output)

        builder = Builder(
            python=config.python,
            check=self._machine.check,
            cache=config.cache,
            uid=self._uid,
            run=execute,
            log=lambda _: None,
            say=lambda _: None,
            gone=errand.gone,
            ahead=True,
        )
        builder.python_for(Need(errand.job["pip"], errand.job["environment_sha256"]))
        with self._lock:
            self._built.add(errand.item)

    def _execute(
        self,
        errand: Errand,
        workspace: Workspace,
        argv: Sequence[str],
        environ: Dict[str, str],
        output: Callable[[bytes], None],
    ) -> Ended:
        with self._lock:  # so that whoever gives it up finds either no process, and none will start, or this one
            errand.check()
            errand.process = Process(
                argv,
                guard=self._machine.guard,
                environ={**bare_environ(workspace), **environ},
                cwd=workspace.home,
                uid=workspace.uid,
                output=output,
                umask=0o022,
                nice=0 if errand.is_claimed else NICE,
            )
        ended = errand.process.wait()
        errand.check()
        return ended
