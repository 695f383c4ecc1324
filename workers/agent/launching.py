"""The processes of one run: installers, one that stood by, and the user's. One at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, ContextManager, Dict, Optional, Sequence

from workers.agent.command import Script
from workers.agent.machine import Machine
from workers.agent.process import Ended, Process, Standby
from workers.agent.spares import Spare
from workers.agent.warming import Warm
from workers.agent.workspace import Workspace, bare_environ

Output = Callable[[bytes], None]


class Launcher:
    """`lock` is held, and `check_wanted` asked, whenever a process begins: a kill finds either none, and none will
    start, or this one. `output` gets what user code writes. `spare`: a process that stood by for such a run. `shares`:
    another run has the same user.

    All but `kill` is called from the run's own thread.
    """

    def __init__(
        self,
        machine: Machine,
        workspace: Workspace,
        output: Output,
        spare: Optional[Spare],
        lock: ContextManager[Any],
        check_wanted: Callable[[], None],
        *,
        shares: bool,
    ) -> None:
        self._shares = shares
        self._machine = machine
        self._workspace = workspace
        self._output = output
        self._spare = spare
        self._lock = lock
        self._check_wanted = check_wanted
        self._standby: Optional[Standby] = None  # for the user's
        self._warm: Optional[Warm] = None  # of a run that stands by
        self._process: Optional[Process] = None  # guarded by the lock

    def get_ready(self) -> None:
        """A guard takes a while to start."""
        self._standby = Standby(self._machine.guard)

    def install(self, argv: Sequence[str], environ: Dict[str, str], output: Output) -> Ended:
        """Run an installer, or a question to a Python, as the run's user."""
        full = {**bare_environ(self._workspace), **environ}
        ended = self._launch(argv, full, self._workspace.home, output, umask=0o022).wait()
        self._check_wanted()
        return ended

    def warm_up(self, script: Script, environ: Dict[str, str]) -> Warm:
        """Load what the script will import; no line of it runs."""

        def launch(argv: Sequence[str], standby: Standby) -> Process:
            return self._launch(argv, environ, self._workspace.code, self._output, umask=0o077, standby=standby)

        self._warm = Warm(self._machine.guard, self._machine.warm, self._workspace, script, launch)
        return self._warm

    def start(self, argv: Sequence[str], environ: Dict[str, str], output: Output) -> Process:
        """The user's, in a process that stood by for it if there is one. The lock is held."""
        return (
            self._begin_warm(environ) or self._begin_spare(argv, environ, output) or self._begin(argv, environ, output)
        )

    def start_again(self, argv: Sequence[str], environ: Dict[str, str], output: Output) -> Process:
        """The user's, when the one before has ended. The lock is held."""
        return self._begin(argv, environ, output)

    def kill(self) -> None:
        """The lock is held."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """What stands by still is not needed any more."""
        standby, self._standby = self._standby, None
        if standby is not None:
            standby.dismiss()
        self._dismiss_warm()

    def _begin_warm(self, environ: Dict[str, str]) -> Optional[Process]:
        """The process that stood by, now running the script; None when there is none, or none any more."""
        if self._warm is None:
            return None
        if self._warm.begin(environ):
            process, self._warm = self._warm.process, None
            return process
        self._dismiss_warm()
        return None

    def _begin_spare(self, argv: Sequence[str], environ: Dict[str, str], output: Output) -> Optional[Process]:
        """The process that stood by for such a run, now this one; None when there is none, or it cannot be."""
        spare = self._spare
        if spare is None:
            return None
        if not spare.begin(list(argv), environ, self._workspace.code, output):
            spare.close()
            return None
        self._process = spare.process
        return spare.process

    def _begin(self, argv: Sequence[str], environ: Dict[str, str], output: Output) -> Process:
        standby, self._standby = self._standby, None
        return self._launch(argv, environ, self._workspace.code, output, umask=0o077, standby=standby)

    def _dismiss_warm(self) -> None:
        warm, self._warm = self._warm, None
        if warm is not None:
            warm.close()
            warm.process.kill()
            warm.process.wait()

    def _launch(
        self,
        argv: Sequence[str],
        environ: Dict[str, str],
        cwd: Path,
        output: Output,
        *,
        umask: int,
        standby: Optional[Standby] = None,
    ) -> Process:
        with self._lock:
            self._check_wanted()
            self._process = Process(
                argv,
                guard=self._machine.guard,
                environ=environ,
                cwd=cwd,
                user=self._machine.users.user(self._workspace.uid, alone=not self._shares),
                output=output,
                umask=umask,
                standby=standby,
            )
            return self._process
