"""What Modal charges, as the emulator's own list: micro-dollars per hour."""

from __future__ import annotations

from typing import Any

from providers.emulators.market import EmulatedMarket, Good
from providers.emulators.nvidia_smi import GPUS

CPU, MEMORY = "cpu", "memory_gib"
_PLENTY = 1_000
_GPUS = {
    "T4": (590_400, 8),
    "L4": (799_200, 8),
    "A10": (1_101_600, 4),
    "L40S": (1_951_200, 8),
    "A100": (2_098_800, 8),
    "A100-40GB": (2_098_800, 8),
    "A100-80GB": (2_498_400, 8),
    "RTX-PRO-6000": (3_031_200, 8),
    "H100": (3_949_200, 8),
    "H200": (4_539_600, 8),
    "B200": (6_249_600, 8),
}
# As a market calls the cards, with their memory in MiB as nvidia-smi tells it.
_CARDS = {
    "T4": ("Tesla T4", 15_360),
    "L4": ("L4", 23_034),
    "A10": ("A10", 23_028),
    "L40S": ("L40S", 46_068),
    "A100": ("A100 SXM4", 40_960),
    "A100-40GB": ("A100 SXM4", 40_960),
    "A100-80GB": ("A100 SXM4", 81_920),
    "RTX-PRO-6000": ("RTX PRO 6000 Blackwell Server Edition", 97_887),
    "H100": ("H100 SXM", 81_559),
    "H200": ("H200", 143_771),
    "B200": ("B200", 183_359),
}
_RATES = {CPU: 141_480, MEMORY: 23_976}  # a physical core; a GiB

GOODS = tuple(
    Good(name, micros, micros, micros, _PLENTY)
    for name, micros in [*((name, micros) for name, (micros, _) in _GPUS.items()), *_RATES.items()]
)


def gpu_name(asked: str) -> str:
    """`H100!` and `B200+` are H100 and B200 as far as the price goes."""
    return asked.upper().rstrip("!+")


def most_gpus(name: str) -> int:
    """How many of them one sandbox may have; 0 for a name that Modal does not know."""
    return _GPUS[name][1] if name in _GPUS else 0


def shown_gpus(name: str, count: int, wrong: str = "") -> dict[str, Any]:
    """What nvidia-smi shows in a sandbox with such GPUs, as facts of a machine; nothing for one without."""
    if not name or not count:
        return {}
    good, memory_mib = _CARDS[name]
    return {GPUS: {"good": good, "count": count, "memory_mib": memory_mib, "wrong": wrong}}


def price_micros(market: EmulatedMarket, now_ms: int, gpu: str, count: int, milli_cpu: int, memory_mib: int) -> int:
    """A sandbox's price per hour now: its GPUs, CPUs and memory."""
    total = market.price_micros(gpu, now_ms) * count if gpu else 0
    total += market.price_micros(CPU, now_ms) * milli_cpu // 1_000
    return total + market.price_micros(MEMORY, now_ms) * memory_mib // 1_024
