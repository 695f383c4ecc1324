"""Submit jobs: one, or a sweep of many. Durable when it returns, exactly once under an idempotency key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from allpass.recipe.packing import SCRIPT_NAME
from allpass.wire.jobs import JobRequest, SweepRequest
from app.core.memory.host import MERGING
from app.core.model.job import PriorityClass
from app.core.model.money import Money
from app.db.access.audit import Author
from app.db.access.idempotency import RequestKey, find_answer
from app.db.access.projects import is_archived
from app.db.engine import Database
from app.db.jobs.submissions import NewJob, Submission, add_submissions, read_submission
from app.errors import InvariantBroken, Unavailable, UserError
from app.ports.clock import Clock, IdSource
from app.services.access.authenticate import project_archived
from app.services.access.keep_secret import check_known
from app.services.apps.find_app import AppFinder
from app.services.checkpoints.keep_checkpoint import keep_checkpoint
from app.services.jobs.admit_memory import MemoryAdmission
from app.services.jobs.check_command import check_command
from app.services.jobs.check_cost_cap import CheapestOffer, check_cost_cap
from app.services.jobs.compose_job import MAX_COST, Defaults, compose_jobs
from app.services.jobs.default_class import DefaultClasses, names_class
from app.services.kit.group_commit import GroupCommit
from app.services.kit.idempotency import check_same_request
from app.settings import Settings

CREATED = 201
_MAX_BATCH = 128
_MAX_WAITING = 4096
_WRITERS = 2
_LEAST_SHARE = 32  # fewer are written together: a second statement would cost more than it hides
_LARGE = 64  # a submission of more jobs is written alone, so that small ones need not wait for it
_TRIES = 5  # how often the newest version of an app may change under one submission


class Submitted(NamedTuple):
    """`owner_id`: the id of the job, or of the sweep. The jobs are as they were accepted, not as they are now.

    `replayed`: an earlier request under the same key submitted them.
    """

    owner_id: str
    app_name: str
    app_version: int
    jobs: tuple[NewJob, ...]
    replayed: bool = False


class JobSubmitter:
    """One per process. Submissions that arrive together are committed together."""

    def __init__(self, database: Database, settings: Settings, clock: Clock, ids: IdSource) -> None:
        self._database = database
        self._clock = clock
        self._ids = ids
        self._defaults = Defaults(int(settings.default_deadline_s * 1000), settings.checkpoint_interval_s)
        self.apps = AppFinder(database, clock)
        self._classes = DefaultClasses(database, clock)
        self._cheapest = CheapestOffer(database, settings, clock)
        self.memory = MemoryAdmission(database, settings, clock)
        self.commits: GroupCommit[Submission, bool] = GroupCommit(
            self._write, max_batch=_MAX_BATCH, max_waiting=_MAX_WAITING, writers=_WRITERS, least_share=_LEAST_SHARE
        )

    async def submit_job(
        self, project_id: str, request: JobRequest, key: RequestKey | None, author: Author | None = None
    ) -> Submitted:
        """`author` goes to the audit log with the jobs, and its key into them: budgets of keys count by it.

        Raises Forbidden (the project is archived),
        InvalidInput, NotFound (`app_id`, `app_version`), Conflict (the key was used for something else)
        and Unavailable (nothing is known then: try again with the same key)."""
        return await self._submit(project_id, request, [request.parameters], key, author, sweep=False)

    async def submit_sweep(
        self, project_id: str, request: SweepRequest, key: RequestKey | None, author: Author | None = None
    ) -> Submitted:
        """One job per parameter set, all of them or none. Raises as `submit_job` does."""
        return await self._submit(project_id, request, request.parameters, key, author, sweep=True)

    async def _submit(
        self,
        project_id: str,
        request: JobRequest | SweepRequest,
        parameter_sets: Sequence[Mapping[str, Any] | list[str]],
        key: RequestKey | None,
        author: Author | None,
        *,
        sweep: bool,
    ) -> Submitted:
        for _ in range(_TRIES):
            try:
                submission, app_name = await self._compose(
                    project_id, request, parameter_sets, key, author, sweep=sweep
                )
            except UserError:
                # A repeated request gets its first answer even when its deadline has passed meanwhile.
                first = await self.first_answer(project_id, key)
                if first is None:
                    raise
                return first
            if await self._commit(submission):
                return Submitted(submission.owner_id, app_name, submission.app_version, submission.jobs)
            first = await self.first_answer(project_id, key)
            if first is not None:
                return first
            async with self._database.statement() as connection:
                if await is_archived(connection, project_id):
                    raise project_archived()
            self.apps.forget(project_id, request.app_id)
            self._classes.forget(project_id)
        raise Unavailable(
            f"the newest version of app {request.app_id}, or the project's default class, keeps changing; name both "
            "(app_version, template.priority_class)"
        )

    async def _compose(
        self,
        project_id: str,
        request: JobRequest | SweepRequest,
        parameter_sets: Sequence[Mapping[str, Any] | list[str]],
        key: RequestKey | None,
        author: Author | None,
        *,
        sweep: bool,
    ) -> tuple[Submission, str]:
        if request.template.secrets:
            async with self._database.transaction() as connection:
                await check_known(connection, project_id, request.template.secrets)
        checkpoint_id = await self._keep_checkpoint(project_id, request.from_checkpoint)
        app = self.apps.remembered(project_id, request.app_id, request.app_version)
        if app is None:
            app = await self.apps.find(project_id, request.app_id, request.app_version)
        check_command(request.template, app, parameter_sets)
        predicted = await self.memory.predict(
            project_id,
            request.template,
            by_recipe=app.content.entrypoint == SCRIPT_NAME,
            merges=any(isinstance(one, Mapping) and one.get("export") in MERGING for one in parameter_sets),
        )
        named = names_class(request)
        default_class = PriorityClass.GUARANTEED if named else await self._classes.of(project_id)
        now_ms = self._clock.now_ms()
        sweep_id = self._ids.new("swp") if sweep else None
        job_ids = sorted(self._ids.new("job") for _ in parameter_sets)  # their order is that of the parameter sets
        jobs = compose_jobs(
            job_ids,
            project_id,
            app,
            request,
            parameter_sets,
            now_ms=now_ms,
            defaults=self._defaults,
            sweep_id=sweep_id,
            key_id=None if author is None else author.key_id,
            predicted=predicted,
            from_checkpoint_id=checkpoint_id,
            default_class=default_class,
        )
        if jobs[0].stated.max_cost_micros is not None:
            check_cost_cap(Money(jobs[0].stated.max_cost_micros), await self._cheapest.now(), MAX_COST)
        owner_id = sweep_id or jobs[0].own.id
        pinned = request.app_version is not None
        return Submission(owner_id, project_id, jobs, app.version, pinned, key, CREATED, author, named), app.name

    async def _keep_checkpoint(self, project_id: str, name: str | None) -> str | None:
        if name is None:
            return None
        async with self._database.transaction() as connection:
            return await keep_checkpoint(connection, project_id, name, now_ms=self._clock.now_ms())

    async def _commit(self, submission: Submission) -> bool:
        if len(submission.jobs) > _LARGE:
            return (await add_submissions(self._database, [submission]))[0]
        return await self.commits.submit(submission, lane=submission.project_id)

    async def _write(self, submissions: Sequence[Submission]) -> Sequence[bool]:
        return await add_submissions(self._database, submissions)

    async def first_answer(self, project_id: str, key: RequestKey | None) -> Submitted | None:
        """What was submitted under this key before. Raises Conflict when it was used for something else."""
        if key is None:
            return None
        async with self._database.transaction() as connection:
            stored = await find_answer(connection, project_id, key.key)
            if stored is None:
                return None
            check_same_request(key, stored)
            owner_id = str(stored.response["id"])
            first = await read_submission(connection, owner_id)
        if first is None:
            raise InvariantBroken(f"the jobs of {owner_id}, accepted under a key, are gone")
        return Submitted(owner_id, first.app_name, first.app_version, first.jobs, replayed=True)
