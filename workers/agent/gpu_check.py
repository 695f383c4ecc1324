"""A first calculation on one GPU: bytes there and back, and matrix products that the CPU has worked out as well.

A program of its own, run by the machine's Python before any user code, one process for each GPU. Its arguments are the
device ("cuda", which is the GPU that CUDA_VISIBLE_DEVICES leaves it, or "cpu") and, optionally, a folder to load torch
from. It prints a line of JSON for each stage; the last one has the `result`. What it multiplies are small whole
numbers, so each product is exact in every precision and order of summing, and a single wrong bit shows.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any, Dict

RIGHT, WRONG, ERROR, UNABLE = "right", "wrong", "error", "unable"
_SIDE = 1024  # sums of so many products of -1, 0 and 1 are exact in half precision, too
_COPIED = 8 * 1024 * 1024  # numbers of four bytes
_WORK_S = 1.0


def main() -> int:
    device, folder = sys.argv[1], sys.argv[2:]
    sys.path[:0] = folder
    try:
        torch: Any = importlib.import_module("torch")
        told = {"torch": str(torch.__version__), "cuda": getattr(torch.version, "cuda", None)}
        first, second, product = _worked_out(torch)
        sent = torch.arange(_COPIED, dtype=torch.int32)
    except Exception as error:  # of whatever the image holds: no fault of a GPU
        _say(result=UNABLE, why=f"torch cannot be loaded: {_words(error)}")
        return 0
    _say(stage="device", **told)
    began = time.monotonic()
    try:
        wrong = _wrong(torch, device, sent, first, second, product)
    except Exception as error:  # in torch's words
        _say(result=ERROR, why=_words(error), **told)
        return 0
    ms = round(1000 * (time.monotonic() - began))
    _say(result=WRONG if wrong else RIGHT, why=wrong, ms=ms, **told)
    return 0


def _worked_out(torch: Any) -> Any:
    """Two matrices, and their product by the CPU."""
    places = torch.arange(2 * _SIDE * _SIDE, dtype=torch.int64)
    mixed = (places * 1103515245 + 12345) % 2147483648 // 65536 % 3 - 1  # as chance would have it, always the same
    both = mixed.to(torch.float32).reshape(2, _SIDE, _SIDE)
    return both[0], both[1], both[0] @ both[1]


def _wrong(torch: Any, device: str, sent: Any, first: Any, second: Any, product: Any) -> str:
    """What came out wrong; empty for nothing. The products are repeated for a second: a card may fail under load."""
    if not torch.equal(sent.to(device).to("cpu"), sent):
        return "numbers that were copied there and back are others"
    until = time.monotonic() + _WORK_S
    while True:
        for dtype in (torch.float32, torch.float16):
            there = first.to(device).to(dtype) @ second.to(device).to(dtype)
            if not torch.equal(there.to("cpu").to(torch.float32), product):
                return f"a product of two matrices ({str(dtype).rpartition('.')[2]}) is not what the CPU has worked out"
            if device == "cpu":  # half precision takes a CPU long
                return ""
        if time.monotonic() >= until:
            return ""


def _words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _say(**told: Any) -> None:
    line: Dict[str, Any] = told
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
