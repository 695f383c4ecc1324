"""The job of `benchmarks.migration`: a state of so many bytes, all of which changes with every step.

As a program without Allpass, `migration_job.py FOLDER STATE_BYTES ROUNDS`, it saves and loads that state and prints the
seconds of each round as JSON.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

BLOCK_BYTES = 1024 * 1024
STOPPED = 75


def main():
    stop_requests = []
    signal.signal(signal.SIGTERM, lambda *_: stop_requests.append(True))
    began_s = time.time()
    given = json.loads(Path(os.environ["ALLPASS_PARAMETERS_FILE"]).read_text())
    interval_s = float(os.environ["ALLPASS_CHECKPOINT_INTERVAL_S"])
    folder = Path(os.environ["ALLPASS_CHECKPOINT_DIR"])
    resume = os.environ.get("ALLPASS_RESUME_DIR")
    state = load(Path(resume)) if resume else first_state(given["state_bytes"])
    step = int(os.environ.get("ALLPASS_RESUME_STEP", "0"))
    told = {"began_s": began_s, "loaded_s": time.time()}
    last = step + given["steps_after"] if resume else sys.maxsize
    saved_s = time.monotonic()
    with Path(os.environ["ALLPASS_METRICS_FILE"]).open("a") as metrics:
        tell(metrics, {"step": step, "training": {"saves": True}})
        while step < last:
            step += 1
            advance(state, step)
            time.sleep(given["step_s"])
            line = {"step": step, "at_s": time.time(), **told}
            tell(metrics, line)
            told = {}
            stopping = bool(stop_requests)
            if stopping or time.monotonic() - saved_s >= interval_s:
                name = f"step-{step}"
                begin_s = time.time()
                save(folder / name, state)
                saved_s = time.monotonic()
                tell(metrics, {**line, "save_begin_s": begin_s, "save_end_s": time.time(), "checkpoint": name})
            if stopping:
                return STOPPED
    assert all(state[at : at + 8] == step.to_bytes(8, "big") for at in range(0, len(state), BLOCK_BYTES))
    return 0


def first_state(size):
    return bytearray(random.Random(1).randbytes(size))


def advance(state, step):
    """Every block changes, so that no piece of the last checkpoint is one of the next."""
    for at in range(0, len(state), BLOCK_BYTES):
        state[at : at + 8] = step.to_bytes(8, "big")


def save(folder, state):
    hidden = folder.with_name("." + folder.name)
    hidden.mkdir(parents=True)
    if "ALLPASS_JOB_ID" in os.environ:
        from allpass.training.noted_file import NotedFile

        with NotedFile(hidden / "state", len(state)) as file:
            file.write(memoryview(state))
        with (hidden / "state").open("rb") as file:
            os.fsync(file.fileno())
    else:
        with (hidden / "state").open("wb", buffering=0) as file:
            view = memoryview(state)
            while view:
                view = view[file.write(view) :]
            os.fsync(file.fileno())
    hidden.rename(folder)


def load(folder):
    path = folder / "state"
    state = bytearray(path.stat().st_size)
    with path.open("rb", buffering=0) as file:
        view = memoryview(state)
        while view:
            view = view[file.readinto(view) :]
    return state


def tell(metrics, line):
    metrics.write(json.dumps(line) + "\n")
    metrics.flush()


def local_rounds(folder, size, rounds):
    """Seconds of a save and a load, in one process."""
    state, found = first_state(size), []
    for number in range(1, rounds + 1):
        advance(state, number)
        begin = time.perf_counter()
        save(folder / str(number), state)
        saved = time.perf_counter()
        load(folder / str(number))
        found.append([saved - begin, time.perf_counter() - saved])
        (folder / str(number) / "state").unlink()
    return found


if __name__ == "__main__":
    if len(sys.argv) == 4:
        print(json.dumps(local_rounds(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
    else:
        sys.exit(main())
