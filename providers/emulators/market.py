"""Prices and supply of an emulated company over time: seeded, moving, and open to a test's script.

Everything is a function of seed, time and script: the same question about the same moment has the same answer, also
after a restart. Market time runs as fast as start-ups do: at speed 0.1 an hour of the market takes six minutes; at
speed 0 nothing ever moves.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_PRICE_STEP_MICROS = 100  # prices are named to a hundredth of a cent
_STEP_MS = 10 * 60_000  # a price or a supply holds for ten minutes of market time
_KNOT_STEPS = 36  # and drifts towards a new level drawn every six hours
_HOST_SPREAD = 0.35
ANYWHERE = ""


@dataclass(frozen=True, slots=True)
class Good:
    """One kind of thing for rent, by the company's own name for it.

    Prices are micro-dollars per hour: equal ones never move. `supply` is how many there are in a good hour in each of
    `places`; each step takes up to `supply_swing` (of 1) of them away, and `empty_ppm` of a million six-hour spells
    have none at all.
    """

    name: str
    lowest_micros: int
    median_micros: int
    highest_micros: int
    supply: int
    places: tuple[str, ...] = (ANYWHERE,)
    supply_swing: float = 0.0
    empty_ppm: int = 0


@dataclass(slots=True)
class _Script:
    """What a test or a demonstration has set, each from its moment on; None: the market's own figure again."""

    price: list[tuple[int, int | None]] = field(default_factory=list)
    supply: list[tuple[int, int | None, str]] = field(default_factory=list)  # the last is the place


class EmulatedMarket:
    """`now_ms` is a moment of the caller's clock, the same for all calls; `origin_ms` is when market time began."""

    def __init__(
        self, goods: Sequence[Good], *, seed: int, speed: float, origin_ms: int, listing_lag_ms: int = 0
    ) -> None:
        """`listing_lag_ms`: how old (in market time) what `listed_...` shows is."""
        self.goods: Mapping[str, Good] = {good.name: good for good in goods}
        self._seed = seed
        self._speed = speed
        self._origin_ms = origin_ms
        self._lag_ms = round(listing_lag_ms * speed)
        self._scripts = {name: _Script() for name in self.goods}

    def price_micros(self, name: str, now_ms: int, host: int = 0) -> int:
        """What it costs per hour at this moment; hosts (any numbers) differ by up to a third of the range."""
        scripted = _latest(self._scripts[name].price, now_ms)
        if scripted is not None:
            return scripted
        good = self.goods[name]
        if good.lowest_micros == good.highest_micros:
            return good.median_micros
        level = self._level(name, self._step(now_ms)) + _HOST_SPREAD * (self._draw("host", name, host) - 0.5)
        return _price_at(good, min(1.0, max(0.0, level)))

    def supply(self, name: str, now_ms: int, place: str = ANYWHERE) -> int:
        """How many could be rented in this place at this moment, if none had been rented."""
        script = [(at_ms, count) for at_ms, count, where in self._scripts[name].supply if where in {place, ANYWHERE}]
        scripted = _latest(script, now_ms)
        if scripted is not None:
            return scripted
        good, step = self.goods[name], self._step(now_ms)
        if place not in good.places:
            return 0
        if self._draw("empty", name, place, step // _KNOT_STEPS) * 1_000_000 < good.empty_ppm:
            return 0
        return round(good.supply * (1 - good.supply_swing * self._draw("supply", name, place, step)))

    def listed_price_micros(self, name: str, now_ms: int, host: int = 0) -> int:
        """The price as a search shows it: that of a moment ago."""
        return self.price_micros(name, now_ms - self._lag_ms, host)

    def listed_supply(self, name: str, now_ms: int, place: str = ANYWHERE) -> int:
        """The supply as a search shows it: that of a moment ago."""
        return self.supply(name, now_ms - self._lag_ms, place)

    # -- the script

    def set_price(self, name: str, micros: int | None, now_ms: int) -> None:
        """Fix the price from now on; None lets the market go on. Raises KeyError for a name that is not for rent."""
        self._scripts[name].price.append((now_ms, micros))

    def set_supply(self, name: str, count: int | None, now_ms: int, place: str = ANYWHERE) -> None:
        """Fix the supply from now on, everywhere or in one place; None lets the market go on. The last word counts."""
        self._scripts[name].supply.append((now_ms, count, place))

    def empty(self, now_ms: int) -> None:
        """Nothing is for rent from now on, anywhere."""
        for name in self.goods:
            self.set_supply(name, 0, now_ms)

    def reset(self) -> None:
        """Forget the script: the market's own figures again."""
        self._scripts = {name: _Script() for name in self.goods}

    def script(self) -> dict[str, Any]:
        """The script as JSON, to be remembered."""
        return {name: {"price": each.price, "supply": each.supply} for name, each in self._scripts.items()}

    def restore(self, script: Mapping[str, Any]) -> None:
        """Take up a script that was remembered; names that are not for rent any more are left out."""
        for name in self.goods.keys() & script.keys():
            told = script[name]
            supply = [(at_ms, count, place) for at_ms, count, place in told["supply"]]
            self._scripts[name] = _Script([(at_ms, micros) for at_ms, micros in told["price"]], supply)

    # -- the market's own figures

    def _step(self, now_ms: int) -> int:
        if self._speed == 0:
            return 0
        return max(0, int((now_ms - self._origin_ms) / (_STEP_MS * self._speed)))

    def _level(self, name: str, step: int) -> float:
        """Where between lowest (0) and highest (1) the whole market for this stands: straight lines between draws."""
        knot, along = divmod(step, _KNOT_STEPS)
        before, after = self._draw("level", name, knot), self._draw("level", name, knot + 1)
        return before + (after - before) * along / _KNOT_STEPS

    def _draw(self, *what: object) -> float:
        return random.Random("/".join(map(str, (self._seed, *what)))).random()  # noqa: S311 - a model, not a secret


def _price_at(good: Good, level: float) -> int:
    """Half of all levels lie below the median."""
    if level < 0.5:
        price = good.lowest_micros + (good.median_micros - good.lowest_micros) * level * 2
    else:
        price = good.median_micros + (good.highest_micros - good.median_micros) * (level - 0.5) * 2
    return round(price / _PRICE_STEP_MICROS) * _PRICE_STEP_MICROS


def _latest(entries: Sequence[tuple[int, int | None]], now_ms: int) -> int | None:
    return next((value for at_ms, value in reversed(entries) if at_ms <= now_ms), None)
