"""Faults where machines come from, one after the other, with and without a crash of the control plane in the middle.

    .venv/bin/python -m benchmarks.faults [--company modal kubernetes ...] [--rows N] [--seed S] [--only REGEX]

A whole stack on this host rents from emulators of Modal, Vast.ai, Lambda and RunPod through the real clients, and has
machines of its own: an emulated Kubernetes cluster, two hosts that have joined (the real program, behind a proxy that
breaks its calls), and a real Slurm, started for rows of `slurm` where its packages are installed. Every row submits a
job, lets one thing go wrong, and waits until the job is over and the machines are gone. A row survives when the job
has succeeded once, at its last step; no two machines of one node and no machine of nobody lived on after the grace
time; every end is confirmed; no earlier epoch committed a checkpoint after a later one; and the ledger equals the bill
as far as that can be known (of one's own machines, what their owner says that they cost). The rows of all places run
beside each other; all rows without a crash come first, those that harm all places last and one at a time. `value` is
the share of rows that survived. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from app.stack.supervisor import Stack
from benchmarks.fault_ground import Ground, ground, started
from benchmarks.fault_play import Outcome, play
from benchmarks.fault_row import Row
from benchmarks.fault_rows import PLACES, matrix, sample
from benchmarks.fault_slurm import slurm_in
from tests.slurm_cluster import SlurmCluster, SlurmMissing

GOAL = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--company", nargs="+", choices=PLACES, default=list(PLACES))
    parser.add_argument("--rows", type=int, help="so many rows, drawn by the seed; default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="rows whose name this expression finds")
    parser.add_argument("--keep", type=Path, help="use and keep this folder, for its logs")
    options = parser.parse_args()
    rows = [row for row in matrix(options.company) if re.search(options.only, row.key)]
    rows = sample(rows, options.rows, options.seed)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what was started here ends with it
    with ExitStack() as exits:
        folder = options.keep or Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="allpass-bench-")))
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o711)  # machines run user code as other users, who pass through
        slurm = None
        if any(row.company == "slurm" for row in rows):
            try:
                slurm = exits.enter_context(slurm_in(folder / "slurm"))
            except SlurmMissing as missing:
                rows = [row for row in rows if row.company != "slurm"]
                print(f"rows of slurm are left out: {missing}")
        outcomes = asyncio.run(run(exits.enter_context(started(folder, slurm)), rows, slurm))
    print(json.dumps(report(outcomes)))
    return 0 if all(outcome.survived for outcome in outcomes) else 1


async def run(stack: Stack, rows: Sequence[Row], slurm: SlurmCluster | None) -> list[Outcome]:
    """Play them on one stack; prints a line for each as it is over."""
    print(f"{'row':<58}{'survived':>9}{'seconds':>9}{'billed':>9}{'gap':>7}{'orphans':>9}  micro-USD")
    async with ground(stack, slurm) as place:
        outcomes = await _calm(place, [row for row in rows if not row.crash and not row.alone])
        outcomes += await _crashing(place, [row for row in rows if row.crash and not row.alone])
        outcomes += [await _told(place, row) for row in rows if row.alone]
        await _nothing_grew(place, outcomes)
    return outcomes


async def _calm(place: Ground, rows: Sequence[Row]) -> list[Outcome]:
    """The rows of each company in their order, the companies beside each other."""

    async def of_company(company: str) -> list[Outcome]:
        return [await _told(place, row) for row in rows if row.company == company]

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(of_company(company)) for company in PLACES]
    return [outcome for task in tasks for outcome in task.result()]


async def _crashing(place: Ground, rows: Sequence[Row]) -> list[Outcome]:
    """One row of each company at a time, so that every crash is followed by time without one: silence is measured only
    while somebody listens."""
    of_companies = [[row for row in rows if row.company == company] for company in PLACES]
    outcomes: list[Outcome] = []
    for together in itertools.zip_longest(*of_companies):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_told(place, row)) for row in together if row is not None]
        outcomes += [task.result() for task in tasks]
    return outcomes


async def _told(place: Ground, row: Row) -> Outcome:
    outcome = await play(place, row)
    said = "yes" if outcome.survived else "NO"
    print(f"{row.key:<58}{said:>9}{outcome.seconds:>9.1f}{_money(outcome)}", flush=True)
    for problem in outcome.problems:
        print(f"    {problem}", flush=True)
    return outcome


def _money(outcome: Outcome) -> str:
    return f"{outcome.billed_micros:>9}{outcome.gap_micros:>7}{outcome.orphan_micros:>9}"


async def _nothing_grew(place: Ground, outcomes: Sequence[Outcome]) -> None:
    """The last look at every company's books: orphans cost what they cost when their rows were over."""
    for company, books in place.books.items():
        own = [outcome for outcome in outcomes if outcome.row.company == company]
        grown = await books.orphan_micros(await place.owned(company)) - sum(each.orphan_micros for each in own)
        if grown and own:
            own[-1].late_orphan_micros += grown
            own[-1].problems.append(f"orphans cost {grown} micro-USD more at the end")


def report(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    survived = sum(outcome.survived for outcome in outcomes)
    return {
        "name": "faults",
        "value": round(survived / len(outcomes), 4) if outcomes else 0.0,
        "goal": GOAL,
        "unit": "share",
        "detail": {
            "rows": len(outcomes),
            "survived": survived,
            "jobs": len(outcomes),
            "jobs_finished": sum(outcome.finished for outcome in outcomes),
            "duplicates": sum(outcome.duplicates for outcome in outcomes),
            "orphan_cost_usd": sum(outcome.late_orphan_micros for outcome in outcomes) / 1e6,
            "orphan_cost_within_grace_usd": sum(each.orphan_micros - each.late_orphan_micros for each in outcomes)
            / 1e6,
            "billed_usd": sum(outcome.billed_micros for outcome in outcomes) / 1e6,
            "ledger_gap_usd": sum(outcome.gap_micros for outcome in outcomes) / 1e6,
            "by_company": {company: _of(company, outcomes) for company in PLACES},
            "failed": [{"row": each.row.key, "problems": each.problems} for each in outcomes if not each.survived],
            "load_average": [round(load, 2) for load in os.getloadavg()],
        },
    }


def _of(company: str, outcomes: Sequence[Outcome]) -> dict[str, int]:
    own = [outcome for outcome in outcomes if outcome.row.company == company]
    return {"rows": len(own), "survived": sum(outcome.survived for outcome in own)}


if __name__ == "__main__":
    sys.exit(main())
