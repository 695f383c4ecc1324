"""What a process can tell of its training: its layout, and how much memory of its GPU it has held at most, as its own
torch knows it. Imports nothing itself."""

from __future__ import annotations

import sys
from typing import Any, Callable, Mapping, Optional

LOOK_EVERY_S = 10.0
LAYOUT = frozenset({"micro_batch", "accumulation", "sequence", "checkpointing", "sharding", "total_steps"})
_LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes")


class Facts:
    """What was told already, and when to look again."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._reports = 0
        self._told_bytes = 0
        self._look_again_s = 0.0

    def news(self) -> "Optional[dict[str, Any]]":
        """What is new after one more reported step; None mostly. The first step does not hold all that later ones do,
        so memory is told from the second report on, whenever it has grown."""
        self._reports += 1
        now_s = self._monotonic_s()
        if self._reports < 2 or now_s < self._look_again_s:
            return None
        self._look_again_s = now_s + LOOK_EVERY_S
        peaks = gpu_memory()
        if peaks is None or peaks["reserved_bytes"] <= self._told_bytes:
            return None
        self._told_bytes = peaks["reserved_bytes"]
        return {**peaks, "versions": library_versions()}


def layout(facts: "Mapping[str, Any]") -> "dict[str, Any]":
    """The facts that are known. Raises TypeError for one that has no meaning."""
    unknown = sorted(facts.keys() - LAYOUT)
    if unknown:
        raise TypeError(f"{unknown[0]!r} is nothing that describe() knows; it knows {', '.join(sorted(LAYOUT))}")
    return {name: value for name, value in facts.items() if value is not None}


def gpu_memory() -> "Optional[dict[str, int]]":
    """None where torch was not imported, or has not used a GPU. Never raises: this is no reason to end a training."""
    torch: Any = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
            return None
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        return {
            "allocated_bytes": int(torch.cuda.max_memory_allocated()),
            "reserved_bytes": int(torch.cuda.max_memory_reserved()),
            "process_bytes": int(total_bytes - free_bytes),
        }
    except Exception:
        return None


def library_versions() -> "dict[str, str]":
    """Of what was imported and decides how much memory a step takes."""
    found = {}
    for name in _LIBRARIES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    return found
