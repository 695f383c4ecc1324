"""How a run is to be laid out on its GPUs, as the control plane predicts that it fits and is quickest."""

from __future__ import annotations

from typing import NamedTuple


class Plan(NamedTuple):
    """`data_parallel` processes, one per GPU, each with `micro_batch` sequences at once and `accumulation` such
    micro-batches in a step of the optimizer: together `batch`, which is the template's. It may be on fewer GPUs than
    there are.

    `sharding` is none, ddp, zero2 or fsdp, and `zero_stage` its number (0 for none and ddp). `checkpointing`: recompute
    activations. `precision` is the type of the weights, amp_* float32 weights under autocast. `fits`: predicted to fit
    for sure; else this is the most sparing layout, and may not.
    """

    gpu_type: str = ""
    gpus: int = 1
    data_parallel: int = 1
    sharding: str = "none"
    zero_stage: int = 0
    micro_batch: int = 1
    accumulation: int = 1
    checkpointing: bool = False
    precision: str = "bf16"
    autocast: bool = False
    batch: int = 1
    sequence: int = 0
    allocated_bytes: int = 0
    fits: bool = True
