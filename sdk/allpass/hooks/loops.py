"""What is asked of a Lightning trainer and its loops, and the batches that they are given."""

from __future__ import annotations

import contextlib
import inspect
from pathlib import Path
from typing import Any, Callable, List, Optional


class Batches:
    """An epoch's batches; `first` is called before the first of them is loaded."""

    def __init__(self, iterator: Any, first: "Callable[[], None]") -> None:
        self._iterator = iterator
        self._first: "Optional[Callable[[], None]]" = first

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> Any:
        if self._first is not None:
            first, self._first = self._first, None
            first()
        return next(self._iterator)


def below(loop: Any) -> "List[Any]":
    """All loops within one."""
    found = [one for one in vars(loop).values() if hasattr(one, "_restarting") and hasattr(one, "on_iteration_done")]
    return [*found, *(inner for one in found for inner in below(one))]


def step_of(given: Any) -> int:
    """How far the checkpoint is that a script gives to `fit()`; -1 where that is not known before it is looked for."""
    import torch

    with contextlib.suppress(Exception):
        if given is not None and Path(given).is_file():
            known = torch.load(given, map_location="cpu", mmap=True, weights_only=False)
            return int(known["global_step"])
    return -1


def takes_weights_only(trainer: Any) -> bool:
    return "weights_only" in inspect.signature(type(trainer).fit).parameters


def total_of(trainer: Any) -> "Optional[int]":
    total = trainer.estimated_stepping_batches
    return int(total) if 0 < total < float("inf") else None
