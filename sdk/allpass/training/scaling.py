"""The linear scaling rule, for code whose batch follows its GPUs: twice the GPUs, twice the batch, twice the rate.

A job whose GPUs change by restarts (`resize_by: restart`) was written for `gpu.count` of them, and may begin again with
another number. It is as exact as the rule is: not at all, and often good enough.
"""

from __future__ import annotations

import os
from typing import Any, Mapping, Optional

NOW, ASKED = "ALLPASS_GPU_COUNT", "ALLPASS_GPU_COUNT_ASKED"
_FACTOR = "allpass_gpus_factor"  # in the groups of an optimizer, and so in its checkpoints: what its rates have in them
_RATES = ("lr", "initial_lr", "max_lr", "min_lr")


def gpus_factor(environment: Optional[Mapping[str, str]] = None) -> float:
    """The GPUs that this process and its like have now, over those that the job's template asks for (`gpu.count`). 1
    without Allpass, and where GPUs do not change by restarts."""
    told = os.environ if environment is None else environment
    now, asked = told.get(NOW, ""), told.get(ASKED, "")
    if not (now.isdigit() and asked.isdigit() and int(now) and int(asked)):
        return 1.0
    return int(now) / int(asked)


def scale_learning_rate(optimizer: Any, *schedulers: Any, factor: Optional[float] = None) -> float:
    """Multiply the rates of a PyTorch optimizer, and of schedulers that step it, by the factor of the GPUs that there
    are now; the factor. Call it when a checkpoint was loaded, or there is none: rates that were saved with other GPUs
    have their factor in them, and are corrected, not multiplied twice."""
    now = gpus_factor() if factor is None else factor
    for group in optimizer.param_groups:
        ratio = now / group.get(_FACTOR, 1.0)
        for name in _RATES:
            if group.get(name) is not None and ratio != 1.0:
                group[name] = group[name] * ratio
        group[_FACTOR] = now
    for scheduler in schedulers:
        _follow(scheduler, optimizer)
    return now


def _follow(scheduler: Any, optimizer: Any) -> None:
    inside = getattr(scheduler, "scheduler", None)  # as accelerate wraps one
    for inner in (*getattr(scheduler, "_schedulers", ()), *([] if inside is None else [inside])):
        _follow(inner, optimizer)
    if hasattr(scheduler, "base_lrs"):
        groups = optimizer.param_groups
        scheduler.base_lrs = [group.get("initial_lr", before) for group, before in zip(groups, scheduler.base_lrs)]
    if hasattr(scheduler, "_last_lr"):
        scheduler._last_lr = [group["lr"] for group in optimizer.param_groups]
