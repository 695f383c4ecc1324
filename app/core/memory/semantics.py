"""What a version of the training libraries keeps alive: differences that no configuration states.

A flag says what code does. Those of the symbolic profile and of transformers 5 were read off traces of the real
modules; those of litgpt off fake-tensor runs of its modules (0.5.13). `doubles_when_sharded` and `gathers_all` were
concluded from how published peaks grow with tokens and with GPUs, over several models each, and wait for a trace.
`double_quantises` and the missing upcast of the bnb profiles stand in the plugin's source (fms-acceleration,
`framework_plugin_bnb.py`). Before 0.4 torchtune shifted its logits as transformers 4 did (`full_finetune_*.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from app.errors import InvalidInput

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Semantics:
    """One profile.

    `adds_in_place`: gradients that meet are summed into one that nobody else holds (PyTorch on CUDA); symbolic runs
    make a third tensor. `keeps_logits`: the caller holds the model's output until the way back has ended.
    `shifts_logits`: the loss copies the float32 logits once more, while the caller still holds the first ones and the
    last hidden states (transformers before 4.50). `loss_in_place`: the loss kernel writes the gradient over the
    logits. `norms_in_float32`: peft's `prepare_model_for_kbit_training`. `adapter_item`: bytes of an adapter's weight.
    `double_quantises`: nf4 scales are quantised again whatever the configuration says.
    `doubles_when_sharded`: under FSDP and ZeRO-3 each frozen layer's output stays beside the next one's checkpointed
    input: seen in published runs of transformers, of Qwen's scripts and of litgpt, so taken to be true of what was not
    measured; torchtune's runs take less.
    `gathers_all`: FSDP wraps the model as one unit, so that all weights are put together at once. `unties`: embedding
    and head are two tables even where the model shares one. `fuses_gelu`: GPT-2's gelu is one kernel.
    `packed_keeps_input`: a 4-bit product keeps its input (bitsandbytes before 0.44). `holds_all_logits`: a chunked loss
    computes all logits before it takes them in parts.
    `holds_last_loss`: the loop's loss keeps its graph until the next replaces it, and with it the inputs that
    packed products hold by themselves (bitsandbytes before 0.44: set on its context, not freed on the way back).
    `own_attention`: litgpt's `CausalSelfAttention`. Queries, keys and values come out of one matrix, of which the
    values stay a view, under one adapter whose output is copied into their places; keys and values are repeated for
    every query head; what the kernel returns is copied into the order of tokens. `packs_head`: the head is quantised
    too, and unpacking goes through float16 (Fabric's `BitsandbytesPrecision`).
    `keeps_unpacked`: AutoGPTQ unpacks by PyTorch's operators where 128 tokens or more meet a weight
    (`qlinear_cuda_old.py`), and autograd keeps the result for the gradient.
    `uncertainty`: how far allocated bytes may be off, either way, as a fraction: small where runs of known shape were
    compared, large where published numbers were read from tables that leave inputs out.
    `workspace_bytes`: cuBLAS workspaces of the forward and of the backward thread.
    `flash_scratch`: float32 accumulators of flash attention's way back, and keys and values expanded per query head.
    """

    name: str
    adds_in_place: bool = True
    keeps_logits: bool = False
    shifts_logits: bool = False
    loss_in_place: bool = False
    norms_in_float32: bool = True
    adapter_item: int = 4
    double_quantises: bool = False
    workspace_bytes: int = 17 * MIB
    flash_scratch: bool = True
    doubles_when_sharded: bool = True
    gathers_all: bool = False
    unties: bool = False
    fuses_gelu: bool = False
    packed_keeps_input: bool = False
    holds_all_logits: bool = False
    holds_last_loss: bool = False
    own_attention: bool = False
    packs_head: bool = False
    keeps_unpacked: bool = False
    uncertainty: float = 0.05


_TORCHTUNE = Semantics(
    "torchtune",
    norms_in_float32=False,
    adapter_item=2,
    fuses_gelu=True,
    doubles_when_sharded=False,
    uncertainty=0.25,
)
_LITGPT = Semantics(
    "litgpt",
    norms_in_float32=False,
    adapter_item=2,
    keeps_logits=True,
    gathers_all=True,
    unties=True,
    fuses_gelu=True,
    packed_keeps_input=True,
    holds_all_logits=True,
    own_attention=True,
    packs_head=True,
    uncertainty=0.25,
)

PROFILES: Mapping[str, Semantics] = {
    profile.name: profile
    for profile in (
        Semantics("transformers-5"),
        Semantics("transformers-5-held-output", keeps_logits=True),
        Semantics("transformers-4", shifts_logits=True),
        Semantics("transformers-4-bnb-upcast", shifts_logits=True, double_quantises=True),
        Semantics("transformers-4-bnb", shifts_logits=True, norms_in_float32=False, double_quantises=True),
        Semantics(
            "fused-kernels-4",
            loss_in_place=True,
            norms_in_float32=False,
            double_quantises=True,
        ),
        _TORCHTUNE,
        replace(_TORCHTUNE, name="torchtune-0.3", shifts_logits=True),
        _LITGPT,
        replace(_LITGPT, name="litgpt-even-batches", holds_last_loss=True),
        Semantics("qwen", shifts_logits=True, keeps_unpacked=True, uncertainty=0.25),
        Semantics("symbolic-1", adds_in_place=False, keeps_logits=True, workspace_bytes=0, flash_scratch=False),
    )
}
DEFAULT = PROFILES["transformers-5"]


def profile_named(name: str) -> Semantics:
    """The profile of that name. Raises InvalidInput that lists the known names."""
    if name not in PROFILES:
        known = ", ".join(sorted(PROFILES))
        raise InvalidInput(f"semantics profile {name!r} is not known; take one of: {known}", param="semantics")
    return PROFILES[name]
