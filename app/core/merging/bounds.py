"""Between which bounds a foretold end lies, and how these close as a job goes on.

A curve through losses may turn too early or too late: early losses of a task that the model knows hardly fall, and
those of one that it does not know fall, stop, and fall again. How far off ends were is measured by
`benchmarks.transfer` over families of tasks; the bounds hold what was seen there (ADR 0063). They are meant to hold
nine ends in ten, and promise none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from app.core.merging.convergence import fit_curve, steps_left

# Of an end that a curve foretells, in shares of it: what is never known better, and what the steps ahead add.
_SOONER, _SOONER_AHEAD = 0.1, 0.25
_LATER, _LATER_AHEAD = 0.2, 2.5
_LIFE = 9.0  # eight lives in ten end before nine times as much as was, and after a ninth of it, has passed again
_HISTORY = 5 / 4  # as far as a prediction from history is believed (`app.core.remaining`), either way
_LONGEST = 10**9


@dataclass(frozen=True, slots=True)
class Bounds:
    """From `least` to `most`, of steps or milliseconds: never less than zero, and `most` no less than `least`."""

    least: float
    most: float

    def less(self, done: float) -> Bounds:
        """What is left of it once `done` is."""
        return Bounds(max(0.0, self.least - done), max(0.0, self.most - done))

    def times(self, factor: float) -> Bounds:
        """In another unit."""
        return Bounds(self.least * factor, self.most * factor)

    def within(self, most: float | None) -> Bounds:
        """Not beyond what cannot be exceeded."""
        return self if most is None else Bounds(min(self.least, most), min(self.most, most))


def around(end: float, seen: float) -> Bounds:
    """The last step, of which a curve through the first `seen` steps says `end`; not before `seen`."""
    share = min(1.0, seen / end) if end > 0 else 1.0
    ahead = 1.0 - share
    least = end / (1 + _SOONER + _SOONER_AHEAD * ahead / max(share, 1e-3) ** 2)
    return Bounds(max(seen, least), max(seen, end) * (1 + _LATER + _LATER_AHEAD * ahead))


def by_age(seen: float) -> Bounds:
    """The last step of a job of which only its age is known: P(life > t) ~ 1/t, as in `app.core.remaining`."""
    return Bounds(seen * (1 + 1 / _LIFE), seen * (1 + _LIFE))


def by_history(total: float) -> Bounds:
    """How long a job lasts in all, of which jobs before it say `total`."""
    return Bounds(total / _HISTORY, total * _HISTORY)


@lru_cache(maxsize=4096)  # pure; a fit takes milliseconds, and one curve is asked for in many decisions
def foretold_end(series: tuple[tuple[float, float], ...], target: float | None) -> int | None:
    """The step at which the losses reach the target, else at which they are flat; None: they do not tell.

    `series`: steps and losses, in order of steps.
    """
    curve = fit_curve([step for step, _ in series], [loss for _, loss in series])
    end = None if curve is None else steps_left(curve, 0, target=target)
    return None if end is None or end >= _LONGEST else end


def span_of(series: Sequence[tuple[float, float]], target: float | None) -> Bounds | None:
    """Within which the last step lies, by the losses so far: by their curve, or where it tells nothing by how long the
    job has lasted. None: there are none yet that count."""
    known = tuple((step, loss) for step, loss in series if 0 <= step <= _LONGEST and math.isfinite(loss))
    seen = max((step for step, _ in known), default=0.0)
    if seen == 0:
        return None
    end = foretold_end(known, target)
    return by_age(seen) if end is None or end <= seen / 2 else around(end, seen)
