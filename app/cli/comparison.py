"""What `allpass.simulate.run` gives: policies beside each other, for print, for notebooks and for pandas."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from allpass import notebook
from allpass.errors import ConfigurationError
from app.cli import figures
from app.errors import InvalidInput
from app.simulator import per_job
from app.simulator.options import Options
from app.simulator.running import Played, Variant, play, summary
from app.simulator.traces.job import Trace, check_jobs

_NUMBERS = ("submit_s", "finish_s", "jct_s", "cost_usd")


class Comparison:
    """Policies on the same jobs.

    `policies`: the figures of each by name, as `allpass simulate --json` gives them. `spread` and `against`, where
    there is more than one seed: standard deviations, and how the first policy differs from each other one.
    """

    def __init__(self, trace: Trace, played: Sequence[Played]) -> None:
        found = summary(trace, played)
        self.trace = trace
        self.policies: Mapping[str, Mapping[str, Any]] = found["policies"]
        self.spread: Mapping[str, Any] = found.get("spread", {})
        self.against: Mapping[str, Any] = found.get("against", {})
        self._outcomes = {one.name: one.outcomes for one in played if one.outcomes}

    def jobs(self, policy: str) -> list[dict[str, Any]]:
        """What became of each job with the first seed, in order of submission: `job_id`, `submit_s`, `finish_s`,
        `jct_s` (completion time), `cost_usd`, `tiers`, `missed`. Raises InvalidInput for a policy that was not played.
        """
        if policy not in self._outcomes:
            known = ", ".join(self._outcomes)
            raise InvalidInput(f"policy: {policy!r} was not played; there are {known}", param="policy")
        lines = csv.DictReader(io.StringIO(per_job.text_of(self._outcomes[policy])))
        return [_typed(line) for line in lines]

    def frame(self, policy: str | None = None) -> Any:
        """A pandas DataFrame: a row for each policy, or for each job of one. Needs pandas."""
        try:
            import pandas
        except ImportError:
            raise ConfigurationError("pandas is not installed here", hint="pip install pandas") from None
        if policy is not None:
            return pandas.DataFrame(self.jobs(policy))
        return pandas.DataFrame([{"policy": name, **one} for name, one in self.policies.items()])

    def __str__(self) -> str:
        rows = [self._headings(), *self._rows()]
        widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
        lines = [
            "  ".join(
                cell.ljust(width) if place == 0 else cell.rjust(width) for place, (cell, width) in _placed(row, widths)
            )
            for row in rows
        ]
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return notebook.table(self._headings(), self._rows())

    def _headings(self) -> list[str]:
        return [column.heading for column in figures.heading(figures.COLUMNS)]

    def _rows(self) -> list[list[str]]:
        return [[name, *figures.cells_of(one)] for name, one in self.policies.items()]


def _placed(row: Sequence[str], widths: Sequence[int]) -> Iterable[tuple[int, tuple[str, int]]]:
    return enumerate(zip(row, widths, strict=True))


def run(
    trace: Trace,
    policies: Iterable[Any],
    *,
    seeds: int | Iterable[int] = 1,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> Comparison:
    """Plays each policy on the jobs: the name of one that Allpass or a package has, or an object of your own.

    `seeds`: how many, from 0 on, or which. `options` are those of `allpass simulate`, with underscores
    (`serverful_limit=10`); `settings` are its settings with dots (`{"market.mean_life_s.marketplace": 3600}`).

    Raises InvalidInput that names what is wrong with the jobs, a policy, an option or a setting, and JobsNeverEnd.
    """
    check_jobs(trace)
    variants = [Variant.plain(one) if isinstance(one, str) else Variant.own(one) for one in policies]
    names = [one.name for one in variants]
    if len(set(names)) != len(names) or not names:
        raise InvalidInput("policies: give at least one, and each a name of its own", param="policies")
    drawn = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not drawn:
        raise InvalidInput("seeds: give at least one", param="seeds")
    chosen = Options()
    for name, value in {**{name.replace("_", "-"): one for name, one in options.items()}, **(settings or {})}.items():
        chosen = chosen.having(name, _word(value))
    return Comparison(trace, play(trace, variants, chosen, drawn, keeps_jobs=True))


def _word(value: Any) -> str:
    """As it would be typed."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)


def _typed(line: Mapping[str, str]) -> dict[str, Any]:
    """A line of csv with numbers as numbers."""
    told: dict[str, Any] = {name: float(text) if name in _NUMBERS else text for name, text in line.items()}
    return told | {"tiers": line["tiers"].split(">"), "missed": line["missed"] == "1"}
