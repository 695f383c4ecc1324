"""What one GPU holds when weights, gradients or optimizer states are spread over several."""

from __future__ import annotations

from dataclasses import dataclass

from app.core.memory.architecture import Architecture
from app.core.memory.parameters import parameters_of
from app.core.memory.resident import Resident
from app.core.memory.semantics import Semantics
from app.core.memory.training import Training

DDP_BUCKETS = 1.0
"""DistributedDataParallel copies every gradient into buckets for the all-reduce (`gradient_as_bucket_view=False`)."""


@dataclass(frozen=True, slots=True)
class ShardedBytes:
    """Bytes on one GPU. `gathered` are whole layers put together for the moment, `ahead` the next one fetched before
    its turn in the forward pass, `copies` second hidden states.

    `early_gradients` and `late_gradients` are those already there in the forward pass and beside the largest moment
    of the way back, as far as the layers' own accounting leaves them out.
    """

    resident: float
    gathered: float
    ahead: float
    copies: float
    gradients: float
    step_temporary: float
    early_gradients: float
    late_gradients: float


def share_of(model: Architecture, training: Training, kept: Resident, semantics: Semantics) -> ShardedBytes:
    """Splits what is resident by the kind of sharding."""
    if training.splits_frozen and training.gathers_weights:
        return _gathering_frozen(model, training, kept, semantics)
    if training.splits_all and training.gathers_weights:
        return _gathering_in_order(model, training, kept)
    if training.gathers_weights:
        return _gathering(model, training, kept, semantics)
    parts = training.replicas if training.sharding in {"zero1", "zero2"} else 1
    gradients = kept.gradients / (parts if training.sharding == "zero2" else 1)
    if training.optimizer.startswith("in_backward"):
        gradients = 0.0
    early = gradients if training.accumulation > 1 else 0.0
    late = early if early or training.sharding != "zero2" else gradients
    if early and training.sharding == "zero2" and training.keeps_master:
        late *= 2  # those of this micro-batch are put together beside the sum so far
    buckets = kept.gradients * DDP_BUCKETS if training.sharding in {"ddp", "zero1"} else 0.0
    return ShardedBytes(
        resident=(kept.weights + kept.adapters) + kept.states / parts + buckets,
        gathered=0.0,
        ahead=0.0,
        copies=0.0,
        gradients=gradients,
        step_temporary=kept.step_temporary / parts,
        early_gradients=early,
        late_gradients=late,
    )


def _gathering_frozen(model: Architecture, training: Training, kept: Resident, semantics: Semantics) -> ShardedBytes:
    """FSDP of frozen layers: each is split, and put together for its turn beside the next one, on the way forward
    with a copy under way. All else is as on one of several GPUs with a whole copy each."""
    counts = parameters_of(model)
    layers = kept.layer_bytes * counts.layers
    early = kept.gradients if training.accumulation > 1 else 0.0
    tokens = training.batch * training.sequence
    doubled = semantics.doubles_when_sharded and training.checkpointing
    return ShardedBytes(
        resident=kept.weights
        - layers
        + layers / training.shares
        + kept.adapters
        + kept.states
        + kept.gradients * DDP_BUCKETS,
        gathered=2 * kept.layer_bytes,
        ahead=kept.layer_bytes,
        copies=float(max(model.layers - 2, 0) * tokens * model.hidden * training.weight_item) if doubled else 0.0,
        gradients=kept.gradients,
        step_temporary=kept.step_temporary,
        early_gradients=early,
        late_gradients=early,
    )


def _gathering_in_order(model: Architecture, training: Training, kept: Resident) -> ShardedBytes:
    """FSDP of everything, as the built-in recipe has it (`workers.trainer.splitting_all`).

    On the way back there are, beside what belongs to no layer and its gradients, two layers' weights, the gradients of
    one, what goes out of two, and what comes in of one. The norm of each gradient is that of the whole, which is put
    together from parts that are padded to equal size.
    """
    parts, counts = training.replicas, parameters_of(model)
    outer = float((counts.total - counts.layers * counts.layer) * training.weight_item)
    gradients = kept.gradients / parts
    largest = max(model.vocab * model.hidden, counts.layer_matrices) * training.weight_item
    return ShardedBytes(
        resident=(kept.weights + kept.states) / parts,
        gathered=2 * outer + 6 * kept.layer_bytes,
        ahead=0.0,
        copies=0.0,
        gradients=gradients,
        step_temporary=max(kept.step_temporary / parts, 2.0 * largest),
        early_gradients=gradients,
        late_gradients=gradients,
    )


def _gathering(model: Architecture, training: Training, kept: Resident, semantics: Semantics) -> ShardedBytes:
    """FSDP and ZeRO-3: everything is split; the layer at work, and what belongs to no layer, are put together.

    Under autocast FSDP splits trained weights as float32, and their gradients and states with them. ZeRO-3 keeps its
    part of the gradients in one buffer from the start (`grad_partitions_flat_buffer`).
    """
    parts, counts = training.replicas, parameters_of(model)
    item = training.weight_item
    wider = 4 / item if training.casts and training.method == "full" and not training.keeps_master else 1.0
    outer = float((counts.total - counts.layers * counts.layer) * item)
    if semantics.gathers_all:
        outer = kept.weights
    layer = 0.0 if semantics.gathers_all else kept.layer_bytes * (2 if training.method == "full" else 1)
    resident = (kept.weights - kept.unsplit + kept.adapters + kept.states) * wider / parts + kept.unsplit
    gradients = kept.gradients * wider / parts
    tokens = training.batch * training.sequence
    early = gradients if training.accumulation > 1 or training.keeps_master else 0.0
    doubled = semantics.doubles_when_sharded and training.adapts and training.checkpointing
    return ShardedBytes(
        resident=resident,
        gathered=outer + layer,
        ahead=kept.layer_bytes,
        copies=float(max(model.layers - 2, 0) * tokens * model.hidden * item) if doubled else 0.0,
        gradients=gradients,
        step_temporary=kept.step_temporary * wider / parts,
        early_gradients=early,
        late_gradients=early or gradients / model.layers,
    )
