"""One step of a case's training, watched."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from allpass.symbolic import cuda
from allpass.symbolic.case import Case
from allpass.symbolic.modules import build, optimizer_of
from allpass.symbolic.storages import LiveBytes


def measure(case: Case) -> "dict[str, Any]":
    """Peaks in bytes by phase of a step of the optimizer, once its states are there.

    Raises ValueError for a case that cannot be, and whatever torch raises for one that it cannot run.
    """
    cuda.choose_kernel(case.attention)
    gc.collect()
    with FakeTensorMode(allow_non_fake_inputs=True):
        model, reads = build(case)
        gc.collect()
        with LiveBytes() as memory:
            memory.watch([*model.parameters(), *model.buffers()])
            resident = memory.live
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            optimizer = optimizer_of(case, trained)
            batch = _batch(case, model.config, reads)
            before = memory.live
            for part in ("early", "last") if case.accumulates else ("last",):
                _there_and_back(model, case, batch, memory, part)
            memory.enter("optimizer")
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            states = memory.live - before  # of the optimizer: there from the second step on
    return {
        "forward_bytes": memory.peaks["forward last"] + states,
        "backward_bytes": memory.peaks["backward last"] + states,
        "optimizer_bytes": memory.peaks["optimizer"],
        "resident_bytes": resident,
        "parameters": _count(model.parameters()),
        "trained": _count(trained),
    }


def _there_and_back(model: Any, case: Case, batch: "dict[str, Any]", memory: LiveBytes, name: str) -> None:
    """The output is let go before the way back, as Trainer does."""
    memory.enter(f"forward {name}")
    half = torch.float16 if case.precision in {"fp16", "amp_fp16"} else torch.bfloat16
    with torch.autocast("cpu", dtype=half, enabled=case.autocast or case.precision.startswith("amp")):
        loss = model(**batch).loss
    memory.enter(f"backward {name}")
    loss.backward()


def _batch(case: Case, config: Any, reads: str) -> "dict[str, Any]":
    labels = torch.zeros(case.micro_batch, dtype=torch.long)
    if reads == "image":
        size = config.image_size
        height, width = (size, size) if isinstance(size, int) else size
        return {"pixel_values": torch.zeros(case.micro_batch, config.num_channels, height, width), "labels": labels}
    words = torch.zeros(case.micro_batch, case.sequence, dtype=torch.long)
    return {"input_ids": words, "labels": labels if reads == "text" else words.clone()}


def _count(parameters: Any) -> int:
    """A byte of packed 4-bit weights holds two."""
    return sum(each.numel() * (2 if each.dtype == torch.uint8 else 1) for each in parameters)
