"""One bad thing at a time, put into a stack with 200 good jobs: do they notice?

    .venv/bin/python -m benchmarks.poison [--jobs 200] [--only REGEX] [--list]

The stack is the service as it is (PostgreSQL, API, control loop with all chores) on a virtual clock; agents speak the
real wire. The good jobs are played once without poison. Then they are played again, as often as it takes, and in each
round something else of the poisoner's is bad: a value of a field of a request at an extreme, a row that cannot be
decoded, a row that cannot be written, a chore or an action that raises, a hostile message of an agent. A good job is
disturbed when it was restarted, ended or billed otherwise, left other bytes, or first started more than one tick later
than without poison. The poisoner's jobs name an image of their own, and so have machines of their own; where the poison
is about free machines of her project, they share them. Such plays are compared with one in which she submits the same
jobs without poison, and of her own project only another end, other bytes, a fault or a late start count.
`value` is how many were, over all plays; a play that disturbed any is taken apart, to tell by which poison.
`server_errors` are answers of 500 and above to hostile bodies. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import asyncpg

from app.db.migrate import upgrade
from app.stack.postgres import EmbeddedPostgres
from benchmarks.poison_actions import action_cases
from benchmarks.poison_bodies import body_cases
from benchmarks.poison_cases import Case, Mallory, NotReachedError, nothing
from benchmarks.poison_chores import chore_cases
from benchmarks.poison_ground import Ground, ground, quiet
from benchmarks.poison_jobs import Fate, GoodJob, Play, good_jobs
from benchmarks.poison_rows import row_cases
from benchmarks.world import storage, tmpfs

_ROUNDS_OF_A_PLAY = 120  # in which poison is put in, one after the other
_FIRST_ROUND = 8  # good jobs are in every state by then
_MOST_ROUNDS = 600
_MOST_CULPRITS = 40
_MOST_TOLD = 10
_BODIES = ("field", "message")
_TEMPLATE = "poison_template"
_FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=60")


@dataclass
class Outcome:
    """Of one play: the good jobs' fates by name, and what else is told."""

    fates: dict[str, Fate]
    not_looked_at: set[str] = field(default_factory=set)
    beside_others: set[str] = field(default_factory=set)  # shared their project's machines with jobs of the poisoner's
    not_reached: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    server_errors: list[str] = field(default_factory=list)

    def disturbed(self, without: Outcome) -> dict[str, list[str]]:
        """In which ways, by the good job's name."""
        ways = {
            name: fate.differs(without.fates[name], wherever=name in self.beside_others)
            for name, fate in self.fates.items()
            if name not in self.not_looked_at
        }
        return {name: told for name, told in ways.items() if told}


class Bench:
    """Plays on fresh databases of one server."""

    def __init__(
        self,
        server: EmbeddedPostgres,
        jobs: int,
        *,
        template: str = _TEMPLATE,
        rounds: int = _ROUNDS_OF_A_PLAY,
        most_steps: int = 2_000,
    ) -> None:
        self._server = server
        self._count = jobs
        self._template = template
        self._rounds, self._most_steps = rounds, most_steps
        self._plays = 0

    async def schema(self) -> dict[str, Any]:
        with quiet() as folder:
            async with ground(await self._new_database(), folder) as place:
                return dict((await place.api.get("/openapi.json")).json())

    async def play(self, cases: Sequence[Case], *, shares: bool = False, poisoned: bool = True) -> Outcome:
        """The good jobs from the first to the last, with these poisons one after the other; or, not `poisoned`, with
        what the poisoner does beside them."""
        with quiet() as folder:
            async with ground(await self._new_database(), folder) as place:
                jobs = good_jobs(self._count, self._rounds, len(place.tenants), most_steps=self._most_steps)
                play, mallory = Play(place, jobs), Mallory(place, shares)
                outcome = Outcome({})
                waiting = list(cases)
                while place.round_number < _FIRST_ROUND or waiting or not await play.over():
                    if place.round_number > _MOST_ROUNDS:
                        break
                    await play.step()
                    await mallory.keep_jobs()
                    if waiting and place.round_number >= _FIRST_ROUND:
                        case = waiting.pop(0)
                        case = case if poisoned else replace(case, inject=case.beside, cure=nothing)
                        await self._poison(case, place, play, mallory, outcome, jobs)
                    else:
                        await place.round()
                outcome.fates = await play.fates()
                outcome.failures, outcome.server_errors = place.failures, place.server_errors
                return outcome

    async def _poison(
        self, case: Case, place: Ground, play: Play, mallory: Mallory, outcome: Outcome, jobs: list[GoodJob]
    ) -> None:
        """Put it in, let the stack live with it for its rounds, take it out."""
        told, failed = len(place.server_errors), len(place.failures)
        mallory.notes.clear()
        try:
            await case.inject(mallory)
        except NotReachedError as error:
            outcome.not_reached[case.key] = str(error)
            await place.round()
            return
        siblings = {job.name for job in jobs if job.tenant == len(place.tenants)}
        if not case.spares_project:
            outcome.not_looked_at |= siblings
        if case.shares:
            outcome.beside_others |= siblings
        for number in range(case.rounds):
            if number:
                await play.step()
            await place.round()
        try:
            await case.cure(mallory)
        except NotReachedError as error:
            outcome.not_reached[case.key] = str(error)
        errors = place.server_errors[told:] if case.group in _BODIES else []  # of a bad row, 500 is the true answer
        place.server_errors[told:] = [f"{case.key}: {error}" for error in errors]
        place.failures[failed:] = [f"{case.key}: {error}" for error in place.failures[failed:]]

    async def _new_database(self) -> str:
        self._plays += 1
        name = f"play_{os.getpid()}_{self._plays}"
        connection = await asyncpg.connect(self._server.url())
        try:
            await connection.execute(f"CREATE DATABASE {name} TEMPLATE {self._template} STRATEGY FILE_COPY")
        finally:
            await connection.close()
        return self._server.url(name)


def plays(cases: Sequence[Case]) -> list[list[Case]]:
    """The cases in so many plays that each has its rounds."""
    found: list[list[Case]] = [[]]
    rounds = 0
    for case in cases:
        if rounds + case.rounds > _ROUNDS_OF_A_PLAY:
            found.append([])
            rounds = 0
        found[-1].append(case)
        rounds += case.rounds
    return [play for play in found if play]


def every_case(schema: Mapping[str, Any]) -> list[Case]:
    """All that is known to be bad."""
    return [*body_cases(schema), *row_cases(), *chore_cases(), *action_cases()]


@contextmanager
def bench(jobs: int) -> Iterator[Bench]:
    """A PostgreSQL of its own, on tmpfs where there is one."""
    with tempfile.TemporaryDirectory(prefix="allpass-benchmark-", dir=tmpfs()) as folder:
        server = EmbeddedPostgres(Path(folder) / "postgres", settings=_FAST)
        server.start()
        try:
            asyncio.run(_execute(server.url(), f"CREATE DATABASE {_TEMPLATE}"))
            upgrade(server.url(_TEMPLATE))
            yield Bench(server, jobs)
        finally:
            server.stop()


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=200, help="good jobs in each play")
    parser.add_argument("--only", default="", help="cases whose key this expression finds")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    options = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a play takes minutes: told when it ends
    with bench(options.jobs) as stack:
        cases = [case for case in every_case(asyncio.run(stack.schema())) if re.search(options.only, case.key)]
        if options.list:
            print("\n".join(case.key for case in cases))
            return 0
        report = asyncio.run(measure(stack, cases, options.jobs))
    print(json.dumps(report))
    return 0 if report["value"] == 0 and not report["detail"]["server_errors"] else 1


async def measure(stack: Bench, cases: Sequence[Case], jobs: int) -> dict[str, Any]:
    """All plays; prints a line for each."""
    started = time.monotonic()
    calm = await stack.play([])
    print(f"without poison: {_told(calm)}, {time.monotonic() - started:.0f} s")
    disturbed, culprits = 0, dict[str, list[str]]()
    outcomes = []
    groups = [group for shares in (False, True) for group in plays([case for case in cases if case.shares is shares])]
    for number, group in enumerate(groups, 1):
        shares = group[0].shares
        without = await stack.play(group, shares=True, poisoned=False) if shares else calm
        outcome = await stack.play(group, shares=shares)
        outcomes.append(outcome)
        hurt = outcome.disturbed(without)
        disturbed += len(hurt)
        print(f"play {number} of {len(groups)}: {len(group)} poisons, {len(hurt)} good jobs disturbed, "
              f"{len(outcome.server_errors)} server errors, {len(outcome.failures)} rounds cut short, "
              f"{time.monotonic() - started:.0f} s")  # fmt: skip
        for name, ways in sorted(hurt.items())[:_MOST_TOLD]:
            print(f"  {name}: {'; '.join(ways)}")
        if hurt:
            culprits |= await _culprits(stack, group, calm)
    return _report(cases, jobs, disturbed, culprits, calm, outcomes)


async def _culprits(stack: Bench, group: Sequence[Case], calm: Outcome) -> dict[str, list[str]]:
    """Which cases of a play disturbed somebody: halves of it are played until they are found."""
    found: dict[str, list[str]] = {}
    halves = [list(group)]
    while halves and len(found) < _MOST_CULPRITS:
        half = halves.pop()
        shares = half[0].shares
        without = await stack.play(half, shares=True, poisoned=False) if shares else calm
        hurt = (await stack.play(half, shares=shares)).disturbed(without)
        if not hurt:
            continue
        if len(half) == 1:
            found[half[0].key] = [f"{name}: {way}" for name, ways in sorted(hurt.items()) for way in ways][:5]
            print(f"  {half[0].key}: {found[half[0].key][0]}")
        else:
            middle = len(half) // 2
            halves += [half[middle:], half[:middle]]
    return found


def _told(outcome: Outcome) -> str:
    states = Counter(fate.state for fate in outcome.fates.values())
    moves = sum(fate.moves for fate in outcome.fates.values())
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items())) + f", {moves} moves"


def _report(
    cases: Sequence[Case],
    jobs: int,
    disturbed: int,
    culprits: dict[str, list[str]],
    without: Outcome,
    outcomes: Sequence[Outcome],
) -> dict[str, Any]:
    not_reached = {key: why for outcome in outcomes for key, why in outcome.not_reached.items()}
    return {
        "name": "poison",
        "value": disturbed,
        "goal": 0,
        "unit": "good jobs disturbed",
        "detail": {
            "jobs": jobs,
            "cases": len(cases),
            "by_group": dict(Counter(case.group for case in cases)),
            "plays": len(outcomes),
            "without_poison": _told(without),
            "culprits": culprits,
            "server_errors": sorted({error for outcome in outcomes for error in outcome.server_errors})[:50],
            "rounds_cut_short": sorted({failure for outcome in outcomes for failure in outcome.failures})[:50],
            "not_reached": not_reached,
            "storage": storage(),
        },
    }


if __name__ == "__main__":
    sys.exit(main())
