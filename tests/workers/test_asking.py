"""Who hears that a run is to save and leave, and how long those have who were started by the main process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import pytest

from tests.workers.agents import AgentProcess, desired, tar_gz
from tests.workers.plane import Plane

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere there is no process table")
Start = Callable[..., AgentProcess]

# A worker as `torchrun` has: trains until it is asked, then saves what nobody else has: how often it was asked.
WORKER = """
import os, signal, sys, time
rank, asked = sys.argv[1], 0
def on_term(*_):
    global asked
    asked += 1
signal.signal(signal.SIGTERM, on_term)
print("up", flush=True)
while not asked: time.sleep(0.01)
time.sleep(float(os.environ.get("SAVING_S", "0.3")))
with open(os.path.join(os.environ["ALLPASS_CHECKPOINT_DIR"], f"rank-{rank}"), "w") as file:
    file.write(f"{asked}")
"""
LAUNCHERS = {
    "subprocess": "import subprocess, sys\nsys.exit(subprocess.call([sys.executable, 'worker.py', '0']))",
    "many": """
import subprocess, sys
workers = [subprocess.Popen([sys.executable, "worker.py", str(rank)]) for rank in range(3)]
sys.exit(max(worker.wait() for worker in workers))
""",
    "own session": """
import subprocess, sys
sys.exit(subprocess.Popen([sys.executable, "worker.py", "0"], start_new_session=True).wait())
""",
    "shell": "import os\nos.execv('/bin/sh', ['sh', '-c', 'python3 worker.py 0; echo done'])",
    "trapping shell": "import os\nos.execv('/bin/bash', ['bash', '-c', 'trap : TERM; python3 worker.py 0; echo done'])",
    "ignores": """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.exit(subprocess.call([sys.executable, "worker.py", "0"]))
""",
    "dies of it": """
import ctypes, os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
subprocess.Popen([sys.executable, "worker.py", "0"])
time.sleep(600)
""",
    "leaves at once": """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
subprocess.Popen([sys.executable, "worker.py", "0"])
time.sleep(600)
""",
    "waits for good": """
import subprocess, sys, threading
subprocess.call([sys.executable, "worker.py", "0"])
threading.Event().wait()  # as Lightning does after `ddp_fork`, for a result that never comes
""",
    "passes on": """
import signal, subprocess, sys
worker = subprocess.Popen([sys.executable, "worker.py", "0"])
signal.signal(signal.SIGTERM, lambda *_: worker.terminate())
sys.exit(worker.wait())
""",
}


def started(plane: Plane, start_agent: Start, launcher: str, *, grace_ms: int = 20_000, workers: int = 1) -> str:
    run = desired(plane, tar_gz({"train.py": launcher, "worker.py": WORKER}), grace_ms=grace_ms)
    plane.want(run)
    start_agent()
    plane.wait(lambda: plane.log(run.run_id).count("up") == workers, "all workers")
    return run.run_id


def saved(plane: Plane, run_id: str) -> dict[str, str]:
    """What the last committed checkpoint holds: of each worker, how often it was asked."""
    files = plane.committed(run_id)[-1].files
    return {file.path: plane.content(file).decode() for file in files}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_what_a_launcher_has_started_saves_whatever_the_launcher_does(
    plane: Plane, start_agent: Start, launcher: str
) -> None:
    """It need not catch the signal, pass it on, or outlive it: each worker is asked, has its time to save, and what the
    directory holds when the last one has left is the run's checkpoint."""
    workers = 3 if launcher == "many" else 1
    run_id = started(plane, start_agent, LAUNCHERS[launcher], workers=workers)
    plane.ask(run_id, "checkpoint")
    ended = plane.wait_exit(run_id)
    assert ended.saved_after_stop, ended
    assert set(saved(plane, run_id)) == {f"rank-{rank}" for rank in range(workers)}
    assert set(saved(plane, run_id).values()) == {"1"}
    if "shell" in launcher:
        plane.wait_log(run_id, "done")  # a shell goes on with what comes next
    else:
        assert "done" not in plane.log(run_id)


def test_who_passes_the_signal_on_too_late_is_helped(plane: Plane, start_agent: Start) -> None:
    """A launcher that catches the signal and does nothing about it: after half of the grace its workers are asked."""
    launcher = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: None)
sys.exit(subprocess.call([sys.executable, "worker.py", "0"]))
"""
    run_id = started(plane, start_agent, launcher, grace_ms=10_000)
    plane.ask(run_id, "checkpoint")
    assert plane.wait_exit(run_id).saved_after_stop
    assert saved(plane, run_id) == {"rank-0": "1"}


def test_the_grace_ends_for_all(plane: Plane, start_agent: Start) -> None:
    """Whoever has not left by then is killed with the rest, and what is half written is no checkpoint."""
    launcher = "import os, subprocess, sys\nos.environ['SAVING_S'] = '600'\n" + LAUNCHERS["subprocess"]
    run_id = started(plane, start_agent, launcher, grace_ms=1_000)
    asked_s = time.monotonic()
    plane.ask(run_id, "checkpoint")
    ended = plane.wait_exit(run_id)
    assert time.monotonic() - asked_s >= 1
    assert (ended.signal, ended.saved_after_stop) == (9, False)
    assert plane.committed(run_id) == []


def test_what_the_main_process_needs_to_save_is_left_to_it(plane: Plane, start_agent: Start) -> None:
    """A child that would die of the signal, or that takes it for an end, lives until its parent has saved."""
    script = """
import os, signal, subprocess, sys, time
idle = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(1)); print('up', flush=True); time.sleep(99)"
helper = subprocess.Popen([sys.executable, "-c", idle])
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
while not stop: time.sleep(0.01)
time.sleep(0.5)
with open(os.environ["ALLPASS_CHECKPOINT_DIR"] + "/state", "w") as file: file.write(str(helper.poll()))
helper.kill()
"""
    run_id = started(plane, start_agent, script)
    plane.ask(run_id, "checkpoint")
    assert plane.wait_exit(run_id).saved_after_stop
    assert saved(plane, run_id) == {"state": "None"}


def test_a_script_that_was_asked_twice_saves_as_if_once(plane: Plane, start_agent: Start) -> None:
    """A launcher may pass on what its children are asked as well: the helpers for training take no harm."""
    script = """
import os, signal, subprocess, sys, time
from allpass import training
training.resume()
def write(folder):
    os.kill(os.getpid(), signal.SIGTERM)
    (folder / "state").write_text("whole")
for step in range(100_000):
    if step == 3: print("up", flush=True)
    time.sleep(0.01)
    if training.should_checkpoint(step):
        os.kill(os.getpid(), signal.SIGTERM)
        training.save(step, write)
    training.exit_if_stopping(step)
"""
    run_id = started(plane, start_agent, script)
    plane.ask(run_id, "checkpoint")
    ended = plane.wait_exit(run_id)
    assert (ended.exit_code, ended.saved_after_stop) == (75, True)
    assert saved(plane, run_id) == {"state": "whole"}


def test_who_is_not_asking_for_time_gets_none(plane: Plane, start_agent: Start) -> None:
    """Where nobody catches the signal all end at once, and a background process does not make the grace longer."""
    script = """
import subprocess, sys, time
idles = "import time; print('up', flush=True); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", idles], start_new_session=True)
time.sleep(600)
"""
    run_id = started(plane, start_agent, script, grace_ms=600_000)
    plane.ask(run_id, "checkpoint")
    ended = plane.wait_exit(run_id)  # which is not waited for as long as the grace
    assert (ended.signal, ended.saved_after_stop) == (15, False)
