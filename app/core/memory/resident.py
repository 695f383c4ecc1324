"""What is on the GPU before a step begins: weights, adapters, optimizer states; and the optimizer's own step."""

from __future__ import annotations

from dataclasses import dataclass

from app.core.memory.architecture import Architecture
from app.core.memory.block import Setting
from app.core.memory.parameters import adapter_parameters, parameters_of
from app.core.memory.training import Training

STATE_COPIES = {"adamw": 2, "adamw_foreach": 2, "adamw_fused": 2, "in_backward_adamw": 2, "sgd_momentum": 1}
"""Copies of every trained value, of its own type, that an optimizer keeps."""

EIGHT_BIT = 2 * (1 + 4 / 256)
"""bitsandbytes keeps two states of one byte and a float32 scale for every 256 values of each."""

_TEMPORARY = {"adamw", "adamw_foreach"}
"""PyTorch's foreach step holds one more tensor for every gradient while it divides; bitsandbytes' kernels hold none."""

MASTER_ITEM = 4
"""Bytes of a value in the copy that DeepSpeed trains (`stage_1_and_2.py`: `single_partition_of_fp32_groups`)."""

SUB_GROUP_VALUES = 1_000_000_000
"""Values that ZeRO-3 steps at a time (`sub_group_size` of its configuration)."""

_QUANTISED = {
    "nf4": 0.5 + 4 / 64,
    "nf4_dq": 0.5 + 1 / 64 + 4 / (64 * 256),
    "nf4_ao": 0.5 + 1 / 64 + 4 / (64 * 256),
    "gptq_int4": 0.5 + 2 / 128 + 0.5 / 128,
}
"""Bytes of a quantised value with its scales. bitsandbytes scales blocks of 64 values by a float32, or (double
quantisation) by one byte and a float32 for 256 blocks; GPTQ groups 128 values under a float16 and a 4-bit zero."""


@dataclass(frozen=True, slots=True)
class Resident:
    """Bytes of one GPU before sharding, after tensor parallelism. `gradients` are all of them at once.

    `layer_bytes` are the weights of one layer, `unsplit` the scales of quantised weights, which sharding leaves whole.
    """

    weights: float
    adapters: float
    gradients: float
    states: float
    step_temporary: float
    layer_bytes: float
    unsplit: float


def resident_of(setting: Setting) -> Resident:
    """What the model and its training keep for as long as the job runs."""
    model, training = setting.model, setting.training
    counts = parameters_of(model)
    weights = _weights(setting)
    adapters, trained, item = 0.0, counts.total, training.weight_item
    if training.tensor_parallel > 1:
        trained -= round(counts.layers * counts.layer_matrices * (1 - 1 / training.tensor_parallel))
    if training.adapts:
        trained = adapter_parameters(model, training.rank, setting.names)
        item = setting.adapter_item
        adapters = float(trained * item)
    elif training.method == "norm_tuning":
        trained = norm_values(model)
    saved = _saved_values(setting)
    weights += saved * training.weight_item
    gradients = float(trained * item + saved * training.weight_item)
    if training.keeps_master:
        states, temporary = _master(training, trained + saved)
    else:
        states = _states(training.optimizer, trained, item) + _states(training.optimizer, saved, training.weight_item)
        temporary = gradients if training.optimizer in _TEMPORARY else 0.0
    packed, scales = _packed(setting)
    layer = packed / counts.layers if packed else counts.layer * training.weight_item
    return Resident(
        weights=weights,
        adapters=adapters,
        gradients=gradients,
        states=states,
        step_temporary=temporary,
        layer_bytes=layer,
        unsplit=scales,
    )


def _master(training: Training, values: int) -> tuple[float, float]:
    """Bytes of DeepSpeed's float32 copy with its states, and what its step adds: gradients put together (stages 1 and
    2) and as float32, of one sub-group at a time in stage 3."""
    states = MASTER_ITEM * values + _states(training.optimizer, values, MASTER_ITEM)
    if training.sharding == "zero3":
        return states, float(MASTER_ITEM * min(values, SUB_GROUP_VALUES * training.replicas))
    return states, float((training.weight_item + MASTER_ITEM) * values)


def norm_values(model: Architecture) -> int:
    """Parameters of all norms."""
    form = model.form
    one = model.hidden * (2 if form.norm == "layer" else 1)
    heads = 2 * model.head_dim if form.qk_norm else 0
    return model.layers * (form.norms * one + heads) + (one if form.final_norm else 0)


def _saved_values(setting: Setting) -> int:
    table = setting.model.vocab * setting.model.hidden
    return len(setting.training.saves) * table


def _weights(setting: Setting) -> float:
    counts, training = parameters_of(setting.model), setting.training
    parts = training.tensor_parallel
    matrices = counts.layers * counts.layer_matrices
    plain = counts.total - matrices
    if training.method != "qlora":
        return (matrices / parts + plain) * training.weight_item
    plain -= counts.head if setting.semantics.packs_head else 0
    return sum(_packed(setting)) + plain * setting.vector_item


def _packed(setting: Setting) -> tuple[float, float]:
    """Bytes of the quantised values, and of their scales."""
    counts, training = parameters_of(setting.model), setting.training
    if training.method != "qlora":
        return 0.0, 0.0
    kind: str = training.quantisation
    if kind == "nf4" and setting.semantics.double_quantises:
        kind = "nf4_dq"
    values = counts.layers * counts.layer_matrices / training.tensor_parallel
    if setting.semantics.packs_head:
        values += counts.head
    return values * 0.5, values * (_QUANTISED[kind] - 0.5)


def _states(optimizer: str, trained: int, item: int) -> float:
    if optimizer.startswith("paged"):
        return 0.0
    if optimizer.endswith("8bit"):
        return trained * EIGHT_BIT
    if optimizer == "adafactor":
        return trained * 4 / 1000
    return float(trained * item * STATE_COPIES.get(optimizer, 0))
