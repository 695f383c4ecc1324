"""How long machines take to come up: published means and deviations as lognormal draws, and the tails seen in use.

The same seed and machine number give the same time. All times scale with one factor; 0 is none at all, tails included.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

_WORST = 3.0  # a slow start takes up to this many times the tail's beginning


@dataclass(frozen=True, slots=True)
class Startup:
    """A distribution at full length (speed 1): mean and standard deviation of the lognormal body, and its tail.

    `slow_ppm` of a million starts take longer than `slow_ms` (up to three times that); `never_ppm` never come up.
    """

    mean_ms: int
    sd_ms: int
    slow_ppm: int = 0
    slow_ms: int = 0
    never_ppm: int = 0


# Means and deviations: 20 starts on an A100 (Allpass paper, Table 3). Tails: as users report them.
MODAL = Startup(3_880, 1_840, slow_ppm=10_000, slow_ms=60_000, never_ppm=2_000)
VAST = Startup(36_040, 7_350, slow_ppm=50_000, slow_ms=300_000, never_ppm=30_000)
# RunPod: a mean from 36 to 48 s is told; deviation and tails are picked.
RUNPOD = Startup(42_000, 10_000, slow_ppm=30_000, slow_ms=300_000, never_ppm=20_000)
LAMBDA = Startup(255_590, 26_260, slow_ppm=20_000, slow_ms=1_200_000, never_ppm=5_000)


class StartupTimes:
    """Draws for one emulator."""

    def __init__(self, startup: Startup, *, seed: int, speed: float, tails: bool = True) -> None:
        """`speed` scales every time: 1 as published, 0 none. Raises ValueError for a negative or infinite one."""
        if not (math.isfinite(speed) and speed >= 0):
            raise ValueError(f"speed is {speed}; it must be 0 or greater, e.g. 0.1 for a tenth of the real delays")
        self.speed = speed
        self._startup = startup
        self._seed = seed
        self._tails = tails

    def boot_ms(self, number: int, *, mean_ms: int | None = None) -> int | None:
        """The time that the machine with this number takes; None: it never comes up.

        `mean_ms` shifts the whole distribution to another mean, with the same relative spread (larger machines).
        """
        if self.speed == 0:
            return 0
        full = self._startup
        factor = 1.0 if mean_ms is None else mean_ms / full.mean_ms
        chance = random.Random(f"{self._seed}/startup/{number}")  # noqa: S311 - a model, not a secret
        body_ms = draw_lognormal(chance, full.mean_ms * factor, full.sd_ms * factor)
        fate = chance.randrange(1_000_000)
        if self._tails and fate < full.never_ppm:
            return None
        if self._tails and fate < full.never_ppm + full.slow_ppm:
            body_ms = max(body_ms, full.slow_ms * factor * chance.uniform(1, _WORST))
        return round(body_ms * self.speed)

    def expected_ms(self, *, mean_ms: int | None = None) -> int:
        """The mean of the body of `boot_ms`."""
        return round((self._startup.mean_ms if mean_ms is None else mean_ms) * self.speed)


def draw_lognormal(chance: random.Random, mean: float, sd: float) -> float:
    """A draw from the lognormal distribution whose own mean and standard deviation these are."""
    variance = math.log(1 + (sd / mean) ** 2)
    return chance.lognormvariate(math.log(mean) - variance / 2, math.sqrt(variance))
