"""What the next jobs of this machine will need, fetched while others run: their code, environment and base model.

The server's advice is no order: nothing here is needed, and whatever fails or is given up costs what it would have
saved. One thing is fetched at a time, and nothing is begun while a run is being prepared. When a run begins, what is
under way goes on if the run needs just that (all are made in turns, so that it waits, and finds it), and is given up if
not.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sys
import threading
import time
from dataclasses import replace
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set

from workers.agent.environment import Builder, EnvironmentNeed, forget_unused
from workers.agent.errors import Aborted, AgentError, MachineFailed
from workers.agent.files import Piece
from workers.agent.machine import Machine
from workers.agent.models import model_of
from workers.agent.process import Ended, Process
from workers.agent.transfer import fetch
from workers.agent.workspace import Workspace, bare_environ

NICE = 15
MOST_UNUSED = 2  # environments that no run has asked for yet
LEAST_FREE_BYTES = 4 * 1024**3  # of the disk, for an environment: libraries for GPUs take gigabytes
RETRY_S = 600.0
_SAID_BYTES = 2000  # of a program's last words
_QUIETLY = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
_counter = itertools.count(1)


class Item(NamedTuple):
    """A thing that jobs need. `what`: bundle or environment, by the name of its hash, or model, by the hub's."""

    what: str
    project_id: str
    name: str


def items_of(spec: Mapping[str, Any]) -> List[Item]:
    """What a run or a job to come needs, in the order in which it needs it."""
    environment = EnvironmentNeed.of(spec).name if spec["pip"] else None
    named = [("bundle", spec["bundle_sha256"]), ("environment", environment), ("model", model_of(spec))]
    return [Item(what, spec["project_id"], name) for what, name in named if name is not None]


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

    def __init__(self, machine: Machine, is_busy: Callable[[], bool]) -> None:
        self._machine = machine
        self._is_busy = is_busy
        self._lock = threading.RLock()  # guards all below, and what errands have; never held while asking `is_busy`
        self._advice: List[Mapping[str, Any]] = []
        self._errand: Optional[Errand] = None
        self._done: Set[Item] = set()  # environments and models that are known to be there
        self._failed: Dict[Item, float] = {}  # until when they are left alone
        self._closing = threading.Event()

    def tell(self, advice: Sequence[Mapping[str, Any]]) -> None:
        """What may be fetched from now on, the likeliest first; what is none of it is given up."""
        with self._lock:
            self._advice = list(advice)
            wanted = {item for job in advice for item in items_of(job)}
            self._done &= wanted
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
            self._closing.set()
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
            if self._errand is not None or self._closing.is_set():
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
                if item in self._failed:
                    if item.what == "environment":
                        break  # what comes after it needs it
                elif item not in self._done and not self._is_here(item):
                    yield Errand(item, job)

    def _is_here(self, item: Item) -> bool:
        """As far as that is known elsewhere; a model that would not be kept is none to fetch."""
        if item.what == "bundle":
            return self._machine.contents.has(item.project_id, item.name)
        return item.what == "model" and not self._machine.models.keeps

    def _run(self, errand: Errand) -> None:
        """In a thread of its own."""
        failed = True
        workspace = Workspace(self._machine.config.root, f"prefetch-{os.getpid()}-{next(_counter)}", None)
        try:
            if errand.item.what != "bundle":  # nobody's code runs for that
                workspace = replace(workspace, uid=self._machine.users.take())
            workspace.create({"parameters": {}, "template": {}})
            workspace.hand_over()
            steps = {"bundle": self._fetch_code, "environment": self._build, "model": self._fetch_model}
            steps[errand.item.what](errand, workspace)
            failed = False
        except Aborted:
            failed = False
        except (AgentError, OSError) as error:
            print(f"allpass agent: not fetched ahead: {errand.item.what}: {error}", file=sys.stderr)
        finally:
            workspace.remove()
            self._machine.users.give_back(workspace.uid)
            with self._lock:
                self._errand = None
                if failed:
                    self._failed[errand.item] = time.monotonic() + RETRY_S
        self._go_on()

    def _fetch_code(self, errand: Errand, workspace: Workspace) -> None:
        contents, item = self._machine.contents, errand.item
        piece = Piece("bundle", item.name, errand.job["bundle_size_bytes"])
        file = workspace.spool / piece.path
        with contents.turn(item.project_id, item.name, errand.gone):
            if contents.has(item.project_id, item.name):
                return
            if not contents.has_room(piece.size_bytes):
                raise MachineFailed("there is no room for it")
            fetch(self._machine.transport, errand.job["bundle_url"], piece, file, errand.gone)
            contents.keep(item.project_id, item.name, file)
            if not contents.has(item.project_id, item.name):
                raise MachineFailed("it could not be kept")

    def _build(self, errand: Errand, workspace: Workspace) -> None:
        config = self._machine.config
        with contextlib.suppress(OSError):
            forget_unused(config.cache, MOST_UNUSED - 1)
        if shutil.disk_usage(config.cache).free < LEAST_FREE_BYTES:
            raise MachineFailed("there is no room for it")
        self._python_for(errand, workspace)
        with self._lock:
            self._done.add(errand.item)

    def _fetch_model(self, errand: Errand, workspace: Workspace) -> None:
        """With the job's own libraries, and without a token: a model that needs one is left to the job."""
        models, item = self._machine.models, errand.item
        said = b""

        def note(data: bytes) -> None:
            nonlocal said
            said = (said + data)[-_SAID_BYTES:]

        with models.turn(item.project_id, item.name, errand.gone):
            models.lend(item.project_id, workspace)
            python = self._python_for(errand, workspace)
            argv = [python, "-I", str(self._machine.hub_ahead), item.name, str(models.room_bytes())]
            try:
                ended = self._execute(errand, workspace, argv, _QUIETLY, note)
            finally:  # what is whole is kept, whatever becomes of the rest
                models.gather(item.project_id, workspace, self._closing)
        if ended.exit_code != 0:
            raise MachineFailed(said.decode("utf-8", "replace").strip().rpartition("\n")[2])
        with self._lock:
            self._done.add(item)

    def _python_for(self, errand: Errand, workspace: Workspace) -> str:
        config = self._machine.config

        def execute(argv: Sequence[str], environ: Dict[str, str], output: Callable[[bytes], None]) -> Ended:
            return self._execute(errand, workspace, argv, environ, output)

        builder = Builder(
            python=config.python,
            check=self._machine.check,
            cache=config.cache,
            uid=workspace.uid,
            run=execute,
            log=lambda _: None,
            say=lambda _: None,
            gone=errand.gone,
            shipped=self._machine.shipped,
            ahead=True,
        )
        return builder.python_for(EnvironmentNeed.of(errand.job))

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
                user=self._machine.users.user(workspace.uid),
                output=output,
                umask=0o022,
                nice=0 if errand.is_claimed else NICE,
            )
        ended = errand.process.wait()
        errand.check()
        return ended
