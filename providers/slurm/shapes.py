"""What is asked of Slurm for one machine: a shape, as the owner of the installation writes it."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from app.core.model.node import MOST_GPUS
from app.core.model.pool import CPU

_DAY_S, _HOUR_S, _MINUTE_S = 86_400, 3_600, 60
_GIB = 1024**3
# 30 | 30:00 | 8:00:00 | 2-0 | 2-12:30 | 2-12:30:00, as sbatch reads them: minutes where there is one number.
_TIME = re.compile(r"(?:(\d{1,4})-(\d{1,2})(?::(\d{1,2}))?(?::(\d{1,2}))?|(\d{1,6})(?::(\d{1,2}))?(?::(\d{1,2}))?)")
_OPTION = re.compile(r"--([a-z][a-z-]*)(?:=([A-Za-z0-9_.,:+@\[\]/*&|()-]{1,200}))?")
# Where a job runs and what it gets. None decides when it runs, as whom, what is told of it, or what becomes of it.
_ALLOWED = frozenset(
    {
        "constraint", "cpus-per-gpu", "exclude", "exclusive", "extra-node-info", "gpu-bind",
        "gpu-freq", "gres-flags", "hint", "licenses", "mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus", "network",
        "nice", "nodelist", "oversubscribe", "prefer", "propagate", "reservation", "sockets-per-node", "switches",
        "threads-per-core", "tmp", "wckey",
    }
)  # fmt: skip

_Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.@+-]{1,100}$")]


class SlurmShape(BaseModel):
    """One kind of machine. `gpu_type` and the memories are what jobs are matched with; `gres` (or else `gpu_count`),
    `cpus`, `memory_gb` and the rest is what Slurm is asked for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,39}$")]
    partition: _Word
    account: _Word | None = None
    qos: _Word | None = None
    gres: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:,-]{1,200}$")] | None = None
    gpu_type: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_. -]{1,60}$")] = CPU
    gpu_count: int = Field(0, ge=0, le=MOST_GPUS)
    gpu_memory_gb: float = Field(0.0, ge=0, le=4096)
    cpus: int = Field(ge=1, le=4096)
    memory_gb: float = Field(gt=0, le=65_536)
    time_limit: str
    constraint: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.,&|()\[\]*-]{1,200}$")] | None = None
    most: int = Field(1, ge=1, le=10_000)
    options: tuple[str, ...] = ()

    @field_validator("time_limit")
    @classmethod
    def _readable_time(cls, value: str) -> str:
        if seconds_of(value) < _MINUTE_S:
            raise ValueError(f"{value!r:.40} is no time limit of a minute or more; write it as 08:00:00 or 2-00:00:00")
        return value

    @field_validator("options")
    @classmethod
    def _allowed_options(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for option in value:
            found = _OPTION.fullmatch(option)
            if found is None or found.group(1) not in _ALLOWED:
                known = ", ".join(f"--{name}" for name in sorted(_ALLOWED))
                raise ValueError(f"{option!r:.80} is not allowed; write --name=value, with one of {known}")
        return value

    @model_validator(mode="after")
    def _whole_gpus(self) -> SlurmShape:
        if self.gpu_count and (self.gpu_type == CPU or self.gpu_memory_gb <= 0):
            raise ValueError(
                f"{self.name}: gpu_count is {self.gpu_count}: say gpu_type (A100, H100, ...) and gpu_memory_gb too"
            )
        if not self.gpu_count and (self.gpu_type != CPU or self.gres):
            raise ValueError(f"{self.name}: gpu_count is missing: how many GPUs a machine of this shape has")
        return self

    @property
    def time_limit_s(self) -> int:
        return seconds_of(self.time_limit)

    @property
    def memory_bytes(self) -> int:
        return round(self.memory_gb * _GIB)

    @property
    def gpu_memory_bytes(self) -> int:
        """Of each GPU; of a shape without any, the memory of its processors."""
        return round(self.gpu_memory_gb * _GIB) if self.gpu_count else self.memory_bytes

    @property
    def asked_gres(self) -> str | None:
        return self.gres or (f"gpu:{self.gpu_count}" if self.gpu_count else None)


def seconds_of(text: str) -> int:
    """Of a time as Slurm writes it; 0 for what is none."""
    found = _TIME.fullmatch(text)
    if found is None:
        return 0
    days, hours, minutes, seconds, first, second, third = (int(part or 0) for part in found.groups())
    if found.group(1) is not None:
        return days * _DAY_S + hours * _HOUR_S + minutes * _MINUTE_S + seconds
    if found.group(7) is not None:
        return first * _HOUR_S + second * _MINUTE_S + third
    return first * _MINUTE_S + second
