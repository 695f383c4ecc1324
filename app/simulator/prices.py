"""Prices of a GPU-hour over time: flat, drawn from the model of a calm market, or from a file."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from app.errors import InvalidInput
from app.simulator.tables import TableRow, header_of, read_text, rows_of

HOUR_S = 3600
DAY_S = 24 * HOUR_S

CALM_MEDIAN_USD = 0.67
CALM_LEAST_USD = 0.32
CALM_MOST_USD = 1.13
CALM_DAILY_SD = 0.24
CALM_STEP_S = 600
CALM_REVERSION_S = 3 * HOUR_S
CALM_CUT_GAIN = 1.065  # the limits take this much off the standard deviation

PRICE_COLUMNS = ("usd_per_gpu_hour", "median_usd_per_gpu_h", "avg_usd_per_gpu_h")


@dataclass(frozen=True, slots=True)
class PriceCurve:
    """A piecewise constant price: `usd_per_gpu_hour[i]` holds from `times_s[i]` until the next time.

    Before the first time the first price holds, after the last time the last one, for ever.
    """

    times_s: tuple[float, ...]
    usd_per_gpu_hour: tuple[float, ...]
    _paid_usd: tuple[float, ...] = field(init=False, repr=False, compare=False)  # from the first time to each time

    def __post_init__(self) -> None:
        if not self.times_s or len(self.times_s) != len(self.usd_per_gpu_hour):
            raise InvalidInput(
                f"times_s: has {len(self.times_s)} instants for {len(self.usd_per_gpu_hour)} prices; "
                "give one price for each, and at least one",
                param="times_s",
            )
        if not all(math.isfinite(one) for one in self.times_s) or any(a >= b for a, b in pairwise(self.times_s)):
            raise InvalidInput("times_s: does not rise from each instant to the next; sort it", param="times_s")
        for usd in self.usd_per_gpu_hour:
            if not (math.isfinite(usd) and usd >= 0):
                raise InvalidInput(
                    f"usd_per_gpu_hour: {usd} is no price; give dollars of at least 0", param="usd_per_gpu_hour"
                )
        steps = zip(pairwise(self.times_s), self.usd_per_gpu_hour, strict=False)
        paid = [0.0]
        for (since_s, until_s), usd in steps:
            paid.append(paid[-1] + usd * (until_s - since_s) / HOUR_S)
        object.__setattr__(self, "_paid_usd", tuple(paid))

    def at(self, t_s: float) -> float:
        """Dollars per GPU and hour at an instant; at a change, the new price."""
        return self.usd_per_gpu_hour[self._place(t_s)]

    def next_change_after(self, t_s: float) -> float | None:
        """The first instant after `t_s` with another price than at `t_s`; None if the price stays for ever."""
        place = self._place(t_s)
        now_usd = self.usd_per_gpu_hour[place]
        for later in range(place + 1, len(self.times_s)):
            if self.usd_per_gpu_hour[later] != now_usd:
                return self.times_s[later]
        return None

    def cost_usd(self, from_s: float, to_s: float) -> float:
        """What one GPU costs from an instant to another: the integral of the price, not a sample of it."""
        if to_s < from_s:
            raise InvalidInput(f"to_s: {to_s} is before from_s, {from_s}; swap them", param="to_s")
        first, last = self._place(from_s), self._place(to_s)
        if first == last:  # not the difference of two long sums, which would lose digits
            return self.usd_per_gpu_hour[first] * (to_s - from_s) / HOUR_S
        return self._until(to_s, last) - self._until(from_s, first)

    def _place(self, t_s: float) -> int:
        return max(0, bisect_right(self.times_s, t_s) - 1)

    def _until(self, t_s: float, place: int) -> float:
        return self._paid_usd[place] + self.usd_per_gpu_hour[place] * (t_s - self.times_s[place]) / HOUR_S


def flat(usd_per_gpu_hour: float) -> PriceCurve:
    """The same price at all times."""
    return PriceCurve((0.0,), (usd_per_gpu_hour,))


def calm(seed: int, horizon_s: float) -> PriceCurve:
    """A marketplace on quiet days: redrawn every 10 minutes until `horizon_s`; the last price holds from there.

    The logarithm of the price is a stationary Ornstein-Uhlenbeck process around a median of 0.67 $; prices are cut at
    0.32 and 1.13 $. Within a day the price has a standard deviation of 24 % on average; it forgets where it was with a
    time constant of 3 hours. The same seed gives the same prices, whatever the horizon.
    """
    import numpy as np  # the curve itself needs only the standard library

    steps = _steps(horizon_s)
    scale = CALM_CUT_GAIN * CALM_DAILY_SD / _share_within(DAY_S, CALM_REVERSION_S)
    draws = np.random.default_rng(seed).standard_normal(steps + 1).tolist()
    wanted = (CALM_MEDIAN_USD * math.exp(scale * away) for away in _wandering(draws, CALM_REVERSION_S))
    prices = tuple(min(max(usd, CALM_LEAST_USD), CALM_MOST_USD) for usd in wanted)
    return PriceCurve(tuple(float(step * CALM_STEP_S) for step in range(steps + 1)), prices)


def wandering(name: str, horizon_s: float, forgets_s: float) -> list[float]:
    """A stationary Ornstein-Uhlenbeck process with a standard deviation of 1, every 10 minutes until the horizon; it
    forgets where it was with a time constant of `forgets_s`. The same name draws the same."""
    chance = random.Random(name)  # noqa: S311 - a simulation
    return list(_wandering((chance.gauss(0, 1) for _ in range(_steps(horizon_s) + 1)), forgets_s))


def _steps(horizon_s: float) -> int:
    if not (math.isfinite(horizon_s) and horizon_s >= 0):
        raise InvalidInput(f"horizon_s: {horizon_s} is no length of time; give seconds, 0 or more", param="horizon_s")
    return math.ceil(horizon_s / CALM_STEP_S)


def _wandering(draws: Iterable[float], forgets_s: float) -> Iterator[float]:
    kept = math.exp(-CALM_STEP_S / forgets_s)
    fresh = math.sqrt(1 - kept * kept)
    away: float | None = None
    for draw in draws:
        away = draw if away is None else kept * away + fresh * draw
        yield away


def _share_within(window_s: float, reversion_s: float) -> float:
    """Standard deviation of an Ornstein-Uhlenbeck process within a window, as a share of that over all time."""
    ratio = reversion_s / window_s
    return math.sqrt(1 - 2 * ratio * (1 - ratio * -math.expm1(-1 / ratio)))


def from_file(path: Path, *, provider: str | None = None, gpu_type: str | None = None) -> PriceCurve:
    """The prices of a csv or csv.gz file: `time_s,usd_per_gpu_hour` and, if wanted, `provider` and `gpu_type`.

    The columns of public price trackers are read too: `median_usd_per_gpu_h`, or `avg_usd_per_gpu_h` by provider. A
    file about several providers or GPU types needs a choice. Of rows of the same time the cheapest holds.
    """
    text = read_text(path)
    names = header_of(path, text)
    column = next((one for one in PRICE_COLUMNS if one in names), PRICE_COLUMNS[0])
    wanted = {"provider": provider, "gpu_type": gpu_type}
    rows = list(rows_of(path, text, ["time_s", column]))
    for name, choice in wanted.items():
        rows = _chosen(path, rows, name, choice)
    cheapest: dict[float, float] = {}
    for row in rows:
        time_s, usd = row.number("time_s"), row.number(column)
        cheapest[time_s] = min(usd, cheapest.get(time_s, usd))
    if not cheapest:
        raise InvalidInput(f"{path}: holds no price; give at least one row", param="path")
    times = sorted(cheapest)
    return PriceCurve(tuple(times), tuple(cheapest[one] for one in times))


def providers_of(path: Path) -> tuple[str, ...]:
    """The providers that a price file tells apart, sorted; none if it has no such column."""
    text = read_text(path)
    return _values(list(rows_of(path, text, ["time_s"])), "provider")


def _chosen(path: Path, rows: Sequence[TableRow], name: str, choice: str | None) -> list[TableRow]:
    """The rows of one provider, or GPU type."""
    there = _values(rows, name)
    if choice is None and len(there) > 1:
        raise InvalidInput(f"{path}, column {name}: holds {', '.join(there)}; choose one of them", param=name)
    if choice is not None and choice not in there:
        told = f"it has {', '.join(there)}" if there else "the file tells none apart"
        raise InvalidInput(f"{path}, column {name}: {choice!r} is not there; {told}", param=name)
    return [row for row in rows if choice is None or row.text(name) == choice]


def _values(rows: Sequence[TableRow], name: str) -> tuple[str, ...]:
    return tuple(sorted({text for row in rows if (text := row.text(name))}))
