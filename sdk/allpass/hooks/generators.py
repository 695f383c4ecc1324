"""The random generators that a training draws from: taken down, and set again."""

from __future__ import annotations

import random
import sys
from typing import Any, Dict, List, Sequence


def states(others: "Sequence[Any]" = ()) -> "Dict[str, Any]":
    """Of Python, numpy, torch on the CPU and on each GPU, and `others`, which are generators of torch's."""
    import torch

    numpy: Any = sys.modules.get("numpy")
    return {
        "python": random.getstate(),
        "numpy": None if numpy is None else numpy.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if _uses_gpus(torch.cuda) else [],
        "others": [one.get_state() for one in others],
    }


def _uses_gpus(cuda: Any) -> bool:
    return bool(cuda.is_available() and cuda.is_initialized())


def set_states(known: "Dict[str, Any]", others: "Sequence[Any]" = ()) -> None:
    """As `states` has found them."""
    import torch

    random.setstate(known["python"])
    if known["numpy"] is not None:
        import numpy as np

        np.random.set_state(known["numpy"])
    torch.set_rng_state(known["torch"])
    if known["cuda"]:
        torch.cuda.set_rng_state_all(known["cuda"])
    for one, state in zip(others, known["others"]):  # noqa: B905 - Python 3.9 knows no strict
        one.set_state(state)


def of_loader(loader: Any) -> "List[Any]":
    """The generators that a data loader, its sampler or its sampler of batches has of its own, each once."""
    samplers = [getattr(loader, name, None) for name in ("sampler", "batch_sampler")]
    samplers.append(getattr(samplers[1], "sampler", None))
    found = [getattr(one, "generator", None) for one in (loader, *samplers)]
    return list({id(one): one for one in found if one is not None and hasattr(one, "get_state")}.values())
