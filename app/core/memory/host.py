"""What the built-in recipe takes of a machine's own memory, beside its GPU: while it loads, saves and exports. Pure.

A save needs some tensors at once, however large the state is (`allpass.training.torch_checkpoints`): copies of all of
it are only taken where there is plenty. What stays are libraries, and weights that are put together for an export.
"""

from __future__ import annotations

from app.core.memory.architecture import Architecture
from app.core.memory.parameters import parameters_of
from app.core.memory.training import Training
from app.core.roofline import trained_values

PROCESS_BYTES = 4_000_000_000
"""Python with its libraries, CUDA's part on the host, rows, and an agent beside it."""

SHARD_BYTES = 4_000_000_000
"""Files of an exported model are as large as that, and each is put together before it is written."""

MERGING = frozenset({"merged", "both"})
"""Ways to export an adapter that put it into its base weights."""

_SMALL_STATE_BYTES = 256 * 1024**2  # copied in any case, twice
_BEST_BYTES = 1024**3  # of the best weights: more than that lies on the disk
_WAITING = 8  # tensors, at most, whose bytes are still being hashed as the next one is written


def host_bytes(model: Architecture, training: Training, *, merges: bool = False, processes: int = 1) -> int:
    """What a machine has to have for it. `merges`: an adapter is put into its base weights at the end. `processes`: one
    for each of its GPUs, of which all load and one saves. Where they share the weights they map the same files, which
    are read from the disk once if there is room for them."""
    counts = parameters_of(model)
    base_item = training.weight_item
    item = base_item if training.method == "full" else 4  # adapters are kept in float32
    weights = counts.total * base_item
    trained = trained_values(model, training)
    matrix = max(model.hidden * model.intermediate, model.hidden * model.heads * model.head_dim)
    largest = max(model.vocab * model.hidden, matrix)
    loading = 2 * largest * base_item
    mapped = weights if training.sharded and processes > 1 else 0
    if training.splits_all and training.casts:  # files are of 16 bits: what each process makes of them is its own
        mapped *= processes
    if training.method == "full":
        saving = (2 * largest + _WAITING * matrix) * item
        exporting = 2 * min(SHARD_BYTES, weights)
    else:
        saving = trained * item
        exporting = weights + 2 * min(SHARD_BYTES, weights) + loading if merges else 0
    kept = min(_BEST_BYTES, trained * item) * (processes if training.splits_all else 1)
    state = trained * item * 4  # the weights, two states of the optimizer, and the best weights
    copies = 2 * min(_SMALL_STATE_BYTES, state)
    return PROCESS_BYTES * processes + kept + max(loading * processes + mapped, saving + copies, exporting)
