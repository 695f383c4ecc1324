"""Gradients of a step added up in the order of its parts, in the two ways that there are, over the loopback.

    .venv/bin/python -m benchmarks.sums
    .venv/bin/python -m benchmarks.sums --processes 4 --parts 8 --mib 1 --mib 64

For each size of all gradients, in float32: milliseconds of a step's exchange and sums, the middle of several, where all
are told to all (`gathered`) and where each process adds up a share (`shares`); how much each process takes in; and
whether both are the same, bit for bit, as one process that adds part after part. The last line is one JSON object;
`value` is the smallest size, in MiB, from which on shares take less time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing

from allpass.training.elastic.ranks import ManyRanks
from allpass.training.elastic.stillness import Presence
from allpass.training.elastic.summing import Gathered, InShares, Summing

MIB = 2**20
SIZES_MIB = (0.02, 0.25, 1, 4, 16, 64)
_ROWS = 16  # parameters


def parameters_of(mib: float) -> list[Any]:
    size = max(1, int(mib * MIB / 4 / _ROWS))
    return [torch.nn.Parameter(torch.zeros(size)) for _ in range(_ROWS)]


def part_of(parameters: Sequence[Any], step: int, part: int) -> None:
    """The gradients of this part, drawn."""
    torch.manual_seed(step * 1_000 + part)
    for one in parameters:
        one.grad = torch.randn_like(one)


def by_one(mib: float, step: int, parts: int) -> list[Any]:
    parameters = parameters_of(mib)
    totals: list[Any] = [None] * len(parameters)
    for part in range(parts):
        part_of(parameters, step, part)
        totals = [
            one.grad if total is None else total + one.grad for total, one in zip(totals, parameters, strict=True)
        ]
    return totals


def step_with(ranks: ManyRanks, summing: Summing, parameters: Sequence[Any], step: int, parts: int) -> float:
    """Seconds of exchange and sums: parts are drawn beside the clock."""
    took_s = 0.0
    at_once = summing.at_once
    for first in range(0, parts, ranks.count * at_once):
        numbers = range(first, min(parts, first + ranks.count * at_once))
        for number in numbers[ranks.own :: ranks.count]:
            part_of(parameters, step, number)
            summing.keep()
        began_s = time.perf_counter()
        summing.add([(True,) * len(parameters)] * len(numbers))
        took_s += time.perf_counter() - began_s
    began_s = time.perf_counter()
    summing.finish()
    return took_s + time.perf_counter() - began_s


def summing_of(way: str, ranks: ManyRanks, parameters: Sequence[Any]) -> Summing:
    if way == "gathered":
        return Gathered(ranks.all_bytes, ranks.confirm, ranks.count, parameters)
    return InShares(ranks.exchange, ranks.all_bytes, ranks.confirm, ranks.own, ranks.count, parameters)


def run(own: int, count: int, meeting: str, sizes: Sequence[float], parts: int, steps: int, told: Any) -> None:
    """One process."""
    torch.set_num_threads(1)
    presence = Presence(Path(f"{meeting}-presence"), own, count)
    ranks = ManyRanks(own, count, f"file://{meeting}", torch.device("cpu"), presence)
    for mib in sizes:
        for way in ("gathered", "shares"):
            parameters, times, is_same = parameters_of(mib), [], True
            for step in range(steps + 1):
                took_s = step_with(ranks, summing_of(way, ranks, parameters), parameters, step, parts)
                times += [took_s] if step else []  # the first one makes connections
                if step == steps:
                    alone = by_one(mib, step, parts)
                    is_same = all(torch.equal(one.grad, other) for one, other in zip(parameters, alone, strict=True))
            if own == 0:
                told.put((mib, way, statistics.median(times), is_same))
    ranks.leave()


def taken_in(way: str, mib: float, count: int, parts: int) -> float:
    """MiB that a process takes in for a step."""
    rounds = -(-parts // count)
    others = count - 1
    return rounds * others * mib if way == "gathered" else (rounds + 1) * others / count * mib


def measure(count: int, sizes: Sequence[float], parts: int, steps: int) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")  # noqa: PTH118 - a text, for processes of their own
        given = (count, meeting, tuple(sizes), parts, steps, told)
        processes = [context.Process(target=run, args=(own, *given)) for own in range(count)]
        for one in processes:
            one.start()
        rows = [told.get(timeout=600) for _ in range(2 * len(sizes))]
        for one in processes:
            one.join()
    return [
        {
            "mib": mib,
            "way": way,
            "step_ms": round(took_s * 1000, 2),
            "taken_in_mib": round(taken_in(way, mib, count, parts), 2),
            "is_same": is_same,
        }
        for mib, way, took_s, is_same in rows
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--parts", type=int, default=8, help="of a step")
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--mib", type=float, action="append", default=[], help="of all gradients, in float32")
    options = parser.parse_args()
    sizes = sorted(options.mib or SIZES_MIB)
    rows = measure(options.processes, sizes, options.parts, options.steps)
    for row in rows:
        print(json.dumps(row), flush=True)
    took = {(row["mib"], row["way"]): row["step_ms"] for row in rows}
    slower = [mib for mib in sizes if took[mib, "shares"] >= took[mib, "gathered"]]
    value = next((mib for mib in sizes if all(mib > one for one in slower)), None)
    print(json.dumps({"value": value, "processes": options.processes, "parts": options.parts, "rows": rows}))
    return 0 if all(row["is_same"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
