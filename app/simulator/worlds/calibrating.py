"""Figures of a world that somebody has measured, from a JSON file: they go over those of the world that is named.

The file is an object with the names of `World` and `TierWorld`, the latter under the name of their tier, and `move_s`,
which is what `--move-seconds` takes; `about` may hold any text. `python -m benchmarks.calibration` writes one from what
the benchmarks have printed.

    {"about": "two weeks of June", "save_s": 0.8, "marketplace": {"startup_mean_s": 58.0, "mean_life_s": null}}
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from app.core.model.node import RENTED_TIERS
from app.errors import InvalidInput
from app.simulator.worlds.known import FRIENDLY
from app.simulator.worlds.world import World

_ABOUT = "about"
_MOST = 1e9
_MOST_DRY = 0.9  # of the time: with more, jobs wait for ever
_MOVE = "move_s"  # is no figure of a world, but an option of every simulation
_KNOWN = (*(name for name, _ in FRIENDLY.figures()), _MOVE)
_WHOLE = frozenset({"hosts", "models"})
_ABOVE_ZERO = frozenset(
    {"startup_mean_s", "startup_sd_s", "cold_mean_s", "give_up_s", "drought_s", "own_saves_every_s"}
    | {"checkpoint_every_s", "link_least_mbps", "link_most_mbps", "mean_life_s", "models", "bid_share"}
    | {"bid_forgets_s"}
)


@dataclass(frozen=True, slots=True)
class MeasuredFigures:
    """Measured figures by name, and the name of the file that has them."""

    name: str = ""
    values: tuple[tuple[str, float | None], ...] = ()

    def over(self, world: World) -> World:
        """The world with these figures. Raises InvalidInput where they contradict what it has beside."""
        if not self.values:
            return world
        found = world.having({name: value for name, value in self.values if name != _MOVE})
        breach = found.breach()
        if breach is not None:
            name, why = breach
            value = dict(found.figures())[name]
            _refuse(self.name, name, value, f"{why}; give both, or other ones")
        return found

    @property
    def move_s(self) -> float | None:
        """What a move takes, if it was measured."""
        return dict(self.values).get(_MOVE)


NOTHING_MEASURED = MeasuredFigures()


def read_calibration(text: str) -> MeasuredFigures:
    """From the file of this name. Raises InvalidInput that names the field, its value and what would do."""
    path = Path(text)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"--calibrate {text}: cannot be read ({error}); name a JSON file", param="calibrate"
        ) from None
    except json.JSONDecodeError as error:
        raise InvalidInput(
            f"--calibrate {text} line {error.lineno}: is not JSON ({error.msg})", param="calibrate"
        ) from None
    if not isinstance(content, dict):
        raise InvalidInput(
            f'--calibrate {text}: holds no object of names and figures; write for instance {{"save_s": 0.8}}',
            param="calibrate",
        )
    values = {name: _figure(text, name, value) for name, value in _flat(text, content)}
    return MeasuredFigures(path.name, tuple(sorted(values.items())))


def _flat(text: str, content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if name == _ABOUT:
            continue
        if isinstance(value, dict) and name in set(RENTED_TIERS):
            yield from ((f"{name}.{inner}", one) for inner, one in value.items())
        else:
            yield name, value


def _figure(text: str, name: str, value: Any) -> float | None:
    if name not in _KNOWN:
        near = difflib.get_close_matches(name, _KNOWN, n=1)
        fix = f"the nearest is {near[0]}" if near else f"there are {', '.join(_KNOWN)}"
        raise InvalidInput(f"--calibrate {text}: {name}: there is no such figure; {fix}", param=name)
    last = name.rpartition(".")[2]
    if value is None and last == "mean_life_s":
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not 0 <= value <= _most(last) or (not value and last in _ABOVE_ZERO):
        _refuse(text, name, value, _wanted(last))
    if last in _WHOLE and value != int(value):
        _refuse(text, name, value, _wanted(last))
    return int(value) if last in _WHOLE else float(value)


def _most(last: str) -> float:
    if last == "drought_share":
        return _MOST_DRY
    # What a further host costs more is a share, and may be more than all of it.
    return 1.0 if last.endswith("_share") and last != "dearer_share" else _MOST


def _wanted(last: str) -> str:
    kind = "a whole number" if last in _WHOLE else "a number"
    least = "above 0" if last in _ABOVE_ZERO else "of at least 0"
    most = "" if _most(last) == _MOST else f", at most {_most(last):g}"
    return f"give {kind} {least}{most}" + (", or null: for ever" if last == "mean_life_s" else "")


def _refuse(text: str, name: str, value: Any, fix: str) -> NoReturn:
    raise InvalidInput(f"--calibrate {text}: {name}: {value!r} does not do; {fix}", param=name)
