"""Predicted GPU memory against this machine's own GPU, before and after calibration.

    PYTHONPATH=sdk python3 -m benchmarks.memory_gpu [--json]

Two models of the table with random weights (no network): full training in bf16, LoRA, and QLoRA where bitsandbytes is
installed, each with and without checkpointing and with two attention kernels. Every case trains three steps in a
process of its own and tells its peaks. Needs a CUDA device, numpy, torch, transformers and peft, and nothing else of
this repository's environment. Accuracy is `1 - |predicted - measured| / measured` of allocated bytes; `calibrated` is
leave-one-out: each case is predicted by what all others of its kind taught. Cases that are not sure to fit are left out
and named. The last line is one JSON object. Without CUDA it says why and ends with exit code 2.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from app.core.memory import MODELS, Estimate, Training, estimate
from app.core.memory.calibration import Calibration, Observed, corrected, kind_of, learned

NO_CUDA = 2
BATCH, SEQUENCE = 2, 512
NAMES = ("smollm2-360m", "llama-3.2-1b")
LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes")


@dataclass(frozen=True, slots=True)
class Case:
    """One training on one GPU, in the words of `Training`."""

    model: str
    method: str
    attention: str
    checkpointing: bool

    @property
    def training(self) -> Training:
        packed = self.method == "qlora"
        return Training(
            method=self.method,  # type: ignore[arg-type]  # a word of the list below
            batch=BATCH,
            sequence=SEQUENCE,
            optimizer="adamw_foreach",
            attention=self.attention,  # type: ignore[arg-type]  # a word of the list below
            checkpointing=self.checkpointing,
            autocast=packed,
            quantisation="nf4_dq" if packed else "none",
        )

    @property
    def label(self) -> str:
        return f"{self.model} {self.method} {self.attention}{' checkpointing' if self.checkpointing else ''}"


@dataclass(frozen=True, slots=True)
class Device:
    """What the machine has. `versions`: of the libraries that are installed."""

    gpu_type: str
    total_bytes: int
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Row:
    """A case with what was measured."""

    case: Case
    observed: Observed

    @property
    def predicted(self) -> Estimate:
        return estimate(MODELS[self.case.model], self.case.training)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="nothing but the JSON object")
    options = parser.parse_args(arguments)
    why_not = missing()
    if why_not is not None:
        print(f"memory_gpu cannot measure here: {why_not}", file=sys.stderr)
        print(json.dumps({"name": "memory_gpu", "value": None, "reason": why_not}))
        return NO_CUDA
    told = measured_all(this_device(), in_its_own_process, (lambda text: None) if options.json else print)
    print(json.dumps(told))
    return 0 if told["value"] is not None else 1


def missing() -> str | None:
    """Why nothing can be measured on this machine; None where it can."""
    for name in ("torch", "transformers", "peft"):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed"
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device"
    if not torch.cuda.is_bf16_supported():
        return f"{torch.cuda.get_device_name()} has no bf16"
    return None


def this_device() -> Device:
    """The first GPU, and the libraries."""
    from importlib.metadata import version

    import torch

    found = {name: version(name) for name in LIBRARIES if importlib.util.find_spec(name) is not None}
    return Device(torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory, found)


def cases(versions: Mapping[str, str]) -> Iterator[Case]:
    """24 of them, or 16 where bitsandbytes is not installed."""
    methods = ("full", "lora", "qlora") if "bitsandbytes" in versions else ("full", "lora")
    for name in NAMES:
        for method in methods:
            for attention in ("flash", "eager"):
                for checkpointing in (False, True):
                    yield Case(name, method, attention, checkpointing)


def measured_all(device: Device, measure: Callable[[Case], Observed], tell: Callable[[str], None]) -> dict[str, Any]:
    """Measures what is sure to fit, and scores it."""
    rows, left_out = [], []
    for case in cases(device.versions):
        needed = estimate(MODELS[case.model], case.training).needed
        if needed > device.total_bytes:
            left_out.append(f"{case.label}: needs {needed / 1e9:.1f} GB to be sure")
            continue
        row = Row(case, measure(case))
        rows.append(row)
        tell(
            f"{case.label:48} {_gb(row.predicted.allocated.expected)} predicted, {_gb(row.observed.allocated)} measured"
        )
    return scored(device, rows, left_out)


def scored(device: Device, rows: Sequence[Row], left_out: Sequence[str]) -> dict[str, Any]:
    """`value`: the mean accuracy as predicted; `detail` has it calibrated too, and by method."""
    done = [row for row in rows if row.observed.allocated]
    plain = {row.case: _accuracy(row.predicted, row.observed) for row in done}
    better = {row.case: _accuracy(_calibrated(device, row, done), row.observed) for row in done}
    detail: dict[str, Any] = {
        "gpu": device.gpu_type,
        "total_bytes": device.total_bytes,
        "versions": dict(device.versions),
        "predicted": _summary(plain.values()),
        "calibrated": _summary(better.values()),
        "by_method": {
            method: {
                "predicted": _summary(value for case, value in plain.items() if case.method == method),
                "calibrated": _summary(value for case, value in better.items() if case.method == method),
            }
            for method in sorted({case.method for case in plain})
        },
        "out_of_memory": [row.case.label for row in rows if row.observed.out_of_memory_bytes is not None],
        "left_out": list(left_out),
        "rows": [{**asdict(row.case), **asdict(row.observed), "accuracy": round(plain[row.case], 4)} for row in done],
    }
    value = detail["predicted"].get("mean")
    return {"name": "memory_gpu", "value": value, "goal": None, "unit": "mean accuracy", "detail": detail}


def _calibrated(device: Device, row: Row, rows: Iterable[Row]) -> Estimate:
    """As all other rows of its kind would have it."""
    kind = _kind(device, row)
    known: Calibration | None = None
    for other in rows:
        if other.case != row.case and _kind(device, other) == kind:
            known = learned(known, other.predicted, other.observed) or known
    return corrected(row.predicted, known)


def _kind(device: Device, row: Row) -> object:
    return kind_of(MODELS[row.case.model], row.case.training, device.gpu_type, device.versions)


def _accuracy(found: Estimate, observed: Observed) -> float:
    measured = observed.allocated or 0
    return 1 - abs(found.allocated.expected - measured) / measured


def _summary(accuracies: Iterable[float]) -> dict[str, Any]:
    found = list(accuracies)
    if not found:
        return {"count": 0}
    return {"count": len(found), "mean": round(statistics.fmean(found), 4), "worst": round(min(found), 4)}


def _gb(size: int | None) -> str:
    return "       -" if size is None else f"{size / 1e9:5.2f} GB"


def in_its_own_process(case: Case) -> Observed:
    """Peaks of a fresh process. Raises RuntimeError with its last words where it ended badly."""
    command = [sys.executable, "-m", "benchmarks.memory_gpu_case", json.dumps(asdict(case))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{case.label}: {done.stderr.strip()[-2000:]}")
    return Observed(**json.loads(done.stdout.strip().splitlines()[-1]))


if __name__ == "__main__":
    sys.exit(main())
