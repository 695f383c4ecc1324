"""A real Slurm on this host, for as long as a test takes: munged, slurmctld and several slurmd, in a folder.

Nothing of the host's own Slurm is used or touched. Commands are called through scripts of ours, in `bin`, that can be
made to fail once: everything behind them is Slurm's own.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.folders import open_to_all
from tests.ports import reserved_port

Found = TypeVar("Found")
PATIENCE_S = 60.0
COMMANDS = ("sbatch", "squeue", "scancel", "sinfo", "sacct", "scontrol")
_DAEMONS = ("munged", "slurmctld", "slurmd")
_PATH = "/usr/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin"
NODES = ("n0", "n1", "n2")

_CONF = """\
ClusterName=allpasstest
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,batch_sched_delay=0,sched_min_interval=1
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
KillWait=20
MinJobAge=300
MessageTimeout={message_timeout_s}
ReturnToService=2
SlurmdTimeout=10
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=600 PriorityTier=1 PreemptMode=CANCEL GraceTime=0
PartitionName=graced Nodes=ALL MaxTime=600 PriorityTier=1 PreemptMode=CANCEL GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=600 PriorityTier=10 PreemptMode=OFF
PartitionName=closed Nodes=ALL MaxTime=600 State=DOWN
"""
_WRAPPER = """\
#!/bin/sh
name={name}
for word in "$@"; do [ "$word" = --test-only ] && name={name}-test; done
if mv "{faults}/$name" "{faults}/$name.$$" 2>/dev/null; then . "{faults}/$name.$$"; fi
exec {real} "$@"
"""


class SlurmMissing(Exception):
    """Slurm is not here, or cannot start here; why."""


class SlurmCluster:
    """`conf` and `bin`: what the provider is told. `logs`: where jobs may write."""

    def __init__(self, folder: Path, ports: list[int]) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self.bin = folder / "bin"
        self.logs = folder / "jobs"
        self.scratch = folder / "scratch"
        self._ports = ports
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    # -- its life

    def start(self) -> None:
        """Raises SlurmMissing."""
        for name in ("state", "log", "bin", "faults", "jobs", "scratch", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        self.scratch.chmod(0o755)
        self._write(self.conf, self._ports[0])
        for index in (0, 1):
            (self.folder / f"gpu{index}").touch()
        gres = f"NodeName=n[0-{len(NODES) - 1}] Name=gpu Type=a100 File={self.folder}/gpu[0-1]\n"
        (self.folder / "gres.conf").write_text(gres)
        for name in COMMANDS:
            real = program(name)
            script = _WRAPPER.format(name=name, faults=self.folder / "faults", real=real)
            (self.bin / name).write_text(script)
            (self.bin / name).chmod(0o755)
        self.start_munged()
        self.start_controller()
        for node in NODES:
            self.start_node(node)
        self._await(lambda: self.sinfo().count("|idle") >= len(NODES), "the nodes of a Slurm of this test's own")

    def _write(self, conf: Path, ctld_port: int, *, message_timeout_s: int = 10) -> None:
        nodes = "\n".join(
            f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=8000"
            " Gres=gpu:a100:2"
            for node, port in zip(NODES, self._ports[1:], strict=True)
        )
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        text = _CONF.format(
            folder=self.folder, user=user, ctld_port=ctld_port, nodes=nodes, message_timeout_s=message_timeout_s
        )
        conf.write_text(text)

    def start_munged(self, name: str = "munge") -> None:
        key = self.folder / f"{name}.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        place = self.folder / name
        arguments = [f"--key-file={key}", f"--socket={place}.socket", f"--pid-file={place}.pid"]
        self._start("munged", name, *arguments, f"--log-file={place}.log", f"--seed-file={place}.seed", "--force",
                    "--foreground")  # fmt: skip
        self._await(lambda: Path(f"{place}.socket").exists(), "munged")

    def start_controller(self) -> None:
        self._start("slurmctld", "slurmctld", "-D")
        self._await(lambda: "n0" in self.sinfo(), "slurmctld")

    def start_node(self, node: str) -> None:
        self._start("slurmd", node, "-D", "-N", node)

    def stop(self, name: str, number: int = signal.SIGTERM) -> None:
        """End one of the daemons: `slurmctld`, or a node by its name."""
        daemon = self._daemons.pop(name)
        daemon.send_signal(number)
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def close(self) -> None:
        """Nothing of it is left, jobs included."""
        if "slurmctld" in self._daemons:
            with contextlib.suppress(AssertionError, subprocess.SubprocessError):
                self.clean_up()
        for name in sorted(self._daemons, key=lambda name: name.startswith("munge")):
            self.stop(name)
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def clean_up(self) -> None:
        """No fault is armed and no job is left."""
        for armed in (self.folder / "faults").iterdir():
            armed.unlink()
        mine = f"--user={os.getuid()}"
        self.call("scancel", mine)
        for pid in self.processes(of_jobs=True):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._await(lambda: not self.call("squeue", "--noheader", mine).strip(), "the end of the last job")

    def processes(self, *, of_jobs: bool = False, job_id: str = "") -> list[int]:
        """Those that run under this Slurm; with `of_jobs` what jobs have started, of one job or of all."""
        marks = [f"SLURM_CONF={self.conf}".encode()]
        marks += [f"SLURM_JOB_ID={job_id}".encode() if job_id else b"SLURM_JOB_ID="] if of_jobs or job_id else []
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    words = (entry / "environ").read_bytes()
                    parts = words.split(b"\0")
                    exact = all(mark in parts if not mark.endswith(b"=") else mark in words for mark in marks)
                    found += [int(entry.name)] if exact else []
        return found

    # -- how it is asked

    def call(self, name: str, *arguments: str, stdin: str = "") -> str:
        """What Slurm's own command says. Asserts that it succeeded."""
        done = subprocess.run(
            [program(name), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
            env=self.environ(),
        )
        assert done.returncode == 0, f"{name} {arguments}: {done.stderr}"
        return done.stdout

    def environ(self) -> dict[str, str]:
        return {"PATH": _PATH, "SLURM_CONF": str(self.conf), "SLURM_TIME_FORMAT": "%s", "TZ": "UTC", "HOME": "/"}

    def sinfo(self) -> str:
        done = subprocess.run(
            [program("sinfo"), "-h", "-N", "-p", "main", "-o", "%N|%t"],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
            env=self.environ(),
        )
        return done.stdout

    def submit(self, *arguments: str, script: str = "#!/bin/sh\nexec sleep 600\n") -> str:
        """A job by hand, as any user's; its number."""
        return self.call("sbatch", "--parsable", "--output=/dev/null", *arguments, stdin=script).strip()

    def job(self, job_id: str) -> dict[str, str]:
        """A job as scontrol shows it."""
        words = self.call("scontrol", "show", "job", job_id, "-o").split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def until(self, job_id: str, *states: str) -> dict[str, str]:
        """The job, once it is in one of these states."""
        try:
            return self._await(lambda: (job := self.job(job_id))["JobState"] in states and job, f"a state of {states}")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.job(job_id)}") from None

    def resume(self, node: str) -> None:
        """After it was taken down by hand; one that has come back by itself is left alone."""
        with contextlib.suppress(AssertionError):
            self.call("scontrol", "update", f"nodename={node}", "state=resume")
        self._await(lambda: self.sinfo().count("|idle") >= len(NODES), "a node that was down")

    def strike(self, name: str, script: str) -> None:
        """The next call of this command does this first: `{real}` is Slurm's own, `$@` what it was called with.
        `sbatch-test`: a trial."""
        part = self.folder / "faults" / f".{name}"
        part.write_text(script.replace("{real}", program(name.removesuffix("-test"))))
        part.replace(part.with_name(name))

    def with_wrong_key(self) -> Path:
        """A slurm.conf of somebody whose munge has another key."""
        conf = self.folder / "wrong.conf"
        if "wrong" not in self._daemons:
            self.start_munged("wrong")
            conf.write_text(self.conf.read_text().replace("/munge.socket", "/wrong.socket"))
        return conf

    def of_nobody(self) -> Path:
        """A slurm.conf of a cluster that does not answer."""
        conf = self.folder / "nobody.conf"
        self._write(conf, 9, message_timeout_s=2)
        return conf

    def _start(self, program_name: str, name: str, *arguments: str) -> None:
        with (self.folder / "log" / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                [program(program_name), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self.environ(),
                cwd=self.folder,
                start_new_session=True,
            )

    def _await(self, probe: Callable[[], Found | bool | None], what: str) -> Found:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = probe()
            if found:
                return found  # type: ignore[return-value]
            ended = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
            if ended:
                said = (self.folder / "log" / f"{ended[0]}.out").read_text(errors="replace")[-600:]
                raise SlurmMissing(f"{ended[0]} of Slurm ended by itself: {said}")
            time.sleep(0.05)
        raise AssertionError(f"waited {PATIENCE_S:g} s for {what}")


def program(name: str) -> str:
    found = shutil.which(name, path=_PATH)
    if found is None:
        raise SlurmMissing(f"there is no {name} (Debian, Ubuntu: apt-get install slurm-wlm munge)")
    return found


@contextmanager
def slurm_cluster() -> Iterator[SlurmCluster]:
    """Skips the test, with the reason, where there can be none."""
    try:
        for name in (*_DAEMONS, *COMMANDS):
            program(name)
    except SlurmMissing as missing:
        pytest.skip(f"Slurm: {missing}")
    with open_to_all() as folder, ExitStack() as held:
        cluster = SlurmCluster(folder, [held.enter_context(reserved_port()) for _ in range(1 + len(NODES))])
        try:
            try:
                cluster.start()
            except SlurmMissing as missing:
                pytest.skip(f"Slurm: {missing}")
            yield cluster
        finally:
            cluster.close()
