"""What is known of run times before they are over: how wrong it is, for whom, and when it gets better."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import NoReturn

from app.errors import InvalidInput

REFINED_AT = (0.1, 0.3, 0.6)  # of a job's work: its own steps tell more then
_MOST = 1e6
_MOST_SIGMA = 5.0  # one job in six is then wrong by more than 150 times
_NORMAL, _RAREST = NormalDist(), 1e-9
_EXTRAS = re.compile(r"(bias=(?P<bias>[^,]*)|wrong=(?P<wrong>[^,]*)|(?P<refined>refined))")


@dataclass(frozen=True, slots=True)
class Knowledge:
    """The predicted run time is the real one times an error, known after `after_s` of running.

    `error`: the factor is uniform in 1 +- error; from 1 on, where that would fall to nothing, its logarithm is uniform,
    from 1 / (1 + error) to 1 + error. `sigma`: it is log-normal with median 1 instead. `bias`: every prediction is so
    many times larger, or smaller. `wrong`: the share of jobs that are predicted by what another job of the trace takes,
    as an app's usual run time does after a change. `refined`: the error shrinks as the job runs.
    """

    known: bool = True
    after_s: float = 0.0
    error: float = 0.2
    sigma: float | None = None
    bias: float = 1.0
    wrong: float = 0.0
    refined: bool = False

    @classmethod
    def parse(cls, text: str) -> Knowledge:
        """`submit:0.2`, `after:60:0.2`, `none`; the error as `ln0.5` too; then `,bias=2`, `,wrong=0.1`, `,refined`.

        Raises InvalidInput.
        """
        first, *extras = text.split(",")
        kind, *numbers = first.split(":")
        if kind == "none" and not numbers and not extras:
            return cls(known=False)
        if (kind, len(numbers)) not in (("submit", 1), ("after", 2)):
            _refuse(text)
        after_s = _number(text, numbers[0]) if kind == "after" else 0.0
        is_log = numbers[-1].startswith("ln")
        spread = _number(text, numbers[-1].removeprefix("ln"), most=_MOST_SIGMA if is_log else _MOST)
        found = {name: value for extra in extras for name, value in _extra(text, extra).items()}
        if len(found) < len(extras):
            _refuse(text)
        bias = _number(text, found.get("bias", "1"))
        wrong = _number(text, found.get("wrong", "0"), most=1.0)
        if not bias:
            _refuse(text)
        refined = "refined" in found
        if is_log:
            return cls(True, after_s, 0.0, spread, bias, wrong, refined)
        return cls(True, after_s, spread, None, bias, wrong, refined)

    def factor(self, chance: random.Random) -> float:
        """What the real run time is multiplied with. One number is drawn, whatever is asked for."""
        drawn = chance.uniform(-1, 1)
        if self.sigma is not None:
            return self.bias * math.exp(self.sigma * _NORMAL.inv_cdf(min(1 - _RAREST, max(_RAREST, (drawn + 1) / 2))))
        if self.error < 1:
            return self.bias * (1 + drawn * self.error)
        return float(self.bias * (1 + self.error) ** drawn)


@dataclass(slots=True)
class Mistakes:
    """Which jobs are predicted by another one's run time, and by whose. Drawn apart from the errors."""

    share: float
    work_ms: Sequence[int]
    chance: random.Random = field(default_factory=random.Random)

    def stands_for(self, work_ms: int) -> int:
        """The run time that the prediction is made from."""
        if not self.share or self.chance.random() >= self.share:
            return work_ms
        return self.chance.choice(self.work_ms)


def _extra(text: str, extra: str) -> dict[str, str]:
    found = _EXTRAS.fullmatch(extra)
    if found is None:
        _refuse(text)
    return {name: value for name, value in found.groupdict().items() if value is not None}


def _number(text: str, number: str, *, most: float = _MOST) -> float:
    try:
        value = float(number)
    except ValueError:
        _refuse(text)
    if not 0 <= value <= most or "_" in number:  # a NaN is neither
        _refuse(text)
    return value


def _refuse(text: str) -> NoReturn:
    raise InvalidInput(
        f"knowledge {text!r} is not understood; take submit:0.2 (predicted at submission, +-20 %), after:60:0.2 "
        "(only after 60 s of running) or none; ln0.5 for 0.2 draws log-normal errors; after a comma follow bias=2 "
        "(all predictions twice as long), wrong=0.1 (one job in ten has another's) and refined (better as it runs)",
        param="knowledge",
    )
