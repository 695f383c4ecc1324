"""G23: interactive and batch jobs that share a cluster, elastic, with what resizes cost.

    python -m benchmarks.mixed [--trace FILE] [--jobs 3000] [--gpus 320]... [--seed 0] [--goals-only] [--json]

Without `--trace`, jobs like those of Philly are generated, with gaps that give the load of the paper's window: 1,100
GPUs' worth. Each cluster plays Cornucopia (`mended` and `literal` rules), Tiresias, SRTF with an oracle, FIFO and an
ElasticFlow without deadlines without costs, then Cornucopia, Tiresias and SRTF under every model of a resize, then
Cornucopia with 5 and 10 % of the batch jobs labelled interactive, with 5 and 10 % of each class of sizes inelastic,
and with batches of as many logical shards as twice the request. `floor`: the interactive jobs alone, first come first
served, which is the least that a rule has them wait that never preempts one. `value` is the mean completion time
relative to Tiresias on the smallest cluster, both with the costs of an 8B LoRA; `missed` names the parts of the goal
that are not met. `--goals-only` leaves out the plays that no part of the goal needs. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.simulator.elastic.comparing import POLICIES, play
from app.simulator.elastic.costs import FREE, LORA_8B, MODELS, ResizeModel
from app.simulator.elastic.workload import MixedJob, MixedOptions, mixed_jobs
from app.simulator.traces.generating import generate
from app.simulator.traces.job import Trace
from app.simulator.traces.reading import read_trace

GPUS = (320, 640, 960)
LOAD_GPUS = 1100.0  # of the paper's window: 22,551,101 + 187,421 GPU-minutes in 14 days
LARGEST = 32  # GPUs of a job in that window
GOAL_TIRESIAS = {320: 0.30, 960: 0.95}
GOAL_SRTF = {960: 1.05}
GOAL_FIRST_GPU_S, GOAL_FULL_SIZE_S, GOAL_MISLABELLED = 1.0, 60.0, 1.05
OURS = "cornucopia"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, metavar="FILE")
    parser.add_argument("--jobs", type=int, default=3000, help="generated ones")
    parser.add_argument("--gpus", type=int, action="append", default=[])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--goals-only", action="store_true")
    parser.add_argument("--json", action="store_true", help="nothing but the JSON object")
    options = parser.parse_args()
    trace = read_trace(options.trace) if options.trace else generated(options.jobs, options.seed)
    rows: list[dict[str, Any]] = []
    for gpus in options.gpus or GPUS:
        for row in plays(trace, gpus, options.seed, goals_only=options.goals_only):
            rows.append(row)
            if not options.json:
                print(json.dumps(row), flush=True)
    print(json.dumps(told(trace, rows)))


def generated(count: int, seed: int) -> Trace:
    """Jobs with Philly's published sizes and durations, none larger than the window's largest, at its load."""
    jobs = [replace(one, gpus=min(one.gpus, LARGEST)) for one in generate("philly", count, seed).jobs]
    span_s = sum(one.gpu_seconds for one in jobs) / LOAD_GPUS
    first_s, last_s = jobs[0].submit_s, jobs[-1].submit_s
    scale = span_s / (last_s - first_s) if last_s > first_s else 1.0
    return Trace.of("philly, generated", [replace(one, submit_s=(one.submit_s - first_s) * scale) for one in jobs])


def plays(trace: Trace, gpus: int, seed: int, *, goals_only: bool = False) -> Iterator[dict[str, Any]]:
    """All plays on one cluster."""
    usual = MixedOptions(seed)
    jobs = mixed_jobs(trace, usual)
    alone = [one for one in jobs if one.is_interactive]
    compared = (OURS, "tiresias", "srtf")
    yield _row("floor", "fifo", alone, gpus, FREE)
    for name in compared if goals_only else POLICIES:
        yield _row("usual", name, jobs, gpus, FREE)
    for costs in (LORA_8B,) if goals_only else tuple(one for one in MODELS.values() if one is not FREE):
        for name in compared:
            yield _row("usual", name, jobs, gpus, costs)
    cases = {
        "mislabelled 10 %": replace(usual, mislabelled=0.10),
        "mislabelled 5 %": replace(usual, mislabelled=0.05),
        "inelastic 5 %": replace(usual, inelastic=0.05),
        "inelastic 10 %": replace(usual, inelastic=0.10),
        "shards": replace(usual, shards_per_gpu=2),
    }
    for case, one in list(cases.items())[: 1 if goals_only else None]:
        yield _row(case, OURS, mixed_jobs(trace, one), gpus, FREE)


def _row(case: str, policy: str, jobs: Sequence[MixedJob], gpus: int, costs: ResizeModel) -> dict[str, Any]:
    started = time.perf_counter()
    found = play(policy, jobs, gpus, costs)
    took_s = round(time.perf_counter() - started, 1)
    return {"gpus": gpus, "case": case, "policy": policy, "costs": costs.name, "took_s": took_s, **found}


def told(trace: Trace, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The goal's figures by cluster, and which parts are missed."""
    clusters = {gpus: _goals(gpus, rows) for gpus in dict.fromkeys(one["gpus"] for one in rows)}
    smallest = min(clusters)
    return {
        "name": "mixed",
        "value": clusters[smallest]["to_tiresias_lora"],
        "goal": GOAL_TIRESIAS[320],
        "unit": f"mean completion time relative to Tiresias at {smallest} GPUs, resizes as of an 8B LoRA",
        "detail": {
            "trace": trace.name,
            "jobs": len(trace.jobs),
            "clusters": clusters,
            "missed": [f"{gpus} GPUs: {part}" for gpus, one in clusters.items() for part in _missed(gpus, one)],
        },
    }


def _goals(gpus: int, rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    found = {(one["case"], one["policy"], one["costs"]): one for one in rows if one["gpus"] == gpus}
    mean = {key: one["mean_jct_s"] for key, one in found.items()}
    lora, free = found["usual", OURS, LORA_8B.name], mean["usual", OURS, FREE.name]
    costs = LORA_8B.name
    figures = {
        "to_tiresias": free / mean["usual", "tiresias", FREE.name],
        "to_tiresias_lora": lora["mean_jct_s"] / mean["usual", "tiresias", costs],
        "to_srtf": free / mean["usual", "srtf", FREE.name],
        "to_srtf_lora": lora["mean_jct_s"] / mean["usual", "srtf", costs],
        "first_gpu_p99_s_lora": lora["interactive"]["p99_first_gpu_s"],
        "first_gpu_p99_s_floor": found["floor", "fifo", FREE.name]["interactive"]["p99_first_gpu_s"],
        "full_size_p95_s_lora": lora["interactive"]["p95_full_size_s"],
        "mislabelled_10": mean["mislabelled 10 %", OURS, FREE.name] / free,
    }
    return {name: round(value, 4) for name, value in figures.items()}


def _missed(gpus: int, found: dict[str, float]) -> list[str]:
    bounds = {
        "to_tiresias_lora": GOAL_TIRESIAS.get(gpus),
        "to_srtf_lora": GOAL_SRTF.get(gpus),
        "first_gpu_p99_s_lora": GOAL_FIRST_GPU_S,
        "full_size_p95_s_lora": GOAL_FULL_SIZE_S,
        "mislabelled_10": GOAL_MISLABELLED,
    }
    return [name for name, bound in bounds.items() if bound is not None and found[name] > bound]


if __name__ == "__main__":
    main()
