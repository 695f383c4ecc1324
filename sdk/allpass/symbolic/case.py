"""What is to be run symbolically: a model's configuration and one layout of its training."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Mapping

METHODS = ("full", "lora", "qlora", "norm-tuning")
PRECISIONS = ("fp32", "bf16", "fp16", "amp_bf16", "amp_fp16")
OPTIMIZERS = ("adamw", "adamw_foreach", "adamw_fused", "adamw_8bit", "paged_adamw_8bit", "sgd", "sgd_momentum")
ATTENTIONS = ("flash", "efficient", "eager")
QUANTISATIONS = ("none", "nf4", "nf4_dq")
REVISION = 2  # of what a run watches: results of another one are not the same thing


@dataclass(frozen=True)
class Case:
    """`config` is a `config.json`. The rest has the words of `POST /v1/jobs/plan`; one GPU, no sharding.
    `accumulates`: a step has several micro-batches, and the peak is of one that meets the gradients of another.

    Raises ValueError, naming the field, for what a symbolic run does not know.
    """

    config: Mapping[str, Any]
    sequence: int
    method: str = "full"
    micro_batch: int = 1
    precision: str = "bf16"
    autocast: bool = False
    optimizer: str = "adamw"
    checkpointing: bool = False
    accumulates: bool = False
    attention: str = "flash"
    rank: int = 16
    targets: "tuple[str, ...]" = ("all",)
    adapter_dropout: float = 0.0
    quantisation: str = "none"

    def __post_init__(self) -> None:
        for name, known in (
            ("method", METHODS),
            ("precision", PRECISIONS),
            ("optimizer", OPTIMIZERS),
            ("attention", ATTENTIONS),
            ("quantisation", QUANTISATIONS),
        ):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}: a symbolic run knows {', '.join(known)}; leave --exact out"
                )
        for name in ("sequence", "micro_batch", "rank"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}: it must be a positive number")
        if not isinstance(self.config.get("model_type"), str):
            raise ValueError(  # noqa: TRY004 - a value of the user's file, told as all others are
                f"model_type is {self.config.get('model_type')!r}: the config.json of a model names it"
            )

    @classmethod
    def from_json(cls, value: "Mapping[str, Any]") -> "Case":
        """As `as_json` wrote it. Raises ValueError, TypeError."""
        known = {field.name for field in fields(cls)}
        given = {name: each for name, each in value.items() if name in known}
        return cls(**{**given, "targets": tuple(value.get("targets", ("all",)))})

    def as_json(self) -> "dict[str, Any]":
        return {**asdict(self), "targets": list(self.targets)}

    def key(self, versions: "Mapping[str, str]") -> str:
        """The hash under which the result of this case with these library versions is kept."""
        text = json.dumps([REVISION, self.as_json(), dict(versions)], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()
