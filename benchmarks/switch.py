"""How long a machine takes from being told of a fine-tuning to its first step: cold, cached, from a warm process, and
with what it needs fetched ahead.

    .venv/bin/python -m benchmarks.switch [--layers 13] [--rounds 3] [--mbit 200]

A real agent on this host, a control plane in memory, and jobs of the built-in recipe on one causal model of about 15 MB
a layer. Cold: the first job of an agent, with the files of model and libraries dropped from the page cache as far as
the system lets us. Cached: the next job, of an agent that keeps no spare process. Warm: the next job, of one that does,
once the spare has loaded. Then a job that has nothing in common with what the machine has run: its model comes from a
hub on this host that sends at most so many Mbit/s, its environment is one small wheel. Unprepared: on a machine that
fetches nothing ahead. Ahead: on one that has done so while another job ran. All give the same losses. `value` is the
median of warm over that of cached. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import runpy
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from allpass.recipe.packing import pack
from allpass.wire.agent import DesiredRun
from tests.workers.agents import AgentProcess, desired
from tests.workers.hub import serving
from tests.workers.plane import Plane, serve
from tests.workers.test_preparing import wheel
from workers.agent.build import build_zipapp
from workers.agent.spares import SETTLE_S

PATIENCE_S = 600.0
HIDDEN = 640
ROWS = [{"prompt": f"{number}+1=", "completion": str(number + 1)} for number in range(16)]
NAME = "bench/model"
LIBRARIES = ("torch", "transformers", "peft", "tokenizers", "safetensors", "numpy")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=13)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mbit", type=float, default=200.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="allpass-bench-") as name:
        folder = Path(name)
        model = make_model(folder / "model", options.layers)
        build_zipapp(folder / "agent.pyz")
        size_mb = sum(path.stat().st_size for path in model.iterdir()) / 1e6
        rounds = [
            measure(folder / str(number), folder / "agent.pyz", model, options.mbit) for number in range(options.rounds)
        ]
    found = {kind: [one[kind] for one in rounds] for kind in rounds[0]}
    print(f"{'':11}{'median':>9}{'all':>30}    to the first step, on a model of {size_mb:.0f} MB")
    for kind, seconds in found.items():
        every = "  ".join(f"{one:.2f}" for one in seconds)
        print(f"{kind:11}{statistics.median(seconds):8.2f}s{every:>30}")
    print(json.dumps(report(found, size_mb, options.mbit)))
    return 0


def report(found: dict[str, list[float]], size_mb: float, mbit: float) -> dict[str, Any]:
    medians = {f"{kind}_s": round(statistics.median(seconds), 2) for kind, seconds in found.items()}
    value = round(statistics.median(found["warm"]) / statistics.median(found["cached"]), 3)
    rounds = len(found["cold"])
    return {
        "name": "switch",
        "value": value,
        "goal": 1.0,
        "unit": "x a cached start",
        "detail": {
            **medians,
            "model_mb": round(size_mb),
            "hub_mbit_per_s": mbit,
            "rounds": rounds,
            "cpus": os.cpu_count(),
        },
    }


def make_model(folder: Path, layers: int) -> Path:
    example = Path(__file__).resolve().parents[1] / "examples" / "tiny_model.py"
    runpy.run_path(str(example))["llama"](folder, HIDDEN, layers)
    return folder


def measure(folder: Path, zipapp: Path, model: Path, mbit: float) -> dict[str, float]:
    """One round: seconds until the first step of each kind of start. Raises AssertionError where losses differ."""
    settings = {"model": str(model), "steps": 2, "batch_size": 4, "precision": "fp32", "lora_rank": 4}
    forget_files([model, *map(home_of, LIBRARIES)])
    with machine(folder / "plain", zipapp, ALLPASS_AGENT_SPARES="0") as (plane, agent):
        cold, losses = start(plane, agent, settings)
        cached, again = start(plane, agent, settings)
    with machine(folder / "warm", zipapp) as (plane, agent):
        start(plane, agent, settings)
        await_spare(agent)
        warm, last = start(plane, agent, settings)
    took = {"cold": cold, "cached": cached, "warm": warm}
    for kind in ("unprepared", "ahead"):
        took[kind], other = new_on_a_busy_machine(folder / kind, zipapp, model, settings, mbit, ahead=kind == "ahead")
        assert losses == other, "a model from the hub trains otherwise"
    assert losses == again == last, "a warm process trains otherwise"
    return took


def new_on_a_busy_machine(
    folder: Path, zipapp: Path, model: Path, settings: dict[str, Any], mbit: float, *, ahead: bool
) -> tuple[float, list[float]]:
    """A job that needs what this machine has never had, as soon as another one ends there."""
    folder.mkdir(parents=True)
    wheel(folder, "allpass_test_extra", "2.5", "VALUE = 1")
    files = {path.name: path.read_bytes() for path in model.iterdir()}
    installer = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": os.devnull}
    with serving({NAME: files}) as hub:
        hub.bytes_per_s = mbit * 1e6 / 8
        environ = {"HF_ENDPOINT": hub.url, "ALLPASS_AGENT_AHEAD": str(int(ahead)), **installer}
        with machine(folder / "machine", zipapp, **environ) as (plane, agent):
            busy = desired(plane, "import time\nwhile True: time.sleep(0.1)", job_id="job_busy")
            plane.want(busy)
            wait_for(lambda: phase_of(plane, busy) == "running", "a busy machine")
            more = {"pip": ["allpass-test-extra"], "environment_sha256": "1" * 64}
            run = job(plane, {**settings, "model": NAME}, **more)
            plane.advise(*[run] * ahead)
            wait_for(lambda: not ahead or is_there(agent.root), "what is fetched ahead")
            plane.unlist(busy.run_id)
            return first_step(plane, agent, run)


def is_there(root: Path) -> bool:
    fetched = all(any(root.glob(kind)) for kind in ("contents/*/*", "environments/*/ahead", "models/*/*/*"))
    return fetched and not any(root.glob("*/prefetch-*"))


@contextmanager
def machine(root: Path, zipapp: Path, **environ: str) -> Iterator[tuple[Plane, AgentProcess]]:
    plane = Plane()
    server = serve(plane)
    agent = AgentProcess(zipapp, plane, root, environ)
    try:
        yield plane, agent
    finally:
        agent.terminate()
        agent.wait(60)
        server.shutdown()
        server.server_close()


def start(plane: Plane, agent: AgentProcess, settings: dict[str, Any]) -> tuple[float, list[float]]:
    """Run a job to its end: seconds until its first step, and its losses."""
    return first_step(plane, agent, job(plane, settings))


def job(plane: Plane, settings: dict[str, Any], **more: Any) -> DesiredRun:
    packed = pack(settings, ROWS)
    more.update(entrypoint=packed.bundle.entrypoint, parameters=packed.parameters)
    return desired(plane, packed.bundle.content, **more)


def first_step(plane: Plane, agent: AgentProcess, run: DesiredRun) -> tuple[float, list[float]]:
    metrics = agent.root / "runs" / run.run_id / "metrics.jsonl"
    began_s = time.perf_counter()
    plane.want(run)
    wait_for(lambda: phase_of(plane, run) == "exited" or '"loss"' in text_of(metrics), "the first step")
    took_s = time.perf_counter() - began_s
    ended = plane.wait_exit(run.run_id, PATIENCE_S)
    assert ended.exit_code == 0, plane.log(run.run_id)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    plane.unlist(run.run_id)
    return took_s, [line["loss"] for line in lines if "loss" in line]


def phase_of(plane: Plane, run: DesiredRun) -> str | None:
    told = plane.report(run.run_id)
    return None if told is None else told.phase


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def await_spare(agent: AgentProcess) -> None:
    wait_for(lambda: any((agent.root / "runs").glob("spare-*/tmp/.loaded")), f"a spare, {SETTLE_S} s after the job")


def wait_for(holds: Any, what: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError(f"waited {PATIENCE_S:.0f} s for {what}")
        time.sleep(0.005)


def home_of(library: str) -> Path:
    spec = importlib.util.find_spec(library)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else Path(sys.prefix, library)


def forget_files(folders: list[Path]) -> None:
    """Drop what the kernel keeps of these files in memory; pages that somebody has mapped stay."""
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                handle = os.open(path, os.O_RDONLY)
                try:
                    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(handle)


if __name__ == "__main__":
    sys.exit(main())
