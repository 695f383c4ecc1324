"""A reproduction as an object for programs, as rows for a table, and as a page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from statistics import mean, stdev
from typing import Any

from app.simulator.reproduction.spotgpu.claims import NOT_PLAYED, SpotClaim, parts_of
from app.simulator.reproduction.spotgpu.experiments import SpotReproduced

HEADINGS = ("CLAIM", "PAPER", "OURS", "+-")
NOT_PLAYED_TITLE = "Not played"
_WIDTH = 120
_FORMS = {
    "%": "{:.1f}%",
    "x": "{:.2f} x",
    "s": "{:.1f} s",
    "cases": "{:.0f}",
    "GPU h": "{:.1f} GPU h",
    "a day": "{:.1f}",
}


def row_of(claim: SpotClaim) -> list[str]:
    """Under HEADINGS; the last is the deviation over the seeds."""
    form = _FORMS[claim.unit]
    paper = "-" if claim.paper is None else form.format(claim.paper)
    deviation = form.format(stdev(claim.ours)) if len(claim.ours) > 1 else "-"
    return [claim.about, paper, form.format(mean(claim.ours)), deviation]


def as_object(found: SpotReproduced) -> dict[str, Any]:
    """All of it, with stable names."""
    return {
        "paper": "spotgpu",
        "trace": found.trace,
        "jobs": found.jobs,
        "workload": found.workload,
        "seeds": list(found.seeds),
        "parts": [
            {
                "title": part.title,
                "why": part.why,
                "claims": [
                    {"about": one.about, "unit": one.unit, "paper": one.paper, "ours": list(one.ours)}
                    for one in part.claims
                ],
            }
            for part in parts_of(found)
        ],
        "not_played": [{"about": about, "why": why} for about, why in NOT_PLAYED],
    }


def about(found: SpotReproduced) -> str:
    """What was played, in a line."""
    seeds = ", ".join(map(str, found.seeds))
    return f"{found.trace}: {found.jobs:,} jobs; placement: {found.workload}; means over the seeds {seeds}"


def markdown(found: SpotReproduced) -> str:
    """A table for each part, and why."""
    return "\n".join(_sections(found))


def page(found: SpotReproduced, command: str) -> str:
    """A page that says how it was made."""
    return f"""# The SpotGPU paper's claims, played

"Heterogeneity at Hyperscale" (OSDI 2026) describes how one company runs several kinds of jobs on one fleet of GPUs.
What of its claims can be played with the functions that Allpass decides with stands here beside what comes out. Figures
are means over the seeds, and `+-` is the standard deviation over them; where the paper says nothing its column has a
dash. This page is the output of one command:

<!-- not run: needs some minutes -->
```sh
{command}
```

{about(found)}.

{markdown(found)}"""


def _sections(found: SpotReproduced) -> Iterator[str]:
    for part in parts_of(found):
        why = textwrap.fill(part.why, _WIDTH, break_on_hyphens=False)
        yield f"## {part.title}\n\n{_table(HEADINGS, [row_of(one) for one in part.claims])}\n{why}\n"
    rows = [list(one) for one in NOT_PLAYED]
    yield f"## {NOT_PLAYED_TITLE}\n\n{_table(('claim', 'why'), rows, right=False)}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], right: bool = True) -> str:
    ruler = ["---", *(["---:" if right else "---"] * (len(headings) - 1))]
    return "".join(f"| {' | '.join(line)} |\n" for line in [[one.lower() for one in headings], ruler, *rows])
