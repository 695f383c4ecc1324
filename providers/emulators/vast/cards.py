"""The graphics cards that the emulated market has, each with what goes for all cards of its kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# A driver goes with the newest CUDA that it knows: 13.x takes 580 or later.
DRIVERS: Mapping[float, str] = {12.4: "550.90.07", 12.8: "570.124.06", 13.0: "580.95.05"}
ANCIENT_CUDA, ANCIENT_DRIVER = 11.4, "470.256.02"


@dataclass(frozen=True, slots=True)
class Card:
    """`compute_cap` as Vast.ai writes it: 800 is 8.0. `least_cuda`: of the first driver that knows the card."""

    ram_mb: int
    compute_cap: int
    tflops: float
    bandwidth_gb_s: float
    watts: int
    least_cuda: float = 12.4


CARDS: Mapping[str, Card] = {
    "Tesla T4": Card(15_360, 750, 8.1, 320, 70),
    "Tesla V100": Card(16_384, 700, 15.7, 900, 300),
    "L4": Card(23_034, 890, 30.3, 300, 72),
    "A10": Card(23_028, 860, 31.2, 600, 150),
    "RTX 4090": Card(24_564, 890, 82.6, 1_008, 450),
    "RTX 5080": Card(16_303, 1_200, 56.3, 960, 360, least_cuda=12.8),
    "L40": Card(46_068, 890, 90.5, 864, 300),
    "L40S": Card(46_068, 890, 91.6, 864, 350),
    "A100 SXM4": Card(40_960, 800, 19.5, 1_555, 400),
    "A100 PCIE": Card(81_920, 800, 19.5, 1_935, 300),
    "H100 SXM": Card(81_559, 900, 67.0, 3_352, 700),
    "H100 PCIE": Card(81_559, 900, 51.2, 2_039, 350),
}
