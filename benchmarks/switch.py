"""How long a machine takes from being told of a fine-tuning to its first step: cold, cached, and from a warm process.

    .venv/bin/python -m benchmarks.switch [--layers 13] [--rounds 3]

A real agent on this host, a control plane in memory, and jobs of the built-in recipe on one causal model of about 15 MB
a layer. Cold: the first job of an agent, with the files of model and libraries dropped from the page cache as far as
the system lets us. Cached: the next job, of an agent that keeps no spare process. Warm: the next job, of one that does,
once the spare has loaded. All give the same losses. `value` is the median of warm over that of cached. The last line is
one JSON object.
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
from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import Plane, serve
from workers.agent.build import build_zipapp
from workers.agent.spares import SETTLE_S

PATIENCE_S = 600.0
HIDDEN = 640
ROWS = [{"prompt": f"{number}+1=", "completion": str(number + 1)} for number in range(16)]
LIBRARIES = ("torch", "transformers", "peft", "tokenizers", "safetensors", "numpy")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=13)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="allpass-bench-") as name:
        folder = Path(name)
        model = make_model(folder / "model", options.layers)
        build_zipapp(folder / "agent.pyz")
        size_mb = sum(path.stat().st_size for path in model.iterdir()) / 1e6
        rounds = [measure(folder / str(number), folder / "agent.pyz", model) for number in range(options.rounds)]
    found = {kind: [one[kind] for one in rounds] for kind in ("cold", "cached", "warm")}
    print(f"{'':8}{'median':>9}{'all':>30}    to the first step, on a model of {size_mb:.0f} MB")
    for kind, seconds in found.items():
        every = "  ".join(f"{one:.2f}" for one in seconds)
        print(f"{kind:8}{statistics.median(seconds):8.2f}s{every:>30}")
    print(json.dumps(report(found, size_mb)))
    return 0


def report(found: dict[str, list[float]], size_mb: float) -> dict[str, Any]:
    medians = {f"{kind}_s": round(statistics.median(seconds), 2) for kind, seconds in found.items()}
    value = round(statistics.median(found["warm"]) / statistics.median(found["cached"]), 3)
    rounds = len(found["cold"])
    return {
        "name": "switch",
        "value": value,
        "goal": 1.0,
        "unit": "x a cached start",
        "detail": {**medians, "model_mb": round(size_mb), "rounds": rounds, "cpus": os.cpu_count()},
    }


def make_model(folder: Path, layers: int) -> Path:
    example = Path(__file__).resolve().parents[1] / "examples" / "tiny_model.py"
    runpy.run_path(str(example))["llama"](folder, HIDDEN, layers)
    return folder


def measure(folder: Path, zipapp: Path, model: Path) -> dict[str, float]:
    """One round: seconds until the first step of each kind of start. Raises AssertionError where losses differ."""
    settings = {"model": str(model), "steps": 2, "batch_size": 4, "precision": "fp32", "lora_rank": 4}
    forget_files([model, *map(home_of, LIBRARIES)])
    with machine(folder / "plain", zipapp, spares=False) as (plane, agent):
        cold, losses = start(plane, agent, settings)
        cached, again = start(plane, agent, settings)
    with machine(folder / "warm", zipapp, spares=True) as (plane, agent):
        start(plane, agent, settings)
        await_spare(agent)
        warm, last = start(plane, agent, settings)
    assert losses == again == last, "a warm process trains otherwise"
    return {"cold": cold, "cached": cached, "warm": warm}


@contextmanager
def machine(root: Path, zipapp: Path, *, spares: bool) -> Iterator[tuple[Plane, AgentProcess]]:
    plane = Plane()
    server = serve(plane)
    agent = AgentProcess(zipapp, plane, root, {"ALLPASS_AGENT_SPARES": str(int(spares))})
    try:
        yield plane, agent
    finally:
        agent.terminate()
        agent.wait(60)
        server.shutdown()
        server.server_close()


def start(plane: Plane, agent: AgentProcess, settings: dict[str, Any]) -> tuple[float, list[float]]:
    """Run a job to its end: seconds until its first step, and its losses."""
    packed = pack(settings, ROWS)
    run = desired(
        plane, packed.bundle.content, entrypoint=packed.bundle.entrypoint, parameters=packed.recipe.parameters()
    )
    metrics = agent.root / "runs" / run.run_id / "metrics.jsonl"
    began_s = time.perf_counter()
    plane.want(run)
    wait_for(lambda: metrics.exists() and '"loss"' in metrics.read_text(), "the first step")
    took_s = time.perf_counter() - began_s
    ended = plane.wait_exit(run.run_id, PATIENCE_S)
    assert ended.exit_code == 0, plane.log(run.run_id)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    plane.unlist(run.run_id)
    return took_s, [line["loss"] for line in lines if "loss" in line]


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
