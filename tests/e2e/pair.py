"""A job on two machines that needs nothing but Python."""

from __future__ import annotations

import allpass
from tests.e2e.service import environment, processes, until

# Two processes that add up a number in each step over a socket: what a training does over gloo, without torch.
PAIR = """
import os, socket, struct, sys, time
from allpass import training

rank, where = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
resume = training.resume()
done, total = (resume.step, float((resume.path / "total").read_text())) if resume else (0, 0.0)
if rank == 0:
    with socket.create_server(where) as listener:
        link = listener.accept()[0]
else:
    while True:
        try:
            link = socket.create_connection(where)
            break
        except OSError:
            time.sleep(0.1)

def added(value, stops):
    link.sendall(struct.pack("!dd", value, stops))
    told = b""
    while len(told) < 16:
        data = link.recv(16 - len(told))
        if not data:
            raise ConnectionResetError("Connection closed by peer")
        told += data
    other, others = struct.unpack("!dd", told)
    return value + other, stops + others

print(f"process {rank} of 2 begins after step {done}", flush=True)
for step in range(done + 1, 201):
    time.sleep(0.04)
    value, stops = added(step * (rank + 1), training.stop_requested())
    total += value
    if rank == 0:
        training.report(step, total=total)
        if training.should_checkpoint(step):
            training.save(step, lambda folder: (folder / "total").write_text(repr(total)))
        training.exit_if_stopping(step)
    if stops and rank:
        sys.exit(training.EXIT_STOPPED)
"""


def sums_of(steps: int) -> dict[int, float]:
    """What it reports, by step, whatever becomes of its machines."""
    return {step: 3 * step * (step + 1) / 2 for step in range(1, steps + 1)}


def process_of(job: allpass.Job, rank: int) -> int:
    """Of this machine of the job."""

    def look() -> int | None:
        for pid in processes():
            found = environment(pid)
            if found.get("ALLPASS_JOB_ID") == job.id and found.get("ALLPASS_NODE_RANK") == str(rank):
                return pid
        return None

    return until(f"process {rank} of {job.id}", look)
