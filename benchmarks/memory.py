"""G14: predicted GPU memory, against runs that others measured and against symbolic runs.

    python -m benchmarks.memory --cases FILE --kind measured|symbolic [--json]

Accuracy of a row is `1 - |predicted - measured| / measured`. `symbolic` scores every row. `measured` scores complete
rows: those with allocated bytes at an exact or packed length make the value, all others are reported beside it; a row
is compared with the number of its own metric (allocated, reserved, or the process as the driver sees it). A "fits"
verdict overflows when a GPU size that the default margin calls sufficient is smaller than what was measured, with the
CUDA context where the metric leaves it out. Beside ours: the formula of the Frenzy paper and accelerate's estimate,
on the same rows. `sweep`: one job on 15 types of GPU, 1 to 8 of each, every layout and micro-batch timed and ranked.
Shapes come from the built-in table and from a `models.json` beside the file. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from app.core.memory import estimate, peak_of, verdict
from app.core.memory.fit import CONTEXT_BYTES, Estimate
from app.core.memory.formulas import accelerate_bytes, frenzy_bytes
from benchmarks.memory_cases import Case, measured_cases, symbolic_cases
from benchmarks.memory_sweep import sweep

GIB = 1 << 30
CAPACITIES_BYTES = tuple(
    round(size * GIB) for size in (6, 8, 10, 12, 14.6, 16, 22, 24, 32, 40, 44.5, 48, 79.1, 94, 139.8)
)
"""What drivers report for GPUs in use today; some of them are below the size on the label."""

GOALS = {"symbolic": 0.99, "measured": 0.98}
_WITHOUT_CONTEXT = {"torch_allocated", "torch_active", "torch_reserved", "torch_reserved_or_active"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, required=True, help="CSV file of cases")
    parser.add_argument("--kind", choices=("measured", "symbolic"), required=True)
    parser.add_argument("--json", action="store_true", help="nothing but the JSON object")
    options = parser.parse_args()
    told = scored(options.cases, options.kind)
    if not options.json:
        _show(told["detail"])
    print(json.dumps(told))


def scored(path: Path, kind: str) -> dict[str, Any]:
    """Predicts every case of a file; `value` is the mean accuracy of the rows that count."""
    cases, left_out = (symbolic_cases(path), []) if kind == "symbolic" else measured_cases(path)
    rows = [(case, estimate(case.model, case.training, case.semantics)) for case in cases]
    strong = [(case, found) for case, found in rows if case.strong]
    other = [(case, found) for case, found in rows if not case.strong]
    ours = [_accuracy(_predicted(case, found), case) for case, found in strong]
    detail: dict[str, Any] = {
        "strong": _summary(ours),
        "other": _summary([_accuracy(_predicted(case, found), case) for case, found in other]),
        "overflowing_fits": {"strong": _overflowing(strong), "other": _overflowing(other)},
        "by_group": _by_group(rows),
        "paper_formula": _summary([_accuracy(frenzy_bytes(c.model, c.training), c) for c, _ in strong]),
        "accelerate": _summary([_accuracy(accelerate_bytes(c.model, c.training), c) for c, _ in strong]),
        "prediction_us": _prediction_us(cases),
        "sweep": sweep(),
        "worst": _worst(rows),
        "left_out": left_out,
    }
    value = detail["strong"].get("mean", 0.0)
    return {"name": f"memory_{kind}", "value": value, "goal": GOALS[kind], "unit": "mean accuracy", "detail": detail}


def _predicted(case: Case, found: Estimate) -> int:
    if case.metric.startswith("torch_reserved"):
        return found.reserved.expected
    if case.metric in _WITHOUT_CONTEXT:
        return found.allocated.expected
    return found.process.expected


def _accuracy(predicted: int, case: Case) -> float:
    return 1 - abs(predicted - case.measured_bytes) / case.measured_bytes


def _overflowing(rows: Iterable[tuple[Case, Estimate]]) -> int:
    """Rows for which some GPU was called sufficient and is not."""
    return sum(
        any(verdict(found, size) == "fits" and _needed(case) > size for size in CAPACITIES_BYTES)
        for case, found in rows
    )


def _needed(case: Case) -> int:
    return case.measured_bytes + (CONTEXT_BYTES if case.metric in _WITHOUT_CONTEXT else 0)


def _summary(accuracies: Sequence[float]) -> dict[str, Any]:
    if not accuracies:
        return {"count": 0}
    return {
        "count": len(accuracies),
        "mean": round(statistics.fmean(accuracies), 4),
        "median": round(statistics.median(accuracies), 4),
        "worst": round(min(accuracies), 4),
    }


def _by_group(rows: Iterable[tuple[Case, Estimate]]) -> dict[str, Any]:
    groups: dict[str, list[tuple[Case, Estimate]]] = defaultdict(list)
    for case, found in rows:
        groups[case.group + ("" if case.strong else " (other)")].append((case, found))
    return {
        name: _summary([_accuracy(_predicted(case, found), case) for case, found in members])
        | {"overflowing_fits": _overflowing(members)}
        for name, members in sorted(groups.items())
    }


def _worst(rows: Iterable[tuple[Case, Estimate]], count: int = 8) -> list[dict[str, Any]]:
    told = [
        {"accuracy": round(_accuracy(_predicted(case, found), case), 4), "case": case.label, "strong": case.strong}
        for case, found in rows
    ]
    told.sort(key=lambda each: (not each["strong"], each["accuracy"]))
    return told[:count]


def _prediction_us(cases: Sequence[Case], rounds: int = 5) -> float:
    """Microseconds for one prediction once its kind has been compiled: the best of several rounds over all cases."""
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        for case in cases:
            peak_of(case.model, case.training, case.semantics)
        best = min(best, time.perf_counter() - started)
    return round(best / max(len(cases), 1) * 1e6, 1)


def _show(detail: dict[str, Any]) -> None:
    print(f"{'method/framework/metric':58} {'rows':>5} {'mean':>7} {'median':>7} {'worst':>7} {'overflow':>8}")
    for name, row in detail["by_group"].items():
        numbers = f"{row['count']:5} {row['mean']:7.2%} {row['median']:7.2%} {row['worst']:7.2%}"
        print(f"{name:58} {numbers} {row['overflowing_fits']:8}")
    for name in ("strong", "other", "paper_formula", "accelerate"):
        print(name, json.dumps(detail[name]))


if __name__ == "__main__":
    main()
