"""One run, from what the server wants to the report of its end. Each run has a thread that walks through its life;
what the server wants meanwhile arrives from the sync threads.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from typing import Any, Callable, ContextManager, Dict, Mapping, Optional, Sequence

from workers.agent.api import Writer
from workers.agent.arriving import Arriving
from workers.agent.capabilities import capabilities_of
from workers.agent.errors import Aborted, EnvironmentFailed, Fenced, MachineFailed
from workers.agent.fetching import Fetcher, Staged
from workers.agent.gang import GangSeat
from workers.agent.keeping import Keeper
from workers.agent.launching import Launcher
from workers.agent.logs import Log, Shipper
from workers.agent.machine import Machine
from workers.agent.preparing import Ahead, Command, complete, fetch_ahead, lend_models, prepare
from workers.agent.process import Ended, Stoppable
from workers.agent.redaction import Redactor
from workers.agent.spares import Spare, Spares
from workers.agent.spool import LOG_BYTES, Spool
from workers.agent.training import ExitReport, TrainingMeter
from workers.agent.transfers import Transfers
from workers.agent.workspace import MARK, Workspace, first_step, user_environ

SIGKILL, SIGTERM = 9, 15


class Run:
    """`changed(urgent)` is called whenever the report differs from the last one; a new step is not urgent.

    `predecessors`: what must be over before this run's process starts (it may hold the same GPUs). `spare`: a process
    that stood by for such a run, whose user is the run's; `spares`: with what this run may leave one.

    A run that lives otherwise is a class of its own (`companion.py`, `restarting_run.py`), which overrides `held`,
    `_prepare`, `_start`, `_launch_training`, `_await_end`, `_live`, `_await_others` or `_remove`; what only goes on
    beside a run is in `capabilities.py`.
    """

    shares = False  # its process, and so its user, with another run

    def __init__(
        self,
        desired: Mapping[str, Any],
        machine: Machine,
        uid: Optional[int],
        *,
        changed: Callable[[bool], None],
        predecessors: Sequence[threading.Event] = (),
        spares: Spares,
        spare: Optional[Spare] = None,
    ) -> None:
        self._spec: Dict[str, Any] = desired["spec"]
        self._writer = Writer(run_id=desired["run_id"], job_id=desired["job_id"], epoch=desired["epoch"])
        self._machine = machine
        self._changed = changed
        self._predecessors = predecessors
        self._spares = spares
        self._spare = spare
        self._successor_python: Optional[str] = None  # of a spare to be left behind
        self.workspace = Workspace(machine.config.root, self._writer.run_id, uid)
        self.process_gone = threading.Event()  # whatever it started is dead: its GPUs are free
        self._gone = threading.Event()  # nothing of this run but its log is wanted any more
        self._forgotten = threading.Event()
        self._abandoned = threading.Event()  # and the agent leaves
        self._promoted = threading.Event()  # user code may run
        if desired["want"] != "standby":
            self._promoted.set()
        self._lock = threading.RLock()  # guards the next seven; nobody waits for the network while holding it
        self._phase = "preparing"
        self._step = first_step(self._spec)
        self._exit: Optional[ExitReport] = None
        self._process: Optional[Stoppable] = None  # the user's
        self._arriving: Optional[Arriving] = None  # of a run that stands by and is prepared
        self._training: Optional[TrainingMeter] = None  # set with the process
        self._killed = False
        self._ended_by_us = False
        self._grace_ms = int(desired["grace_ms"])
        self._started_before = self.workspace.started.exists()
        spool = Spool(self.workspace.spool / "log", log_bytes=self._spec.get("log_bytes") or LOG_BYTES)
        self._secrets: Dict[str, str] = self._spec.get("secrets") or {}
        self._redactor = Redactor(self._secrets.values())
        self._log = Log(spool, self._redactor)
        self._launcher = Launcher(
            machine,
            self.workspace,
            self._log.feed,
            spare,
            self._lock,
            self._check_wanted,
            shares=self.shares,
        )
        self._transfers = Transfers(machine.api, self._writer, self._gone)
        self._keeper = Keeper(
            self._spec, self._writer, machine, self.workspace, self._log.say, self._forgotten, self._transfers
        )
        self._shipper = Shipper(machine.api, machine.transport, self._writer, self._log, spool)
        self._beside = capabilities_of(
            self._spec, self._writer, machine, self.workspace, self._gone, shares=self.shares
        )
        self._gang = GangSeat(self._spec, machine.config, self._log.say) if self._spec.get("gang") else None
        self._thread = threading.Thread(target=self._main, name=self._writer.run_id, daemon=True)

    # What the server wants; called from the sync threads.

    def start(self) -> None:
        self._thread.start()

    def apply(self, desired: Mapping[str, Any]) -> None:
        """Do what is wanted, if it is not being done already."""
        for one in self._beside:
            one.tell(desired["spec"])
        if self._gang is not None:
            self._gang.tell(desired["spec"])
        with self._lock:
            self._grace_ms = int(desired["grace_ms"])
        if desired["want"] == "checkpoint":
            self.request_checkpoint()
        elif desired["want"] == "kill":
            self.kill()
        elif desired["want"] == "run":
            self._promote(desired["spec"].get("resume"))
        elif desired["want"] == "standby" and desired.get("coming"):
            with self._lock:
                if self._arriving is not None:
                    self._arriving.tell(desired["coming"])

    def held(self) -> ContextManager[Any]:
        """What this run and others are asked in here counts as asked at once."""
        return contextlib.nullcontext()

    def request_checkpoint(self) -> None:
        """SIGTERM, once; SIGKILL when the grace is over. What has not started yet never will."""
        with self._lock:
            if self._phase in ("stopping", "exited"):
                return
            self._enter("stopping")
            self._keeper.hurry()
            if self._training is not None and self._process is not None:
                self._training.ask(self._process, self._grace_ms)
            else:
                self._drop_all()

    def kill(self) -> None:
        """End the process now, and all uploads but the log's."""
        with self._lock:
            if self._killed:
                return
            self._killed = True
            self._keeper.hurry()
            if self._phase != "exited":
                self._enter("stopping")
            self._drop_all()

    def _promote(self, resume: Optional[Dict[str, Any]]) -> None:
        """A run that stood by has its job now: it begins with what the job's last run left."""
        with self._lock:
            if not self._promoted.is_set():
                self._spec["resume"] = resume
                self._promoted.set()

    def forget(self) -> None:
        """The server lists this run no more: kill it, send what is left of its log for a little while, remove it."""
        self._forgotten.set()
        self.kill()

    def hasten(self) -> None:
        """The machine is being taken away: what it leaves behind has seconds, once its checkpoint is safe."""
        self._keeper.hasten()
        with self._lock:
            if self._training is not None:
                self._training.hasten()

    def abandon(self) -> None:
        """The agent leaves: forget, and do not even wait for the log."""
        self._abandoned.set()
        self._keeper.abandon()
        self.forget()
        self._shipper.abandon()

    def report(self) -> Dict[str, Any]:
        with self._lock:
            told = None if self._exit is None else self._exit.as_wire()
            rare = {} if self._training is None else self._training.told()
            rare.update({} if self._gang is None else self._gang.told())
            return {**self._writer.run(), "phase": self._phase, "step": self._step, "exit": told, **rare}

    def heard(self, report: Mapping[str, Any]) -> None:
        """The server has answered this report of the run's."""
        with self._lock:
            if self._training is not None:
                self._training.heard(report)

    @property
    def has_exited(self) -> bool:
        with self._lock:
            return self._exit is not None

    @property
    def trains(self) -> bool:
        """Whether its process has begun and is not over."""
        with self._lock:
            return self._phase in ("running", "stopping") and not self.process_gone.is_set()

    @property
    def grace_ms(self) -> int:
        with self._lock:
            return self._grace_ms

    def join(self, timeout_s: float) -> bool:
        """True when the run's thread has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    # Its life; all below runs in the run's own thread, except where noted.

    def _main(self) -> None:
        self._shipper.start()
        try:
            report = self._live()
        except Exception as error:  # the outermost frame: whatever it was, the server must hear of the end
            traceback.print_exc(file=sys.stderr)
            self.kill()
            report = ExitReport(environment_error=f"the agent failed: {type(error).__name__}: {error}")
        finally:
            if self._gang is not None:
                self._gang.close()
            self._launcher.close()
            self._spares.ended(self._spare)
        self.process_gone.set()
        if self._successor_python is not None:
            self._spares.keep(self._spec, self._successor_python)
        self._shipper.finish(self._is_away)
        report.last_lines = self._log.last_lines()
        if report.environment_error is not None:
            report.environment_error = self._redactor.text(report.environment_error)
        with self._lock:
            report.killed = self._ended_by_us or None
            self._exit = report
            self._enter("exited")
        self._await_others()
        self._machine.models.gather(self._spec["project_id"], self.workspace, self._abandoned)
        self._forgotten.wait()
        self._shipper.close()
        self._remove()

    def _live(self) -> ExitReport:
        if self._started_before:  # by an agent that died, and its processes with it: never the same run twice
            return ExitReport(signal=SIGKILL)
        try:
            self._check_wanted()
            self._check_user()
            self._check_secrets()
            self._get_ready()
            if self._gang is not None and self._gang.rank == 0:
                self._gang.open()
                self._changed(True)
            command = self._prepare()
            self._begin_at(first_step(self._spec))
            training, process = self._launch_training(command)
        except EnvironmentFailed as error:
            self._log.say(str(error))
            return ExitReport(environment_error=str(error), machine_fault=isinstance(error, MachineFailed))
        except (Aborted, Fenced):
            return ExitReport(signal=SIGKILL if self._killed else SIGTERM)
        ended = self._await_end(command, training, process)
        self._ended_by_us = self._killed  # what comes from now on has not ended it
        self.process_gone.set()
        if ended.left:
            self._machine.users.condemn(f"processes of a run cannot be killed: {', '.join(map(str, ended.left[:10]))}")
        report = self._blaming(training, ended, training.finish(ended))
        if self._spec.get("purpose") != "profile":
            done = ended.exit_code == 0 and not report.saved_after_stop and not self._gone.is_set()
            self._keeper.finish(training.step, succeeded=done)
        if ended.exit_code == 0 and (self.workspace.code / MARK).is_file():
            self._successor_python = command.argv[0]
        return report

    def _blaming(self, training: TrainingMeter, ended: Ended, report: ExitReport) -> ExitReport:
        """A failure that the machine is to blame for is told as that. What the code itself says of its GPU is believed
        as far as that another machine is tried, within the job's budget of faults."""
        if ended.exit_code == 0 or report.saved_after_stop or self._gone.is_set():
            return report
        lost = self._machine.gpus.look_again()
        if lost is None and training.unusable:
            lost = training.unusable
            self._machine.users.condemn(f"a run could not use its GPUs: {lost}")
        if lost is None:
            return report
        why = f"the machine's GPUs cannot be used: {lost}"
        self._log.say(why)
        return ExitReport(environment_error=why, machine_fault=True, training=report.training)

    def _prepare(self) -> Command:
        """A run that stands by fetches all that it can, and waits for its job's final checkpoint."""
        link = Fetcher(self._machine.api, self._machine.transport, self._writer, self._gone, self._transfers)
        machine = self._machine
        script = prepare(self._spec, self._writer, machine, self.workspace, self._log, self._gone, self._install)
        machine.calculation.wait(self._gone)
        self._keeper.remember()
        for predecessor in self._predecessors:
            while not predecessor.wait(0.1):
                self._check_wanted()
        ahead: Optional[Ahead] = None
        staged: Optional[Staged] = None
        if not self._promoted.is_set():
            ahead = fetch_ahead(self._spec.get("resume"), link, self.workspace, self._log)
            if script.loads_ahead:
                before = {**self._spec, "resume": None}
                environ = user_environ(self.workspace, before, self._writer.job_id, script.python)
                environ.update(machine.gpus.variables(self._spec["gpu_indices"]))
                environ.update({} if self._gang is None else self._gang.seat())
                self._launcher.warm_up(script, environ).await_ready(self._gone)
            staged = self._await_promotion(Arriving(link, self.workspace.spool / "coming", ahead.shelf))
        command = complete(self._spec, script, link, self.workspace, self._log, ahead, staged)
        homes = [self.workspace, *([] if self._spare is None else [self._spare.workspace])]
        lend_models(self._spec, self._machine, homes, self._log, self._gone)
        return command

    def _install(self, argv: Sequence[str], environ: Dict[str, str], output: Callable[[bytes], None]) -> Ended:
        """Installers run what others wrote."""
        self._machine.calculation.wait(self._gone)
        return self._launcher.install(argv, environ, output)

    def _await_promotion(self, arriving: Arriving) -> Staged:
        """What came of the final checkpoint before it was complete. On a further machine of a job, once it reaches the
        first one."""
        arriving.start()
        try:
            if self._gang is not None and self._gang.rank:
                self._gang.reach(self._check_wanted)
            with self._lock:
                self._check_wanted()
                self._arriving = arriving
                self._enter("prepared")
            while not self._promoted.wait(0.1):
                self._check_wanted()
        finally:
            staged = arriving.finish()
        with self._lock:
            self._check_wanted()
            self._arriving = None
            self._enter("preparing")
        return staged

    def _get_ready(self) -> None:
        self._launcher.get_ready()

    def _launch_training(self, command: Command) -> "tuple[TrainingMeter, Stoppable]":
        training = self._training_of()
        with self._lock:
            self._check_wanted()
            self.workspace.started.touch()
            process = self._process = self._start(command.argv, self._environ(command.environ))
            self._training = training
            self._enter("running")
        training.start()
        self._keeper.start()
        for one in self._beside:
            one.begin(process)
        return training, process

    def _environ(self, environ: Mapping[str, str]) -> Dict[str, str]:
        """Of its process, with the lock."""
        full = {**environ, **self._machine.gpus.variables(self._gpus()), **self._secrets}
        for one in self._beside:
            full.update(one.environ())
        if self._gang is not None:
            full.update(self._gang.environ())
        return full

    def _gpus(self) -> Sequence[int]:
        """Those that its process has."""
        found: Sequence[int] = self._spec["gpu_indices"]
        return found

    def _await_end(self, command: Command, training: TrainingMeter, process: Stoppable) -> Ended:
        """Of the run's processes."""
        return process.wait()

    def _start(self, argv: Sequence[str], environ: Dict[str, str]) -> Stoppable:
        """With the lock."""
        return self._launcher.start(argv, environ, self._log.feed)

    def _training_of(self) -> TrainingMeter:
        return TrainingMeter(
            self._spec,
            self._writer,
            self._machine,
            self.workspace,
            self._log,
            self._gone,
            on_step=self._on_step,
            on_news=lambda: self._changed(True),
            on_fenced=self.kill,
            on_shown=self._on_shown,
            shares=self.shares,
            transfers=self._transfers,
            keep_up=self._keeper.keep_up,
            parts_of=self._gang.count if self._gang is not None and self._gang.sends_parts else 0,
        )

    def _check_user(self) -> None:
        """Code that is to run as a user of its own does, or does not run."""
        self._machine.users.check()
        if self.workspace.uid is None and self._machine.users.warden is not None:
            raise MachineFailed("this machine has no user left to run it as")

    def _await_others(self) -> None:
        """Until nobody but this run needs its folders."""

    def _remove(self) -> None:
        self.workspace.remove()
        self._machine.users.give_back(self.workspace.uid)

    def _is_away(self) -> bool:
        """The server cannot be told of the end, and wants to be."""
        return self._machine.api.is_away() and not self._forgotten.is_set()

    def _check_secrets(self) -> None:
        missing = sorted(set(self._spec["template"].get("secrets") or ()) - set(self._secrets))
        if missing:
            raise EnvironmentFailed(
                f"the job needs the secret {', '.join(missing)}, which was deleted or cannot be opened any more; "
                f"set it again: allpass secret set {missing[0]}"
            )

    def _check_wanted(self) -> None:
        if self._gone.is_set():
            raise Aborted("no longer wanted")

    def _begin_at(self, step: int) -> None:
        """Below what was wanted, when a checkpoint was damaged."""
        with self._lock:
            self._step = step

    def _on_shown(self) -> None:
        """From any thread: its code has shown that it saves, or that it does not."""

    def _on_step(self, step: int) -> None:
        """From the metrics thread."""
        with self._lock:
            if step <= self._step:
                return
            self._step = step
        self._changed(False)

    def _drop_all(self) -> None:
        """From any thread, with the lock."""
        self._gone.set()
        if self._process is not None:
            self._process.kill()
        else:
            self._launcher.kill()

    def _enter(self, phase: str) -> None:
        """From any thread, with the lock."""
        if self._phase != phase:
            self._phase = phase
            self._changed(True)
