"""The numbers that a simulation may be given by name: those of a policy's configuration, and those of the market.

A name is the path of a field (`rules.move_gain`, `budget.first_ms`, `market.prices.marketplace`); where only one field
ends so, its last word does (`move_gain`).
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from app.core.model.node import RENTED_TIERS, Tier
from app.core.model.plan import ActionKind
from app.core.policy import AllpassRules, MoveCost, PolicyConfig
from app.core.tiers import BudgetRule
from app.errors import InvalidInput
from app.simulator.bids import USUAL_PERCENT
from app.simulator.worlds.known import FRIENDLY
from app.simulator.worlds.world import World

NO_LIMIT = 1_000_000
# In the simulator every action can be enacted, and nobody reads why a job waits.
PLAIN_CONFIG = PolicyConfig(
    capabilities=frozenset(ActionKind),
    serverless_budget_ms=300_000,
    serverless_limit=NO_LIMIT,
    serverful_limit=NO_LIMIT,
    idle_release_ms=0,
    explains=False,
)
_PARTS: Mapping[str, type] = {"budget": BudgetRule, "moves": MoveCost, "rules": AllpassRules}
_NOT_SET = frozenset({"capabilities", "explains", "merging", "merge_modes"})
_ABOVE_ZERO = frozenset(
    {"tick_ms", "horizon_ms", "rules.reuse_half_life_ms", "rules.chase_pause_share", "market.bid_percent"}
)
_BID_PERCENT = "market.bid_percent"
_OF_A_TIER: Mapping[str, type] = {"prices": float, "limits": int, "mean_life_s": float}


@dataclass(frozen=True, slots=True)
class MarketSettings:
    """Prices are dollars per GPU and hour where the market is flat; `limits`: machines of a tier to be had at once;
    `mean_life_s`: of a machine until it fails, absent: for ever; `bid_percent`: of the lowest bid is bid."""

    prices: Mapping[Tier, float]
    limits: Mapping[Tier, int]
    mean_life_s: Mapping[Tier, float]
    bid_percent: int = USUAL_PERCENT


def flat_usd(world: World) -> dict[Tier, float]:
    """What a GPU-hour costs in a world whose prices stay as they are."""
    return {tier: world.of(tier).usd for tier in RENTED_TIERS}


def _known() -> dict[str, type]:
    """Every name, and whether it is a whole number."""
    found: dict[str, type] = {}
    for one in fields(PolicyConfig):
        if one.name in _PARTS:
            found |= {f"{one.name}.{inner.name}": _kind(inner.type) for inner in fields(_PARTS[one.name])}
        elif one.name not in _NOT_SET:
            found[one.name] = _kind(one.type)
    for name, kind in _OF_A_TIER.items():
        found |= {f"market.{name}.{tier.value}": kind for tier in RENTED_TIERS}
    return found | {_BID_PERCENT: int}


def _kind(annotation: object) -> type:
    return float if annotation in (float, "float") else int


KNOWN: Mapping[str, type] = _known()


@dataclass(frozen=True, slots=True)
class Tuning:
    """Some numbers by their full names; everything else is as usual."""

    values: tuple[tuple[str, float], ...] = ()

    def having(self, name: str, value: object) -> Tuning:
        """With one more number, or another one. Raises InvalidInput for a name or a value that does not do."""
        full = _full_name(name)
        return Tuning(tuple(sorted((dict(self.values) | {full: _number(full, value)}).items())))

    def without(self, names: Container[str]) -> Tuning:
        """As usual where these are named."""
        return Tuning(tuple(pair for pair in self.values if pair[0] not in names))

    def over(self, other: Tuning) -> Tuning:
        """These numbers, and those of `other` where these say nothing."""
        return Tuning(tuple(sorted((dict(other.values) | dict(self.values)).items())))

    def config(self) -> PolicyConfig:
        """What a policy reads."""
        plain: dict[str, Any] = {}
        parts: dict[str, dict[str, Any]] = {name: {} for name in _PARTS}
        for name, value in self.values:
            part, _, inner = name.rpartition(".")
            if part in parts:
                parts[part][inner] = value
            elif not part:
                plain[name] = value
        changed = {name: replace(getattr(PLAIN_CONFIG, name), **inner) for name, inner in parts.items()}
        return replace(PLAIN_CONFIG, **plain, **changed)

    def market(self, world: World = FRIENDLY) -> MarketSettings:
        """What the market of a world is made from."""
        found: dict[str, dict[Tier, Any]] = {name: {} for name in _OF_A_TIER}
        for name, value in self.values:
            head, _, rest = name.partition(".")
            if head == "market" and name != _BID_PERCENT:
                kind, _, tier = rest.partition(".")
                found[kind][Tier(tier)] = value
        lives = {tier: life_s for tier in RENTED_TIERS if (life_s := world.of(tier).mean_life_s) is not None}
        return MarketSettings(
            {**flat_usd(world), **found["prices"]},
            found["limits"],
            {**lives, **found["mean_life_s"]},
            round(dict(self.values).get(_BID_PERCENT, USUAL_PERCENT)),
        )


def read_tuning(path: Path) -> Tuning:
    """The numbers of a JSON or YAML file: an object of names, nested or with dots. Raises InvalidInput."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidInput(f"--config {path}: there is no such file; check the path", param="config") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"--config {path}: cannot be read ({error}); name a JSON or YAML file", param="config"
        ) from None
    content = _parsed(path, text)
    if not isinstance(content, dict):
        raise InvalidInput(
            f"--config {path}: holds no object of names and numbers; write for instance rules.move_gain: 1.25",
            param="config",
        )
    found = Tuning()
    for name, value in _flat(content):
        try:
            found = found.having(name, value)
        except InvalidInput as error:
            raise InvalidInput(f"--config {path}: {error.message}", param=error.param) from None
    return found


def _parsed(path: Path, text: str) -> object:
    try:
        if path.suffix.lower() == ".json":
            return json.loads(text)
        import yaml  # slow to load, and rarely needed

        return yaml.safe_load(text)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"--config {path} line {error.lineno}: is not JSON ({error.msg})", param="config") from None
    except yaml.YAMLError as error:
        raise InvalidInput(f"--config {path}: is not YAML ({' '.join(str(error).split())})", param="config") from None


def _flat(content: Mapping[Any, Any], head: str = "") -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for name, value in content.items():
        full = f"{head}{name}"
        found += _flat(value, f"{full}.") if isinstance(value, dict) else [(full, value)]
    return found


def _full_name(name: str) -> str:
    if name in KNOWN:
        return name
    ends = [known for known in KNOWN if known.rpartition(".")[2] == name]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise InvalidInput(f"{name}: means several settings; take one of {', '.join(ends)}", param=name)
    by_last_word = {known.rpartition(".")[2]: known for known in KNOWN}
    near = difflib.get_close_matches(name, KNOWN, n=1) or difflib.get_close_matches(name, by_last_word, n=1)
    fix = f"the nearest is {by_last_word.get(near[0], near[0])}" if near else f"there are {', '.join(KNOWN)}"
    raise InvalidInput(f"{name}: there is no such setting; {fix}", param=name)


def _number(name: str, value: object) -> float:
    """Of the setting's kind, and in its range."""
    whole, above_zero = KNOWN[name] is int, name in _ABOVE_ZERO or name.startswith("market.mean_life_s.")
    told = ("a whole number" if whole else "a number") + (" above 0" if above_zero else " of at least 0")
    number = math.nan
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            number = float(value)
    if not math.isfinite(number) or number < 0 or (above_zero and number == 0) or (whole and number != int(number)):
        raise InvalidInput(f"{name}: {value!r} does not do; give {told}", param=name)
    return int(number) if whole else number
