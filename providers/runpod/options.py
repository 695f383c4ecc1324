"""How one account at RunPod is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.core import pinned

DEFAULT_URL = "https://api.runpod.io"
SECURE: Literal["SECURE"] = "SECURE"
COMMUNITY: Literal["COMMUNITY"] = "COMMUNITY"


@dataclass(frozen=True, slots=True)
class RunpodOptions:
    """What is looked for, and how long things may take.

    `clouds`: data centers that RunPod has vetted (SECURE), machines of others (COMMUNITY), or both. `gpu_types` are our
    names (A100); none: every type. The catalog does not tell CPUs and memory: `cpus` and `memory_gb` are asked for with
    each GPU, and are what an offer promises. `call_every_ms` is kept across all processes that share the pace: the
    limits are 60 calls a minute, 3,000 an hour and 50,000 a day.
    """

    api_key: str
    base_url: str = DEFAULT_URL
    clouds: tuple[str, ...] = (SECURE,)
    gpu_types: tuple[str, ...] = ()
    gpu_counts: tuple[int, ...] = (1, 2, 4, 8)
    data_centers: tuple[str, ...] = ()
    cuda: float = pinned.CUDA
    cpus: int = 4
    memory_gb: int = 24
    disk_gb: int = 64
    startup_ms: int = 42_000
    startup_deadline_ms: int = 1_200_000
    create_grace_ms: int = 60_000
    call_every_ms: int = 1_250
    timeout_s: float = 10.0
