"""Requests for text: each is answered by a job that has the base model loaded, begun when nobody has it.

A server is a job like any other: it is billed to the project, moves, and ends by itself when nobody has asked for a
while. It asks for requests; nobody ever calls a machine.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

from app.core.model.job import TERMINAL_JOB_STATES, JobState
from app.db.access.audit import Author
from app.db.connection import Connection
from app.db.doors.completions import (
    DONE,
    FAILED,
    Completion,
    add_completion,
    delete_completion,
    find_completion,
    move_completion,
    pieces_after,
)
from app.db.doors.servers import ModelServer, end_server, find_server, open_server
from app.db.engine import Database
from app.db.jobs.reads import find_job
from app.db.listen import Listener
from app.db.notify import JOB
from app.errors import InvalidInput, Unavailable
from app.ports.clock import Clock, IdSource
from app.services.doors.begin_server import ServerStarter
from app.services.doors.models import Meant
from app.services.doors.store_file import door_id

_LOOK_AT_JOB_S = 2.0


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """More of an answer. `end`: with the last part, how it ended. A part without text is a sign of life."""

    text: str
    end: Completion | None = None


class ModelDesk:
    """`wait_s`: how long an answer is waited for, a machine's start included."""

    def __init__(
        self, database: Database, listener: Listener, clock: Clock, ids: IdSource, starter: ServerStarter, wait_s: float
    ) -> None:
        self._database = database
        self._listener = listener
        self._clock = clock
        self._ids = ids
        self._starter = starter
        self._wait_s = wait_s

    async def ask(self, author: Author, meant: Meant, body: Mapping[str, Any], *, kind: str) -> str:
        """The id of a request that a server has, or will have. Raises what submitting a job raises."""
        completion_id = door_id(kind, self._ids)
        adapter_of = None if meant.tuning is None else meant.tuning.id
        async with self._database.transaction() as connection:
            server = await self._open(connection, author, meant.base)
            await add_completion(
                connection,
                completion_id,
                author.project_id,
                server.id,
                adapter_of,
                body,
                key_id=author.key_id,
                now_ms=self._now_ms(),
            )
        if server.job_id is None:
            try:
                await self._starter.start(server)
            except BaseException:
                await self.leave(completion_id)
                raise
        return completion_id

    async def follow(self, completion_id: str) -> AsyncGenerator[AnswerPart, None]:
        """The answer, part by part, to its end. Raises InvalidInput for a request that the model cannot answer, and
        Unavailable where no answer comes."""
        loop = asyncio.get_running_loop()
        until, looked, told = loop.time() + self._wait_s, loop.time(), 0
        with self._listener.watch(JOB, completion_id) as changed:
            while True:
                changed.clear()
                async with self._database.transaction() as connection:
                    found = await find_completion(connection, completion_id)
                    pieces = await pieces_after(connection, completion_id, told)
                if found is None:
                    raise Unavailable("the request was given up: it took too long")
                told += len(pieces)
                _check(found)
                yield AnswerPart("".join(pieces), found if found.state == DONE else None)
                if found.state == DONE:
                    return
                if pieces:
                    until = loop.time() + self._wait_s
                if loop.time() > until:
                    raise Unavailable(f"no answer within {self._wait_s:g} s: the model may still be on its way; retry")
                if loop.time() - looked > _LOOK_AT_JOB_S:
                    looked = loop.time()
                    await self._check_job(found)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_AT_JOB_S):
                        await changed.wait()

    async def leave(self, completion_id: str) -> None:
        """Nobody waits for it any more, or it was delivered: what was asked and answered is deleted."""
        async with self._database.transaction() as connection:
            await delete_completion(connection, completion_id)

    async def _open(self, connection: Connection, author: Author, base: str) -> ModelServer:
        """One whose job has not ended."""
        told = {"key_id": author.key_id, "request_id": author.request_id, "route": author.route}
        for _ in range(2):
            new_id = door_id("srv-", self._ids)
            server = await open_server(connection, new_id, author.project_id, base, told, self._now_ms())
            if server.job_id is None:
                return server
            job = await find_job(connection, author.project_id, server.job_id)
            if job is not None and job.state not in TERMINAL_JOB_STATES:
                return server
            await end_server(connection, server.id, now_ms=self._now_ms())
        return server

    async def _check_job(self, completion: Completion) -> None:
        """Raises Unavailable where the job that should answer has failed, or is paused. One that has ended because
        nobody had asked is followed by another one: the request came in that moment."""
        async with self._database.transaction() as connection:
            server = await find_server(connection, completion.server_id)
            if server is None or server.job_id is None:
                return
            job = await find_job(connection, completion.project_id, server.job_id)
            if job is None or job.state not in (*TERMINAL_JOB_STATES, JobState.PAUSED):
                return
            if job.state is not JobState.PAUSED:
                await end_server(connection, server.id, now_ms=self._now_ms())
            if job.state is JobState.SUCCEEDED:
                told = {"key_id": "", "request_id": "", "route": "", **server.author}
                author = Author(project_id=server.project_id, **told)
                server = await self._open(connection, author, server.base_model)
                if not await move_completion(connection, completion.id, server.id):
                    return
        if job.state is JobState.SUCCEEDED:
            if server.job_id is None:
                await self._starter.start(server)
            return
        why = job.end_message or job.pause_reason or job.state.value
        raise Unavailable(f"{job.id}, which serves {server.base_model}, is {job.state.value}: {why}")

    def _now_ms(self) -> int:
        return self._clock.now_ms()


def _check(found: Completion) -> None:
    if found.state != FAILED:
        return
    told = found.error or {}
    message = str(told.get("message", "the model has failed"))
    if told.get("is_request_wrong"):
        raise InvalidInput(message, param=message.partition(":")[0] if ":" in message else None)
    raise Unavailable(message)
