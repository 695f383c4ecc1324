"""A run ends, and its GPUs are given back, when its result is safe: not when the last of its words is."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from allpass.wire.agent import DesiredRun
from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import TOKEN, Fault, Plane
from workers.agent.api import Api, Writer
from workers.agent.logs import Log, Shipper
from workers.agent.spool import Spool
from workers.agent.transport import Transport

Start = Callable[..., AgentProcess]

CHATTY = """
import json, os, sys
mega_bytes = int(sys.argv[1])
for _ in range(mega_bytes):
    sys.stdout.write("a line that nobody reads, of a length that is not unusual\\n" * 17_000)
print("the last words", flush=True)
"""
FLOOD = """
import json, os, sys, time
with open(os.environ["ALLPASS_METRICS_FILE"], "a") as metrics:
    step = 0
    while True:
        step += 1
        metrics.write(json.dumps({"step": step, "loss": 1.0}) + "\\n")
        if step % 100 == 0:
            print("x" * 100_000)
"""
NEIGHBOUR = """
import json, os, time
def tell(**line):
    with open(os.environ["ALLPASS_METRICS_FILE"], "a") as metrics:
        metrics.write(json.dumps(line) + "\\n")
for step in range(1, 4):
    folder = os.path.join(os.environ["ALLPASS_CHECKPOINT_DIR"], f"step-{step}")
    os.mkdir(folder)
    open(os.path.join(folder, "state"), "w").write(str(step))
    tell(step=step, loss=1.0 / step)
    tell(step=step, checkpoint=f"step-{step}")
    print("step", step, flush=True)
    time.sleep(0.3)
"""


def test_a_log_that_cannot_be_sent_holds_nobody_up(plane: Plane, start_agent: Start) -> None:
    """The store takes nothing: the end is told all the same, with the last lines. What the log was cut to follows when
    it can, in order, and says what is missing."""
    plane.hold_after = 0
    run = desired(plane, CHATTY, parameters=["100"])
    plane.want(run)
    agent = start_agent()
    ended = plane.wait_exit(run.run_id)
    assert ended.exit_code == 0
    assert ended.last_lines.endswith("the last words")
    kept = sum(file.stat().st_size for file in (agent.root / "spool" / run.run_id / "log").iterdir())
    assert kept <= 4 * 1024 * 1024, "the machine's disk is the training's"
    plane.release.set()
    log = plane.wait(lambda: "the last words" in plane.log(run.run_id) and plane.log(run.run_id), "the end of the log")
    assert log.count("are left out here") == 1
    assert log.endswith("the last words\n")
    plane.unlist(run.run_id)
    plane.wait(lambda: not list((agent.root / "spool").iterdir()), "removal of what was sent")


def test_of_a_log_that_is_too_long_beginning_and_end_are_stored(plane: Plane, start_agent: Start) -> None:
    """As much as the server wants of it, and its end, however much the process writes."""
    run = desired(plane, "print('the first words')" + CHATTY, parameters=["20"], log_bytes=1024 * 1024)
    plane.want(run)
    start_agent()
    assert plane.wait_exit(run.run_id).exit_code == 0
    log = plane.wait(lambda: "the last words" in plane.log(run.run_id) and plane.log(run.run_id), "the end of the log")
    assert log.startswith("the first words\n")
    assert "bytes: of what follows, only the end is kept" in log
    assert "are left out here" in log
    assert 1.2 * 1024 * 1024 <= len(log) < 3 * 1024 * 1024


def test_the_end_of_a_long_log_is_sent_though_nothing_else_waits(plane: Plane, tmp_path: Path) -> None:
    """Whoever ships has nothing to do once the log is as long as it may be, and does not leave before its end."""
    run = desired(plane, "")
    plane.want(run)
    spool = Spool(tmp_path, log_bytes=1000)
    log = Log(spool)
    transport = Transport()
    writer = Writer(run_id=run.run_id, job_id=run.job_id, epoch=1)
    shipper = Shipper(Api(plane.url, TOKEN, transport), transport, writer, log, spool)
    for _ in range(3):
        log.feed(b"x" * 999 + b"\n")
        log.finish()
    shipper.start()
    plane.wait(lambda: "only the end is kept" in plane.log(run.run_id), "the beginning")
    log.feed(b"the last words\n")
    shipper.finish(lambda: False)
    log = plane.wait_log(run.run_id, "the last words\n")
    transport.close()
    assert log.endswith("x\nthe last words\n")


def test_output_is_stored_before_the_end_is_told_however_long_the_log(plane: Plane, start_agent: Start) -> None:
    """What cannot wait is what the job is for: its files and its last point."""
    script = (
        CHATTY
        + """
open(os.path.join(os.environ["ALLPASS_OUTPUT_DIR"], "result"), "w").write("r")
open(os.environ["ALLPASS_METRICS_FILE"], "a").write('{"step": 3, "loss": 1}\\n')
"""
    )
    run = desired(plane, script, parameters=["30"])
    plane.faults.append(Fault("POST .*logs", 503))
    plane.want(run)
    start_agent()
    assert plane.wait_exit(run.run_id).exit_code == 0
    assert plane.artifacts[run.run_id].keys() == {"result"}
    assert list(plane.metrics[run.run_id]) == [3]
    assert plane.told(run.run_id).step == 3


def test_a_job_beside_a_flood_trains_as_alone(plane: Plane, start_agent: Start) -> None:
    """A neighbour on the machine that writes lines and log as fast as it can delays neither its checkpoints nor its
    reports, points or log by more than moments; nor its end."""
    start_agent()
    alone = desired(plane, NEIGHBOUR, job_id="job_alone")
    alone_s = _took_s(plane, alone)
    flood = desired(plane, FLOOD, job_id="job_flood")
    plane.want(flood)
    plane.wait_step(flood.run_id, 20_000)
    run = desired(plane, NEIGHBOUR)
    took_s = _took_s(plane, run)
    assert plane.report(flood.run_id) is not None
    assert plane.told(flood.run_id).phase == "running"
    assert plane.committed(run.run_id)[-1].step == 3
    assert sorted(plane.metrics[run.run_id]) == [1, 2, 3]
    assert plane.wait_log(run.run_id, "step 3\n").startswith("step 1\n")
    assert took_s < 10 * alone_s, f"alone it takes {alone_s:.1f} s"


def _took_s(plane: Plane, run: DesiredRun) -> float:
    begun_s = time.monotonic()
    plane.want(run)
    assert plane.wait_exit(run.run_id).exit_code == 0
    return time.monotonic() - begun_s


def test_the_next_job_begins_while_the_last_ones_log_is_sent(plane: Plane, start_agent: Start) -> None:
    """On a machine that stays: once the server has heard of the end, the GPUs are the next job's."""
    plane.hold_after = 0
    run = desired(plane, CHATTY, parameters=["3"])
    plane.want(run)
    start_agent()
    plane.wait_exit(run.run_id)
    plane.unlist(run.run_id)
    following = desired(plane, "print('begun')", job_id="job_2")
    plane.want(following)
    assert plane.wait_exit(following.run_id).exit_code == 0
    plane.release.set()
    plane.wait(lambda: "the last words" in plane.log(run.run_id), "the end of the first one's log")
