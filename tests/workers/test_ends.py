"""How runs end against their will, and what no end may leave behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import PATIENCE_S, Fault, Plane

Start = Callable[..., AgentProcess]

# Tells its pid and that of a child which left its process group, then waits for ever.
FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("pids", os.getpid(), child.pid, flush=True)
open(os.environ["ALLPASS_METRICS_FILE"], "a").write('{"step": 1}\\n')
time.sleep(600)
"""
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: print("no", flush=True))
open(os.environ["ALLPASS_METRICS_FILE"], "a").write('{"step": 1}\\n')
while True: time.sleep(0.05)
"""
METRIC = "open(os.environ['ALLPASS_METRICS_FILE'], 'a').write"


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


def pids_of(plane: Plane, run_id: str) -> list[int]:
    log = plane.wait(lambda: "pids" in plane.log(run_id) and plane.log(run_id), "the pids")
    line = next(line for line in log.splitlines() if line.startswith("pids"))
    return [int(word) for word in line.split()[1:]]


def wait_dead(pids: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, f"still alive: {[pid for pid in pids if is_alive(pid)]}"
        time.sleep(0.01)


def test_no_user_process_survives_its_agent(plane: Plane, start_agent: Start) -> None:
    """When the agent is killed by SIGKILL, the script and what it started die, even what left its group."""
    run = desired(plane, FAMILY)
    plane.want(run)
    agent = start_agent()
    pids = pids_of(plane, run.run_id)
    assert all(is_alive(pid) for pid in pids)
    agent.kill()
    wait_dead(pids)


def test_a_killed_agent_never_runs_the_same_run_twice(plane: Plane, start_agent: Start) -> None:
    """An agent that finds a run which an earlier one started reports it as killed: resuming needs a new epoch."""
    run = desired(plane, FAMILY)
    plane.want(run)
    agent = start_agent()
    wait_for = pids_of(plane, run.run_id)
    agent.kill()
    wait_dead(wait_for)
    start_agent(agent.root)
    assert plane.wait_exit(run.run_id).signal == signal.SIGKILL
    assert plane.log(run.run_id).count("pids") == 1


def test_a_process_killed_by_a_signal_is_told_so(plane: Plane, start_agent: Start) -> None:
    """SIGKILL from elsewhere (the kernel, say) is in the exit report; its orphans are gone by then."""
    run = desired(plane, FAMILY)
    plane.want(run)
    start_agent()
    pids = pids_of(plane, run.run_id)
    os.kill(pids[0], signal.SIGKILL)
    ended = plane.wait_exit(run.run_id)
    assert (ended.exit_code, ended.signal, ended.saved_after_stop) == (None, signal.SIGKILL, False)
    assert not any(is_alive(pid) for pid in pids)


def test_kill_is_at_once(plane: Plane, start_agent: Start) -> None:
    """`kill` ends the script and all it started without asking, and is reported with the log complete."""
    run = desired(plane, FAMILY)
    plane.want(run)
    start_agent()
    pids = pids_of(plane, run.run_id)
    plane.ask(run.run_id, "kill")
    assert plane.wait_exit(run.run_id).signal == signal.SIGKILL
    assert not any(is_alive(pid) for pid in pids)


def test_a_run_that_is_not_listed_is_killed_and_removed(plane: Plane, start_agent: Start) -> None:
    """Level-triggered: what the server does not list must not run; nothing of it stays on the machine."""
    run = desired(plane, FAMILY)
    plane.want(run)
    agent = start_agent()
    pids = pids_of(plane, run.run_id)
    plane.unlist(run.run_id)
    wait_dead(pids)
    plane.wait(lambda: not list((agent.root / "runs").iterdir()), "removal of the folder")
    plane.wait(lambda: not list((agent.root / "spool").iterdir()), "removal of what it had yet to send")


def test_a_script_that_ignores_the_request_is_killed_after_its_grace(plane: Plane, start_agent: Start) -> None:
    """SIGTERM is sent once, SIGKILL when the grace is over; the report says so."""
    run = desired(plane, STUBBORN, grace_ms=3_000)
    plane.want(run)
    start_agent()
    plane.wait_step(run.run_id, 1)
    asked_s = time.monotonic()
    plane.ask(run.run_id, "checkpoint")
    plane.ask(run.run_id, "checkpoint")
    ended = plane.wait_exit(run.run_id)
    assert time.monotonic() - asked_s >= 3
    assert (ended.signal, ended.saved_after_stop) == (signal.SIGKILL, False)
    assert plane.wait_log(run.run_id, "no\n").count("no\n") == 1


@pytest.mark.parametrize("path", ["metrics", "checkpoints", "commit"])
def test_a_fenced_writer_is_killed(plane: Plane, start_agent: Start, path: str) -> None:
    """When another run holds the job's epoch, the first write that says so ends the process; its log still arrives."""
    script = f"""
import os, time
os.mkdir(os.environ["ALLPASS_CHECKPOINT_DIR"] + "/c")
open(os.environ["ALLPASS_CHECKPOINT_DIR"] + "/c/f", "w").write("f")
print("before", flush=True)
{METRIC}('{{"step": 1, "checkpoint": "c", "loss": 1}}\\n')
time.sleep(600)
"""
    run = desired(plane, script)
    plane.faults.append(Fault(f"POST .*{path}$", 409, "fenced"))
    plane.want(run)
    start_agent()
    assert plane.wait_exit(run.run_id).signal == signal.SIGKILL
    plane.wait_log(run.run_id, "before\n")
    assert path == "metrics" or plane.committed(run.run_id) == []


def test_a_node_that_is_forgotten_leaves(plane: Plane, start_agent: Start) -> None:
    """401 means that this machine is not ours any more: every run is killed and the agent ends by a code of its own."""
    run = desired(plane, FAMILY)
    plane.want(run)
    agent = start_agent()
    pids = pids_of(plane, run.run_id)
    plane.token = "another"
    plane.unlist(run.run_id)
    assert agent.wait() == 3
    wait_dead(pids)


def test_a_refused_write_does_not_make_a_node_forgotten(plane: Plane, start_agent: Start) -> None:
    """403 for one message concerns that message: only the conversation itself can end the node."""
    plane.faults.append(Fault("POST .*metrics", 403, "forbidden"))
    run = desired(plane, f"import os\n{METRIC}('{{\"step\": 1, \"loss\": 1}}\\n')\nprint('done')")
    plane.want(run)
    start_agent()
    assert plane.wait_exit(run.run_id).exit_code == 0
    plane.wait_log(run.run_id, "metric points were refused")


def test_a_log_that_is_refused_does_not_hold_up_the_end(plane: Plane, start_agent: Start) -> None:
    """When the server will not have a run's log, the run's end is reported all the same."""
    plane.faults.append(Fault("POST .*(logs|uploads)", 404, "not_found"))
    run = desired(plane, "print('unwanted')")
    plane.want(run)
    start_agent()
    assert plane.wait_exit(run.run_id).exit_code == 0


def test_a_host_that_is_taken_away_saves_its_runs(plane: Plane, start_agent: Start) -> None:
    """SIGTERM to the agent asks each run for a checkpoint; it is stored and reported before the agent leaves."""
    script = f"""
import os, signal, sys, time
def save(*_):
    open(os.environ["ALLPASS_CHECKPOINT_DIR"] + "/state", "w").write("s")
    {METRIC}('{{"step": 7, "checkpoint": "state"}}\\n')
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
{METRIC}('{{"step": 6}}\\n')
time.sleep(600)
"""
    run = desired(plane, script)
    plane.want(run)
    agent = start_agent()
    plane.wait_step(run.run_id, 6)
    agent.terminate()
    assert agent.wait() == 0
    assert [(one.step, one.files[0].path) for one in plane.committed(run.run_id)] == [(7, "state")]
    ended = plane.wait_exit(run.run_id)
    assert (ended.exit_code, ended.saved_after_stop) == (75, True)
    of_the_end = next(sync for sync in plane.syncs if any(report.exit is not None for report in sync.runs))
    assert of_the_end.host["draining"] is True


def test_a_stop_before_the_start_means_that_nothing_starts(plane: Plane, start_agent: Start) -> None:
    """A run that is to save or to be killed before its process exists is reported as ended, and never started."""
    saving = desired(plane, "print('started')", want="checkpoint")
    killed = desired(plane, "print('started')", want="kill", job_id="job_2")
    plane.want(saving)
    plane.want(killed)
    start_agent()
    assert plane.wait_exit(saving.run_id).signal == signal.SIGTERM
    assert plane.wait_exit(killed.run_id).signal == signal.SIGKILL
    assert plane.log(saving.run_id) == plane.log(killed.run_id) == ""


SILENT = """
import os, signal, sys, time
path = os.environ["ALLPASS_CHECKPOINT_DIR"] + "/state"
if {before}: open(path, "w").write("before")
def leave(*_):
    if {after}: open(path, "w").write("after!")
    sys.exit({code})
signal.signal(signal.SIGTERM, leave)
open(os.environ["ALLPASS_METRICS_FILE"], "a").write('{{"step": 12}}\\n')
time.sleep(600)
"""


def test_a_script_without_checkpoint_lines_is_served_too(plane: Plane, start_agent: Start) -> None:
    """Its directory is its checkpoint when it leaves on request by a code other than 0, or by 0 having changed it."""
    table: list[tuple[bool, bool, int, bytes | None, bool]] = [
        # saved before, after the request, exit code; what is stored, whether it answers the request
        (True, False, 1, b"before", False),
        (True, True, 1, b"after!", True),
        (True, True, 0, b"after!", True),
        (True, False, 0, None, False),
        (False, False, 1, None, False),
    ]
    runs = [
        desired(plane, SILENT.format(before=before, after=after, code=code), job_id=f"job_{number}")
        for number, (before, after, code, _, _) in enumerate(table)
    ]
    for run in runs:
        plane.want(run)
    start_agent()
    for run in runs:
        plane.wait_step(run.run_id, 12)
        plane.ask(run.run_id, "checkpoint")
    for row, run in zip(table, runs, strict=True):
        _, _, code, stored, saved_after_stop = row
        ended = plane.wait_exit(run.run_id)
        assert (ended.exit_code, ended.saved_after_stop) == (code, saved_after_stop), row
        found = [(one.step, one.files[0].path, one.files[0].sha256) for one in plane.committed(run.run_id)]
        assert found == ([] if stored is None else [(12, "state", plane.put(stored))]), row


def test_a_checkpoint_from_before_the_request_does_not_answer_it(plane: Plane, start_agent: Start) -> None:
    """`saved_after_stop` is about what was written after SIGTERM, even when an older line is read later."""
    script = f"""
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
open(os.environ["ALLPASS_CHECKPOINT_DIR"] + "/old", "w").write("s")
{METRIC}('{{"step": 5, "checkpoint": "old"}}\\n')
time.sleep(600)
"""
    run = desired(plane, script)
    plane.want(run)
    start_agent()
    plane.wait(lambda: plane.committed(run.run_id), "the checkpoint")
    plane.ask(run.run_id, "checkpoint")
    ended = plane.wait_exit(run.run_id)
    assert (ended.exit_code, ended.saved_after_stop) == (0, False)
