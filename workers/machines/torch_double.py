"""In the place of torch on an emulated machine: as much of it as the agent's first calculation asks for.

Copied as `torch.py` into a folder of the machine, where a file `plays` beside it says how its GPU computes: one of
`PLAYS`.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PLAYS = ("right", "wrong", "crash", "hang", "error", "unable")
_ERRORS = {
    "error": "CUDA error: uncorrectable ECC error encountered",
    "unable": "CUDA error: no kernel image is available for execution on the device",
}
_HANGS_S = 600

__version__ = "2.13.0+played"
version = SimpleNamespace(cuda="13.0")
float32, float16, int32, int64 = "torch.float32", "torch.float16", "torch.int32", "torch.int64"
_plays = Path(__file__).with_name("plays").read_text().strip() if __name__ == "torch" else "right"


class Tensor:
    """Numbers of which only the place is kept, and whether they came out wrong."""

    def __init__(self, device: str = "cpu", wrong: bool = False) -> None:
        self.device, self.wrong = device, wrong

    def to(self, what: str) -> Tensor:
        """Another place, or another kind of number."""
        if what.startswith("torch."):
            return self
        if what != "cpu":
            _fail()
        return Tensor(what, self.wrong)

    def reshape(self, *_: int) -> Tensor:
        return self

    def __getitem__(self, _: int) -> Tensor:
        return self

    def __matmul__(self, other: Tensor) -> Tensor:
        return Tensor(self.device, self.device != "cpu" and _plays == "wrong")

    def _same(self, _: Any) -> Tensor:
        return self

    __add__ = __sub__ = __mul__ = __floordiv__ = __mod__ = _same


def arange(_: int, dtype: str) -> Tensor:
    return Tensor()


def equal(one: Tensor, other: Tensor) -> bool:
    return one.wrong == other.wrong


def _fail() -> None:
    if _plays == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif _plays == "hang":
        time.sleep(_HANGS_S)
    elif _plays in _ERRORS:
        raise RuntimeError(_ERRORS[_plays])
