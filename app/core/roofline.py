"""How long a training step takes where nobody has measured it: what the arithmetic and the memory of a GPU allow.

A step is its micro-batches, the optimizer's update and what the GPUs tell each other. A micro-batch is bound by matrix
products, by reading weights, by what lies between the products, or by launching kernels. The figures are the
publishers' own (dense, without sparsity) times what training reaches of them; expect the truth within a factor of two,
and believe `app.core.throughput` once something was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from app.core.memory.architecture import Architecture
from app.core.memory.parameters import adapter_parameters, parameters_of
from app.core.memory.resident import norm_values
from app.core.memory.training import Method, Training

COMPUTE_REACHED = 0.5
BANDWIDTH_REACHED = 0.8
LINK_REACHED = 0.7
LAUNCH_S = 0.0004
"""Launching one layer's kernels once, from Python; adapters take about as many again."""

_TERA, _GIGA = 1e12, 1e9
_BETWEEN_PRODUCTS = (14, 6)
"""Values per token that norms, residuals, rotations and activations move in a layer, in hidden and inner sizes."""

_ADAM_VALUES = 7
"""Weight, both states read and written, and the gradient read."""


@dataclass(frozen=True, slots=True)
class GpuRates:
    """Peak rates of one GPU. `link_gbs`: to its neighbours, one way. `bf16`: whether it has units for it."""

    half_tflops: float
    single_tflops: float
    memory_gbs: float
    link_gbs: float
    bf16: bool = True


GPUS: Mapping[str, GpuRates] = {
    "t4": GpuRates(65, 8.1, 320, 12, bf16=False),
    "rtx2080ti": GpuRates(53.8, 13.4, 616, 12, bf16=False),
    "titanrtx": GpuRates(130, 16.3, 672, 12, bf16=False),
    "rtx8000": GpuRates(130, 16.3, 672, 12, bf16=False),
    "titanv": GpuRates(110, 14.9, 653, 12, bf16=False),
    "v100": GpuRates(125, 15.7, 900, 150, bf16=False),
    "p100": GpuRates(18.7, 9.3, 732, 12, bf16=False),
    "a4000": GpuRates(76.7, 19.2, 448, 24),
    "a5000": GpuRates(111, 27.8, 768, 24),
    "a6000": GpuRates(154.8, 38.7, 768, 24),
    "rtx3060": GpuRates(25.6, 12.8, 360, 24),
    "rtx3070": GpuRates(40.6, 20.3, 448, 24),
    "rtx3070ti": GpuRates(43.5, 21.7, 608, 24),
    "rtx3080": GpuRates(59.5, 29.8, 760, 24),
    "rtx3080ti": GpuRates(68.2, 34.1, 912, 24),
    "rtx3090": GpuRates(71, 35.6, 936, 24),
    "rtx3090ti": GpuRates(80, 40, 1008, 24),
    "rtx4060": GpuRates(30.2, 15.1, 272, 12),
    "rtx4060ti": GpuRates(44.1, 22.1, 288, 12),
    "rtx4070": GpuRates(58.3, 29.1, 504, 24),
    "rtx4070super": GpuRates(71, 35.5, 504, 24),
    "rtx4070ti": GpuRates(80.2, 40.1, 504, 24),
    "rtx4070tisuper": GpuRates(88.2, 44.1, 672, 24),
    "rtx4080": GpuRates(97.5, 48.7, 717, 24),
    "rtx4080super": GpuRates(104.4, 52.2, 736, 24),
    "rtx4090": GpuRates(165, 82.6, 1008, 24),
    "rtx5070": GpuRates(61.7, 30.9, 672, 48),
    "rtx5070ti": GpuRates(87.9, 43.9, 896, 48),
    "rtx5080": GpuRates(112.6, 56.3, 960, 48),
    "rtx5090": GpuRates(209, 104.8, 1792, 48),
    "rtx6000ada": GpuRates(364, 91.1, 960, 24),
    "rtxpro6000": GpuRates(500, 120, 1597, 48),
    "l4": GpuRates(121, 30.3, 300, 24),
    "l40": GpuRates(181, 90.5, 864, 24),
    "l40s": GpuRates(362, 91.6, 864, 24),
    "a10": GpuRates(125, 31.2, 600, 24),
    "a10g": GpuRates(70, 31.5, 600, 24),
    "a30": GpuRates(165, 10.3, 933, 100),
    "a40": GpuRates(150, 37.4, 696, 24),
    "a100": GpuRates(312, 19.5, 1555, 300),
    "h100": GpuRates(989, 67, 3350, 450),
    "h20": GpuRates(148, 44, 4000, 450),
    "h200": GpuRates(989, 67, 4800, 450),
    "gh200": GpuRates(989, 67, 4000, 450),
    "b200": GpuRates(2250, 75, 8000, 900),
}
_MAKERS = ("nvidia", "tesla", "geforce", "quadro")


@lru_cache(maxsize=1024)
def gpu_named(gpu_type: str) -> GpuRates | None:
    """The rates of a type of GPU as a provider writes it ("A100-SXM4-80GB", "RTX 4090"); None for unknown ones."""
    plain = "".join(letter for letter in gpu_type.casefold() if letter.isalnum())
    for maker in _MAKERS:
        plain = plain.removeprefix(maker)
    plain = plain.replace("rtxa", "a", 1) if plain.startswith("rtxa") else plain
    if plain.startswith("rtx6000ada"):
        return GPUS["rtx6000ada"]
    for name in sorted(GPUS, key=len, reverse=True):
        rest = plain.removeprefix(name)
        if (
            plain.startswith(name)
            and not rest[:1].isdigit()
            and not rest.startswith(("ti", "super", "mobile", "laptop", "maxq"))
        ):
            return GPUS[name]
    return None


def is_as_fast(gpu_type: str, other: str) -> bool:
    """Whether the first is the second, or slower in nothing that most trainings wait for: numbers of 16 bits, and bytes
    from its memory and its neighbours. False where nobody knows."""
    if gpu_type == other:
        return True
    first, second = gpu_named(gpu_type), gpu_named(other)
    if first is None or second is None:
        return False
    return all(mine >= its for mine, its in zip(_rates(first), _rates(second), strict=True))


def _rates(gpu: GpuRates) -> tuple[float, ...]:
    return gpu.half_tflops, gpu.memory_gbs, gpu.link_gbs, gpu.bf16


def step_ms(model: Architecture, training: Training, gpu: GpuRates) -> float:
    """Milliseconds for one step of the optimizer, all its micro-batches included."""
    micro_s = _micro_batch_s(model, training, gpu)
    trained = trained_values(model, training)
    parts = training.replicas if training.splits_states else 1
    update_s = trained * _ADAM_VALUES * 4 / parts / training.tensor_parallel / (gpu.memory_gbs * _GIGA)
    talk_s = _talk_s(model, training, gpu, trained)
    return (training.accumulation * micro_s + update_s + talk_s) * 1000


@dataclass(frozen=True, slots=True)
class _Shape:
    """What steps of a model have in common. `active`: matrix values that a token meets, `head`: those of its logits."""

    total: int
    matrices: int
    active: int
    head: int
    language: bool
    seen: float


@lru_cache(maxsize=512)
def _shape(model: Architecture) -> _Shape:
    counts = parameters_of(model)
    matrices = counts.layers * counts.layer_matrices
    idle = 0
    if model.form.mixture:  # the router sends a token to a few experts only
        idle = counts.layers * (model.experts - model.experts_per_token) * 3 * model.hidden * model.intermediate
    language = model.form.head in {"lm", "lm_bias"}
    return _Shape(
        total=counts.total,
        matrices=matrices,
        active=matrices - idle,
        head=model.vocab * model.hidden if language else counts.head,
        language=language,
        seen=1.0 if model.form.style in {"post", "vision"} else 0.5,
    )


def trained_values(model: Architecture, training: Training) -> int:
    """Parameters that the optimizer updates."""
    return _trained(model, training.method, training.rank, training.targets, training.saves)


@lru_cache(maxsize=1024)
def _trained(model: Architecture, method: Method, rank: int, targets: frozenset[str], saves: frozenset[str]) -> int:
    if method in {"lora", "qlora"}:
        names = Training("lora", 1, 1, rank=rank, targets=targets).names_of(model)
        return adapter_parameters(model, rank, names) + len(saves) * model.vocab * model.hidden
    return norm_values(model) if method == "norm_tuning" else parameters_of(model).total


def _micro_batch_s(model: Architecture, training: Training, gpu: GpuRates) -> float:
    tokens = training.batch * training.usual_tokens
    shape = _shape(model)
    back = 2 if training.method == "full" else 1  # frozen weights need no gradient of their own
    before = 1 if training.reference_pass else 0
    again = before + (1 if training.checkpointing else 0)
    products: float = 2 * tokens * shape.active * (1 + back + again)
    afresh = 1 if training.loss == "recomputed" else 0  # the last chunk is not: that is left out
    products += 2 * tokens * shape.head * (1 + back + before + afresh)
    # Attention: every query with every key, or with those before it.
    scores = 4 * tokens * training.usual_tokens * model.heads * model.head_dim * model.layers * shape.seen
    products += scores * (3 + again)
    bandwidth = gpu.memory_gbs * _GIGA * BANDWIDTH_REACHED * training.tensor_parallel
    reading_s = (1 + back + again) * shape.matrices * training.weight_item / bandwidth
    product_s = products / training.tensor_parallel / (_rate(training, gpu) * COMPUTE_REACHED)
    passes = (2 if training.loss == "fused" else 6) + 2 * (before + afresh)
    logits = tokens * model.vocab * 4 * passes if shape.language else 0
    moved_s = (_between(model, training) * (3 + again) + logits) / bandwidth
    unpacking_s = 0.0
    if training.method == "qlora":
        unpacking_s = (2 + again) * shape.matrices * (0.5 + training.weight_item) / bandwidth
    launches = (2 if training.adapts else 1) * model.layers * (3 + again) * LAUNCH_S
    return max(max(product_s, reading_s) + moved_s + unpacking_s, launches)


def _rate(training: Training, gpu: GpuRates) -> float:
    half = training.weight_item == 2 or training.casts
    if not half:
        return gpu.single_tflops * _TERA
    emulated = not gpu.bf16 and "bf16" in training.precision
    return (gpu.single_tflops if emulated else gpu.half_tflops) * _TERA


def _between(model: Architecture, training: Training) -> float:
    """Bytes that one pass moves between matrix products."""
    hidden, inner = _BETWEEN_PRODUCTS
    tokens = training.batch * training.usual_tokens
    values = tokens * (hidden * model.hidden + inner * model.intermediate * model.experts_per_token)
    if training.attention == "eager":
        values += 6 * training.batch * model.heads * training.usual_tokens**2
    return values * model.layers * (2 if training.weight_item == 2 else 4)


def _talk_s(model: Architecture, training: Training, gpu: GpuRates, trained: int) -> float:
    """Gradients once a step; gathered weights and split activations with every micro-batch."""
    link = gpu.link_gbs * _GIGA * LINK_REACHED
    total = _shared_bytes(model, training, trained) / link
    if training.tensor_parallel > 1:
        share = 2 * (training.tensor_parallel - 1) / training.tensor_parallel
        tokens = training.batch * training.usual_tokens
        passes = 4 + (2 if training.checkpointing else 0)
        moved = tokens * model.hidden * training.weight_item * model.layers * passes
        total += training.accumulation * share * moved / link
    return total


def talk_bytes(model: Architecture, training: Training) -> float:
    """That pass each point of a ring of all replicas in one step: gradients, and weights that are gathered."""
    return _shared_bytes(model, training, trained_values(model, training))


def _shared_bytes(model: Architecture, training: Training, trained: int) -> float:
    if training.replicas < 2:
        return 0.0
    share = (training.replicas - 1) / training.replicas
    item = 4 if training.casts else training.weight_item
    total = 2 * share * trained * item / training.tensor_parallel
    if training.splits_all:  # shares of each part's gradients go to who has them, and for its norm each comes together
        total = (training.accumulation + 1) * share * trained * training.weight_item
    if training.gathers_weights:
        split = _shape(model).matrices if training.splits_frozen else _shape(model).total
        passes = 3 if training.sharded and training.reference_pass else 2
        share = (training.shares - 1) / training.shares
        total += passes * training.accumulation * share * split * training.weight_item
    return total
