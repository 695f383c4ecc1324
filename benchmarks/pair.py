"""A job on two machines that needs nothing but Python."""

from __future__ import annotations

# Two processes that add up a number in each step over a socket: what a training does over gloo, without torch. All
# leave after one step, whichever of them was asked.
PAIR = """
import os, socket, struct, sys, time
from allpass import training

settings = training.parameters(steps=200, step_ms=40)
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
for step in range(done + 1, settings["steps"] + 1):
    time.sleep(settings["step_ms"] / 1000)
    value, stops = added(step * (rank + 1), training.stop_requested())
    total += value
    if stops:
        training.session().request_stop()
    if rank == 0:
        training.report(step, total=total)
        if training.should_checkpoint(step):
            training.save(step, lambda folder: (folder / "total").write_text(repr(total)))
        training.exit_if_stopping(step)
    elif stops:
        sys.exit(training.EXIT_STOPPED)
"""


def sums_of(steps: int) -> dict[int, float]:
    """What it reports, by step, whatever becomes of its machines."""
    return {step: 3 * step * (step + 1) / 2 for step in range(1, steps + 1)}
