"""Symbolic runs of the real modules under the recipe's loss by chunks: JSON cases in, peaks out. Run by itself, as it
changes torch for good."""

from __future__ import annotations

import json
import sys
from typing import Any

from allpass.symbolic import cuda

cuda.install()

import torch  # noqa: E402 - after what is replaced of it

from allpass.symbolic import step  # noqa: E402
from allpass.symbolic.case import Case  # noqa: E402
from workers.trainer.batches import Batch  # noqa: E402
from workers.trainer.chunks import ways_to_divide  # noqa: E402


def there_and_back(model: Any, case: Case, batch: dict[str, Any], memory: Any, name: str) -> None:
    """As `step` has it, but for the loss. All tokens but the last of each line are learned: which, fake tensors cannot
    be asked."""
    words = batch["input_ids"]
    read = Batch(words, None, words, 0)
    learned = torch.arange(words.numel() - len(words))
    divided = next(ways_to_divide(model, words.device))
    memory.enter(f"forward {name}")
    half = torch.float16 if case.precision in {"fp16", "amp_fp16"} else torch.bfloat16
    with torch.autocast("cpu", dtype=half, enabled=case.autocast or case.precision.startswith("amp")):
        each, _ = divided.surprises(
            divided.states(model, read).flatten(0, 1).index_select(0, learned), words.flatten()[: len(learned)]
        )
        loss = each.sum()
    del each
    memory.enter(f"backward {name}")
    loss.backward()


if __name__ == "__main__":
    step._there_and_back = there_and_back
    told = [step.measure(Case.from_json(case)) for case in json.load(sys.stdin)]
    print(json.dumps(told))
