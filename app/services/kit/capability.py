"""What a capability may hook into, so that runs and jobs are read without it (ADR 0078).

A capability is something that a job can do beyond the life of one job in one run of one process. It overrides the hooks
that it needs; the others do nothing. `app.services.runs.capabilities` has the one list, and calls it.

Unless it says otherwise, a hook is part of its caller's transaction, under the locks that the caller holds: of the
jobs, with those that `lock_order` locks together with them, and of all that these reach. It reads and writes rows of
these alone. It takes no lock on a job, run or node, calls no provider and no object store, waits for nothing, and opens
no transaction. What it raises undoes the transaction that it is part of, with all that the caller has written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from allpass.wire.agent import ExitReport, RunReport
from app.core.lifecycle import Outcome
from app.core.model.job import JobState
from app.core.model.run import RunPurpose
from app.db.connection import Connection
from app.db.engine import Database
from app.db.runs.desired_state import LiveRun, RunOrder
from app.db.runs.live_runs import RunRow
from app.ports.clock import IdSource
from app.settings import Settings

Beginning = tuple[str, RunPurpose]  # a job that is given a run, and what the run is for


class Capability:
    # Of a run that begins or ends

    async def begin_runs(
        self, connection: Connection, beginning: Collection[Beginning]
    ) -> Mapping[Beginning, Collection[str]]:
        """Of each the further jobs that begin with it, each with a run of its own in the same process. They are locked
        with it. Asked once for all runs that begin together, before anything of them is written."""
        return {}

    async def judge_exit(
        self, connection: Connection, run: RunRow, job_id: str, exit_: ExitReport, *, now_ms: int
    ) -> Outcome | None:
        """What the end of a process means, where that is not for the run alone to say. The first capability with an
        answer decides, and no later one is asked."""
        return None

    async def end_run(self, connection: Connection, run: RunRow, job_id: str, outcome: Outcome, *, now_ms: int) -> None:
        """The run is over, and its job has gone on as `outcome` says. Not called where the job goes on in the other run
        of a move."""

    async def stop_job(self, connection: Connection, job_id: str, state: JobState, *, now_ms: int) -> None:
        """The job is in `state` now, which is final or `paused`: by the end of a run (then before `end_run`), or
        without one."""

    # Of what its agent says. These two open the transactions that they need: nothing is locked.

    def says_more(self, report: RunReport) -> bool:
        """Whether there is something for `take_progress` in a report that says nothing else that is new. No I/O."""
        return False

    async def take_report(
        self, database: Database, ids: IdSource, report: RunReport, run: LiveRun, *, now_ms: int
    ) -> None:
        """Any report of a live run, before anything else is made of it. Its epoch is the fence. `run`: as it was when
        the report came."""

    async def take_progress(self, database: Database, report: RunReport) -> None:
        """A report of progress alone, after the rest of it was taken in. Its epoch is the fence."""

    # Of what its agent is told: these read only, and under no lock.

    async def order(
        self, connection: Connection, settings: Settings, order: RunOrder, *, now_ms: int
    ) -> Mapping[str, Any]:
        """Further fields of the run's `RunSpec`."""
        return {}

    async def gave(self, connection: Connection, job_id: str, checkpoint_id: str) -> bool:
        """Whether it gave the job this checkpoint of another one, to begin with at step 0."""
        return False
