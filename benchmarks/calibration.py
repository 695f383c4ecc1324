"""From what other benchmarks and rehearsals have printed to a file for `allpass simulate --calibrate`.

    python -m benchmarks.migration > migration.txt
    python -m benchmarks.switch > switch.txt
    python -m benchmarks.calibration migration.txt switch.txt allpass-smoke-vast-*.json > measured.json
    allpass simulate --world measured --calibrate measured.json

It takes of `benchmarks.migration` the median pause of a move that is made before the old place is broken (`move_s`), of
`benchmarks.switch` the start of a job that finds everything on its machine (`begin_s`), and of each report of `allpass
smoke` how long machines of that company took until they were ready (mean, and deviation from three machines on). All
else stays what the world says. The only output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from app.core.model.node import Tier
from app.simulator.scenario import PROVIDERS

_TIERS = {provider: tier for tier, provider in PROVIDERS.items()} | {"runpod": Tier.MARKETPLACE}
_ENOUGH = 3  # machines, for a deviation


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    told = calibration(parser.parse_args().files)
    if len(told) == 1:
        print("no file has anything that a world consists of; see --help for those that have", file=sys.stderr)
        return 1
    print(json.dumps(told, indent=1))
    return 0


def calibration(files: list[Path]) -> dict[str, Any]:
    """What the files say, by the names of a world's figures."""
    found: dict[str, Any] = {"about": f"from {', '.join(sorted(path.name for path in files))}"}
    ready_s: dict[Tier, list[float]] = defaultdict(list)
    for path in files:
        for one in _objects(path.read_text(encoding="utf-8", errors="replace")):
            found |= _of_benchmark(one)
            tier = _TIERS.get(str(one.get("provider")))
            if tier is not None:
                ready_s[tier] += _ready_s(one)
    for tier, seconds in ready_s.items():
        if seconds:
            found[tier.value] = _startup(seconds)
    return found


def _of_benchmark(one: Mapping[str, Any]) -> dict[str, float]:
    detail = one.get("detail")
    if not isinstance(detail, Mapping):
        return {}
    if one.get("name") == "migration":
        return {"move_s": round(statistics.median(detail["pause_s"]["make_before_break"]), 3)}
    return {"begin_s": detail["cached_s"]} if one.get("name") == "switch" else {}


def _ready_s(report: Mapping[str, Any]) -> list[float]:
    machines = report.get("machines", [])
    return [float(one["ready_after_s"]) for one in machines if one.get("ready_after_s")]


def _startup(seconds: list[float]) -> dict[str, float]:
    mean = {"startup_mean_s": round(statistics.mean(seconds), 2)}
    deviation = round(statistics.stdev(seconds), 2) if len(seconds) >= _ENOUGH else 0.0
    return mean | ({"startup_sd_s": deviation} if deviation else {})


def _objects(text: str) -> Iterator[Mapping[str, Any]]:
    """The JSON objects in it: the whole, or each line that is one."""
    for piece in (text, *text.splitlines()):
        try:
            told = json.loads(piece)
        except ValueError:
            continue
        if isinstance(told, Mapping):
            yield told
            if piece is text:
                return


if __name__ == "__main__":
    sys.exit(main())
