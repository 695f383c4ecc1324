"""Somebody dies at a state of a planned move: source, target, the server while it answers an agent, the server while it
does its own work; or the source falls asleep, is given up, and wakes. The job ends once, at its last step.

By default four of the fifteen are played; `--sweep` plays every one at every state. `tests/control/test_moves.py` has
the deaths of machines one transaction at a time, `tests/e2e/test_moves.py` some with real processes.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from app.db import tables as t
from app.db.engine import Database
from app.errors import Fenced, Unauthenticated
from tests.crashes.agent import Agent, Program
from tests.crashes.stage import MOST_ROUNDS, Stage, lines_to
from tests.crashes.stories import Story
from tests.sweeps import swept

STATES = ("preparing", "saving", "promoting")
VICTIMS = ("source", "target", "server beside an agent", "server at work", "source asleep")
A_FEW = (
    ("preparing", "source asleep"),
    ("saving", "target"),
    ("saving", "server at work"),
    ("promoting", "server beside an agent"),
)
STEPS = 40
STORY = Story(
    "moved ahead", ("succeeded", "finished"), (), policy="allpass", program=Program(steps=STEPS, save_every=7)
)


class Death:
    """Befalls `victim` when the move is first seen in `state`, and once."""

    def __init__(self, stage: Stage, state: str, victim: str) -> None:
        self._stage, self._state, self._victim = stage, state, victim
        self._chance = random.Random(f"{state} {victim}")
        self._sleeper: Agent | None = None
        self._of_sleeper = ""
        self.struck = self.refused = False

    async def look(self) -> None:
        move = next(iter(await self._stage.rows(t.moves)), None)
        if move is None:
            return
        if not self.struck and move.state == self._state:
            await self._strike(move)
        elif self._sleeper is not None and await self._is_over(self._of_sleeper):
            await self._wake(self._sleeper)

    async def _strike(self, move: Any) -> None:
        nodes = {row.run_id: row.node_id for row in await self._stage.rows(t.allocations)}
        self.struck = True
        if self._victim == "source asleep":
            agent = self._stage.agents.get(nodes[move.source_run_id])
            if agent is not None and move.source_run_id in agent.runs:  # else it has left already
                self._of_sleeper, self._sleeper = move.source_run_id, agent
                agent.asleep = True
        elif self._victim.startswith("server"):
            process = self._stage.process
            process.dies_after = process.steps + self._chance.randint(1, 12)
        else:
            node_id = nodes[move.source_run_id if self._victim == "source" else move.target_run_id]
            self._stage.cloud.die(node_id)
            self._stage.agents.pop(node_id, None)

    async def _is_over(self, run_id: str) -> bool:
        return any(run.id == run_id and run.state == "ended" for run in await self._stage.rows(t.runs))

    async def _wake(self, agent: Agent) -> None:
        """It goes on where it was, and tries to write first of all."""
        agent.asleep, self._sleeper = False, None
        run = agent.runs[self._of_sleeper]
        with pytest.raises((Fenced, Unauthenticated)):
            await agent._save(run)
        self.refused = True
        await agent.turn()
        assert agent.runs == {}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("state", "victim"), swept(tuple(itertools.product(STATES, VICTIMS)), A_FEW))
async def test_a_death_at_a_state_of_a_move_costs_the_job_nothing_but_time(
    database: Database, database_url: str, tmp_path: Path, state: str, victim: str
) -> None:
    """One success, the last step, no machine left, the ledger as billed; what has been fenced can write nothing."""
    async with lines_to(database_url) as lines:
        stage = Stage(database_url, database, lines, tmp_path)
        user, death = STORY.begin(stage), Death(stage, state, victim)
        stage.before_each = death.look
        await stage.open()
        try:
            for _ in range(MOST_ROUNDS):
                await stage.round(user.turn)
                await stage.check_at_any_time()
                if await stage.is_over():
                    break
            await stage.check_the_end()
            job = await stage.job()
        finally:
            await stage.close()
    assert death.struck
    assert (job.state, job.end_reason, job.step) == ("succeeded", "finished", STEPS)
    assert job.faults <= (1 if victim in ("source", "target", "source asleep") else 0)
    assert death.refused == (victim == "source asleep" and state != "promoting")
    assert len(stage.deaths) == (1 if victim.startswith("server") else 0)
