"""How a model is trained: everything beside its shape that decides the memory of a step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from app.core.memory.architecture import Architecture
from app.core.memory.families import matrices
from app.errors import InvalidInput

Method = Literal["full", "lora", "qlora", "norm_tuning"]
Precision = Literal["fp32", "bf16", "fp16", "amp_bf16", "amp_fp16"]
Optimizer = Literal[
    "adamw",
    "adamw_foreach",
    "adamw_fused",
    "adamw_8bit",
    "paged_adamw",
    "paged_adamw_8bit",
    "adafactor",
    "sgd",
    "sgd_momentum",
    "in_backward_adamw",
    "in_backward_adamw_8bit",
]
Attention = Literal["flash", "efficient", "eager"]
Loss = Literal["full", "chunked", "fused", "recomputed"]
Quantisation = Literal["none", "nf4", "nf4_dq", "nf4_ao", "gptq_int4"]
Sharding = Literal["none", "ddp", "zero1", "zero2", "zero3", "fsdp"]

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
SAVEABLE = frozenset({"embed_tokens", "lm_head"})
_MOST_TOKENS = 1 << 40
_CHOICES = {
    name: get_args(choices)
    for name, choices in (
        ("method", Method),
        ("precision", Precision),
        ("optimizer", Optimizer),
        ("attention", Attention),
        ("loss", Loss),
        ("quantisation", Quantisation),
        ("sharding", Sharding),
    )
}


@dataclass(frozen=True, slots=True)
class Training:
    """One training configuration. `batch` is sequences per GPU and step, `sequence` tokens in each.

    `precision` is the type of the weights; `amp_*` keeps float32 weights under autocast. `autocast` adds autocast to
    half-precision weights. `targets` are names of matrices as the model calls them, or `all` or `attention`.
    `narrow_adapters`, which are kept in float32, are computed as wide as their input (the built-in recipe; PEFT by
    itself makes the input float32), on a base of which nothing is made float32.
    `reference_pass`: each micro-batch goes through the model once more, before, without gradients and adapters
    (preferences): it takes time, and no more memory than the pass that is learned from.
    `loss`: of all tokens at once; `chunked` in eighths (torchtune); `fused` with both gradients on the way forward;
    `recomputed` by chunks of which all but the last are computed again on the way back (the built-in recipe).
    `saves` are whole modules trained beside the adapters (`embed_tokens`, `lm_head`). `zero1` to `zero3` are
    DeepSpeed's, which may run on one GPU too. `row_tokens`: how many a sequence has on average, where rows are joined
    without padding; 0: all of `sequence`. It decides how long a step takes; memory has to do for the longest.
    `sharded`: as the built-in recipe splits it (`fsdp`). With lora the frozen weights alone, layer by layer (ADR 0114);
    what is trained is whole on every GPU, and so is what belongs to no layer. With full everything, over all GPUs (ADR
    0127). `machines`: over how many the GPUs of one with lora are, each of which holds all of the weights.
    `precision_by_gpu`: what is bf16 here is fp16 on GPUs that have no units for it (`app.core.precision`).
    """

    method: Method
    batch: int
    sequence: int
    precision: Precision = "bf16"
    autocast: bool = False
    optimizer: Optimizer = "adamw"
    checkpointing: bool = False
    attention: Attention = "flash"
    loss: Loss = "full"
    rank: int = 16
    targets: frozenset[str] = frozenset({"all"})
    adapter_dropout: float = 0.0
    narrow_adapters: bool = False
    reference_pass: bool = False
    quantisation: Quantisation = "none"
    saves: frozenset[str] = frozenset()
    accumulation: int = 1
    gpus: int = 1
    sharding: Sharding = "none"
    tensor_parallel: int = 1
    row_tokens: int = 0
    precision_by_gpu: bool = False
    sharded: bool = False
    machines: int = 1

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise _wrong(self, name, "it must be one of " + ", ".join(choices))
        for name in ("batch", "sequence", "accumulation", "gpus", "tensor_parallel", "machines"):
            if not 0 < getattr(self, name) < _MOST_TOKENS:
                raise _wrong(self, name, "it must be a positive number")
        if not 0 <= self.row_tokens < _MOST_TOKENS:
            raise _wrong(self, "row_tokens", "it must be a positive number")
        self._check_adapters()
        self._check_spread()

    @property
    def usual_tokens(self) -> int:
        """Of a sequence, as they are on average."""
        return self.row_tokens or self.sequence

    def _check_adapters(self) -> None:
        if self.adapts and not 0 < self.rank < _MOST_TOKENS:
            raise _wrong(self, "rank", "it must be a positive number")
        if not 0 <= self.adapter_dropout < 1:
            raise _wrong(self, "adapter_dropout", "it must be from 0 up to 1")
        for name in ("narrow_adapters", "reference_pass"):
            if getattr(self, name) and not self.adapts:
                raise _wrong(self, name, f"method {self.method!r} has no adapters: leave it out")
        if not self.saves <= SAVEABLE:
            raise _wrong(self, "saves", "whole modules that can be trained are " + " and ".join(sorted(SAVEABLE)))
        if self.saves and not self.adapts:
            raise _wrong(self, "saves", f"method {self.method!r} has no adapters to train modules beside: leave it out")
        if self.method == "qlora" and self.quantisation == "none":
            raise _wrong(self, "quantisation", "qlora needs one: nf4_dq is the usual")
        if self.method != "qlora" and self.quantisation != "none":
            raise _wrong(self, "quantisation", f"method {self.method!r} trains unquantised weights: take qlora or none")
        if self.method == "qlora" and self.precision.startswith("amp"):
            raise _wrong(self, "precision", "quantised weights have no float32 copy: take bf16 with autocast")

    def _check_spread(self) -> None:
        if self.precision_by_gpu and "bf16" not in self.precision:
            raise _wrong(self, "precision_by_gpu", f"precision {self.precision!r} is chosen already: leave it out")
        if self.precision.startswith("amp") and self.autocast:
            raise _wrong(self, "autocast", f"precision {self.precision!r} means autocast already: leave it out")
        if self.gpus % self.tensor_parallel:
            raise _wrong(self, "tensor_parallel", f"it must divide gpus, which is {self.gpus}")
        if self.sharded and self.method not in {"lora", "full"}:
            raise _wrong(self, "sharded", f"method {self.method!r} has no weights in 16 or 32 bits to split: take lora")
        if self.splits_all and not self.optimizer.startswith("adamw"):
            raise _wrong(self, "sharded", f"states of {self.optimizer!r} are not split: take adamw")
        if self.gpus > 1 and self.gpus % self.machines:
            raise _wrong(self, "machines", f"it must divide gpus, which is {self.gpus}")
        if self.sharding in {"ddp", "fsdp"} and self.gpus < 2:
            raise _wrong(self, "sharding", "there is one GPU: take none, or more gpus")
        if self.optimizer.startswith("in_backward") and self.accumulation > 1:
            raise _wrong(self, "accumulation", "an optimizer inside the way back takes every gradient at once: take 1")

    @property
    def adapts(self) -> bool:
        """Whether small matrices are trained beside frozen ones."""
        return self.method in {"lora", "qlora"}

    @property
    def weight_item(self) -> int:
        """Bytes of a weight that is not quantised."""
        return 2 if self.precision in {"bf16", "fp16"} else 4

    @property
    def casts(self) -> bool:
        """Whether autocast is on."""
        return self.autocast or self.precision.startswith("amp")

    @property
    def gathers_weights(self) -> bool:
        """Whether weights are split over the GPUs and put together for one layer at a time."""
        return self.sharding in {"zero3", "fsdp"}

    @property
    def shardings(self) -> tuple[Sharding, ...]:
        """Ways to spread it over several GPUs."""
        return ("fsdp",) if self.sharded else ("ddp", "zero2", "fsdp")

    def over(self, machines: int) -> Training:
        """On GPUs of so many machines."""
        return replace(self, machines=machines) if self.splits_frozen else self

    @property
    def splits_frozen(self) -> bool:
        """Whether the recipe splits what is not trained, and nothing else."""
        return self.sharded and self.method != "full"

    @property
    def splits_all(self) -> bool:
        """Whether the recipe splits what is trained, with its gradients and states."""
        return self.sharded and self.method == "full"

    @property
    def shares(self) -> int:
        """Of what is split: GPUs of one machine where they are on several, else all that hold a copy together."""
        return self.replicas // self.machines

    @property
    def splits_states(self) -> bool:
        """Whether each GPU updates a part of what is trained."""
        return self.sharding not in {"none", "ddp"} and not self.splits_frozen

    @property
    def keeps_master(self) -> bool:
        """Whether DeepSpeed trains a float32 copy of half-precision weights, beside them."""
        return self.sharding.startswith("zero") and self.weight_item == 2

    @property
    def gradients_gather(self) -> bool:
        """Whether whole gradients add up during the way back: they do not where they exist before it (accumulation),
        leave at once for the optimizer, or are split over the GPUs as they come."""
        split = self.sharding in {"zero2", "zero3", "fsdp"} and not self.splits_frozen
        return not (split or self.accumulation > 1 or self.optimizer.startswith("in_backward"))

    @property
    def replicas(self) -> int:
        """GPUs that the batch is spread over."""
        return self.gpus // self.tensor_parallel

    def names_of(self, model: Architecture) -> frozenset[str]:
        """The matrices that get an adapter. Raises InvalidInput where a name is none of the model's, and where the
        model cannot be trained so at all."""
        if self.tensor_parallel > 1 and model.kv_heads % self.tensor_parallel:
            raise _wrong(self, "tensor_parallel", f"it must divide the model's kv_heads, which is {model.kv_heads}")
        if not self.adapts:
            return frozenset()
        own = matrices(model.form)
        names: set[str] = set()
        for target in self.targets:
            if target == "all":
                names |= {each.name for each in own if each.role != "router"}
            elif target == "attention":
                names |= {each.name for each in own if each.role in {"q", "v", "qkv"}}
            elif target == "lm_head" or any(target == each.name for each in own):
                names.add(target)
            else:
                known = ", ".join(dict.fromkeys(each.name for each in own))
                raise InvalidInput(
                    f"targets has {target!r}, which {model.family} does not have; it has {known}, lm_head",
                    param="targets",
                )
        if not names:
            raise InvalidInput("targets is empty: name matrices, or take all or attention", param="targets")
        return frozenset(names)


def _wrong(training: Training, name: str, fix: str) -> InvalidInput:
    return InvalidInput(f"{name} is {getattr(training, name)!r}: {fix}", param=name)
