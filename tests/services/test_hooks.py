"""Runs and jobs are read without their capabilities: these come in by hooks, and by the few doors that are listed here
(ADR 0078)."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select

from allpass.wire.agent import ExitReport
from app.core.lifecycle import Outcome
from app.core.model.job import JobEnd, JobState
from app.core.model.node import Tier
from app.core.model.run import RunEnd, RunPurpose, RunState
from app.db.connection import Connection
from app.db.engine import Database
from app.db.runs.live_runs import RunRow
from app.db.tables import job_events, jobs, runs
from app.services.kit.capability import Beginning, Capability
from app.services.runs import capabilities
from app.services.runs.end_run import end_run
from tests.conftest import CountingIds
from tests.seeds import T0_MS, seed_job, seed_node, seed_project, seed_run

DONE = Outcome(RunEnd.FINISHED, JobState.SUCCEEDED, JobEnd.FINISHED, False, "exit code 0")
WAITS = Outcome(RunEnd.DEMOTED, JobState.WAITING, None, False, "saved and left")

_ROOT = Path(__file__).parents[2]
_MERGING = ("app.services.merging", "app.db.merging", "app.core.merging", "app.core.model.merge",
            "app.db.tables.merges", "app.db.tables.profiles",
            "workers.agent.companion", "workers.agent.sharing", "workers.agent.watching")  # fmt: skip
_ITS_OWN = ("app/services/merging/", "app/db/merging/", "app/db/tables/",
            "workers/agent/companion.py", "workers/agent/sharing.py", "workers/agent/watching.py")  # fmt: skip

_LIST = "the list of hooks"
_ACTIONS = "a plan's actions that merge jobs and part them"
_CHECKPOINT = "of whom a job may read a checkpoint, and which one it begins with"
KNOWN_BY = {
    "app/services/runs/capabilities.py": _LIST,
    "app/db/locked_together.py": _LIST,
    "workers/agent/capabilities.py": _LIST,
    "workers/agent/roster.py": "makes the run that the server wants, of its kind",
    "workers/agent/agent.py": "loads all that a run needs while the agent's first call is on its way",
    "app/control/enact.py": _ACTIONS,
    "app/control/enact_merge.py": _ACTIONS,
    "app/control/placing.py": "gives a companion no place of its own",
    "app/db/checkpoints/manifests.py": _CHECKPOINT,
    "app/db/checkpoints/readable_content.py": _CHECKPOINT,
    "app/db/checkpoints/retention.py": _CHECKPOINT,
    "app/db/decisions/snapshots.py": "a decision sees merges, and proposes them",
    "app/db/decisions/job_memory.py": "between the steps of a pair are those of the other one",
    "app/db/decisions/mergeable.py": "what decides with whom a job may be merged",
    "app/control/learn.py": "the leader has merges teach what the next ones are worth",
    "app/api/jobs.py": "shows merges to their jobs' owners",
    "app/api/views.py": "shows merges to their jobs' owners",
    "app/services/reading/explain_job.py": "says why a job waits or trains with another one",
    "app/services/sizes/resize_nodes.py": "a job that trains with another one is on one machine",
}


class Said(Capability):
    """Writes down what it is told. `answer`: to `judge_exit`; `beside`: to `begin_runs`, of every job."""

    def __init__(
        self, name: str, heard: list[str], answer: Outcome | None = None, beside: tuple[str, ...] = ()
    ) -> None:
        self.name, self.heard, self.answer, self.beside = name, heard, answer, beside

    async def begin_runs(
        self, connection: Connection, beginning: Collection[Beginning]
    ) -> dict[Beginning, tuple[str, ...]]:
        return dict.fromkeys(beginning, self.beside)

    async def judge_exit(
        self, connection: Connection, run: RunRow, job_id: str, exit_: ExitReport, *, now_ms: int
    ) -> Outcome | None:
        self.heard.append(f"{self.name}: judge")
        return self.answer

    async def end_run(self, connection: Connection, run: RunRow, job_id: str, outcome: Outcome, *, now_ms: int) -> None:
        state = (await connection.execute(select(jobs.c.state).where(jobs.c.id == job_id))).scalar_one()
        self.heard.append(f"{self.name}: run ended, job {state}")

    async def stop_job(self, connection: Connection, job_id: str, state: JobState, *, now_ms: int) -> None:
        self.heard.append(f"{self.name}: job {state}")


class Failing(Capability):
    async def end_run(self, connection: Connection, run: RunRow, job_id: str, outcome: Outcome, *, now_ms: int) -> None:
        raise ValueError("this hook fails")


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of three capabilities, of which the second and third have an answer."""
    said: list[str] = []
    first, third = Said("first", said, beside=("job_x",)), Said("third", said, DONE)
    listed = (first, Said("second", said, WAITS, ("job_y",)), third)
    monkeypatch.setattr(capabilities, "CAPABILITIES", listed)
    return said


def test_nobody_else_knows_of_merging() -> None:
    """Neither modules of merging nor its tables are imported but where this file says so, with the reason. What decides
    knows merges as it knows jobs, and so does the simulator."""
    searched = _below("app/api", "app/cli", "app/control", "app/db", "app/services", "workers/agent")
    others = {name for name in searched if not name.startswith(_ITS_OWN)}
    assert {name for name in others if any(one.startswith(_MERGING) for one in _imports(name))} == KNOWN_BY.keys()


def test_hooks_of_merging_lock_nothing_and_call_nobody() -> None:
    """No door to locks, providers or the object store is within its reach."""
    doors = ("app.ports", "app.storage", "app.control", "app.db.lock_order", "httpx")
    for name in _below("app/services/merging"):
        reached = {one for one in _imports(name) if one.startswith(doors) or ".lock_" in one}
        assert reached <= {"app.ports.clock.IdSource"}, name  # a type, of what every hook is given


async def test_hooks_run_in_the_order_of_the_list(database: Database, ids: CountingIds, heard: list[str]) -> None:
    """A job that is over: first that, of each, then the end of its run, when its row says so."""
    run_id = await _running(database)
    async with database.transaction() as connection:
        assert await end_run(connection, ids, run_id, DONE, now_ms=T0_MS + 60_000)
    names = ("first", "second", "third")
    assert heard == [
        *(f"{name}: job succeeded" for name in names),
        *(f"{name}: run ended, job succeeded" for name in names),
    ]


async def test_a_job_that_goes_on_has_not_stopped(database: Database, ids: CountingIds, heard: list[str]) -> None:
    """Only the end of its run is told."""
    run_id = await _running(database)
    async with database.transaction() as connection:
        assert await end_run(connection, ids, run_id, WAITS, now_ms=T0_MS + 60_000)
    assert heard == [f"{name}: run ended, job waiting" for name in ("first", "second", "third")]


async def test_the_first_with_an_answer_judges_an_exit(database: Database, heard: list[str]) -> None:
    """Those after it are not asked."""
    async with database.transaction() as connection:
        outcome = await capabilities.judged_otherwise(connection, _RUN, "job_a", ExitReport(exit_code=1), now_ms=T0_MS)
        beginning = [("job_a", RunPurpose.TRAIN), ("job_b", RunPurpose.PROFILE)]
        beside = await capabilities.jobs_beside(connection, beginning)
    assert outcome == WAITS
    assert heard == ["first: judge", "second: judge"]
    assert beside == {one: ["job_x", "job_y"] for one in beginning}


async def test_a_hook_that_fails_undoes_what_it_is_part_of(
    database: Database, ids: CountingIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the run's end is written, and the next who finds it out ends it."""
    run_id, ordinary = await _running(database), capabilities.CAPABILITIES
    monkeypatch.setattr(capabilities, "CAPABILITIES", (Failing(),))
    with pytest.raises(ValueError, match="this hook fails"):
        async with database.transaction() as connection:
            await end_run(connection, ids, run_id, DONE, now_ms=T0_MS + 60_000)
    assert await _stands(database) == ("running", "running", 1, 0)
    monkeypatch.setattr(capabilities, "CAPABILITIES", ordinary)
    async with database.transaction() as connection:
        assert await end_run(connection, ids, run_id, DONE, now_ms=T0_MS + 70_000)
    assert (await _stands(database))[:3] == ("succeeded", "ended", 2)


_RUN = RunRow(
    "run_a", "proj_a", RunState.RUNNING, None, Tier.MARKETPLACE, T0_MS, ("job_a",), "node_a", RunPurpose.TRAIN
)


async def _running(database: Database) -> str:
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        job_id = await seed_job(connection, project_id, state=JobState.RUNNING, epoch=1, saves_ms=T0_MS)
        node_id = await seed_node(connection, project_id, tier=Tier.MARKETPLACE, token_sha256=b"t")
        return await seed_run(connection, project_id, job_id, node_id, tier=Tier.MARKETPLACE)


async def _stands(database: Database) -> tuple[str, str, int, int]:
    """The states of the job and of the run, the job's epoch, and how many events it has."""
    async with database.transaction() as connection:
        job = (await connection.execute(select(jobs))).one()
        run = (await connection.execute(select(runs))).one()
        events = (await connection.execute(select(func.count()).select_from(job_events))).scalar_one()
    return job.state, run.state, job.epoch, events


def _below(*folders: str) -> Iterator[str]:
    for folder in folders:
        for path in sorted((_ROOT / folder).rglob("*.py")):
            yield path.relative_to(_ROOT).as_posix()


def _imports(name: str) -> list[str]:
    """Modules, and names in them."""
    found = []
    for node in ast.walk(ast.parse((_ROOT / name).read_text())):
        if isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return found
