"""A team's own machine beside waiting jobs: from the end of one job to the first line of the next.

    python -m benchmarks.pools [--jobs 12]

A stack without any cloud, and one host that has joined a pool with one (emulated) GPU. Jobs wait in line for it; each
says when its code begins and when it ends. The value is the median time between the end of a job's code and the first
line of the next one's: the service hears of the end, the GPU is given back, the next job is decided on, the host starts
an agent, and that starts the code. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import allpass
from app.stack.here import program_of
from app.stack.supervisor import Clouds, Stack, StackOptions
from providers.emulators.nvidia_smi import EmulatedGpus

GOAL_S = 1.0
_LIMIT_S = 300
_CODE = """\
import time
print("begins", time.time(), flush=True)
time.sleep(0.3)
print("ends", time.time(), flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=12, help="that wait in line")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="allpass-pools-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        print(json.dumps(result_of(play(folder, options.jobs))))


def play(folder: Path, jobs: int) -> list[tuple[float, float]]:
    """When the code of each job began and ended, by the clock of the host, in the order in which they ran."""
    stack = Stack(StackOptions(data_dir=folder / "data", port=0, clouds=Clouds.NONE), tell=lambda _: None)
    stack.start()
    try:
        told = json.loads(stack.layout.client_file.read_text())
        with allpass.Client(told["url"], told["api_key"]) as client, OwnHost(folder / "host", client):
            return _run_all(client, folder, jobs)
    finally:
        stack.stop()


class OwnHost:
    """One that has joined pool `lab`; what runs on it ends with it."""

    def __init__(self, root: Path, client: allpass.Client, name: str = "box", *, gpus: int = 1) -> None:
        root.mkdir(mode=0o711)
        smi = root / "nvidia-smi"
        smi.write_text(EmulatedGpus("A100 SXM4", gpus, 40_960).script())
        smi.chmod(0o755)
        if not any(pool.name == "lab" for pool in client.pools()):
            client.create_pool("lab")
        words = ["join", client.url, "--no-start", "--name", name, "--nvidia-smi", str(smi), "--keep-free-gb", "0.1"]
        token = client.create_pool_token("lab").token
        subprocess.run([*program_of(root), *words], input=token, text=True, check=True, stdout=subprocess.DEVNULL)
        self._argv = [*program_of(root), "run", "--with-machines"]

    def __enter__(self) -> None:
        self._process = subprocess.Popen(self._argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)


def _run_all(client: allpass.Client, folder: Path, jobs: int) -> list[tuple[float, float]]:
    script = folder / "line.py"
    script.write_text(_CODE)
    app = allpass.build("line", "ada", code=script, client=client)
    found = []
    for job in [app.run(soft_deadline="6hr") for _ in range(jobs)]:
        if job.wait(timeout=_LIMIT_S, poll_s=0.2).status != "succeeded":
            sys.exit(f"{job.id} failed: {job.info().reason}")
        words = " ".join(job.logs()).split()
        found.append((float(words[words.index("begins") + 1]), float(words[words.index("ends") + 1])))
    return sorted(found)


def result_of(times: list[tuple[float, float]]) -> dict[str, Any]:
    gaps = [after[0] - before[1] for before, after in pairwise(times)]
    detail = {"jobs": len(times), "least_s": round(min(gaps), 3), "most_s": round(max(gaps), 3)}
    return {
        "name": "from a free own GPU to the first line of the next job",
        "value": round(statistics.median(gaps), 3),
        "goal": GOAL_S,
        "unit": "seconds",
        "detail": detail,
    }


if __name__ == "__main__":
    main()
