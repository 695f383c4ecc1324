"""POSTs that are carried out once: under an `Idempotency-Key`, the same request again gets its first answer.

`POST /v1/jobs` and `/v1/sweeps` do the same in their own statement (`app.services.jobs.submit_jobs`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import Request, Response
from pydantic import BaseModel

from app.api.audit import NOTED, Write, audited
from app.api.auth import CALLER
from app.api.context import ApiContext
from app.api.requests import request_key
from app.db.access.idempotency import RequestKey
from app.errors import InvariantBroken
from app.services.access.authenticate import Caller
from app.services.kit.idempotency import AnswerBook, FirstAnswer
from app.services.kit.seal import Sealer

REPLAYED = "Idempotent-Replayed"
Act = Callable[[Write], Awaitable[BaseModel]]


async def answer_once(
    context: ApiContext,
    request: Request,
    act: Act,
    *,
    object_id: str | None = None,
    status: int = 200,
    until_ms: int | None = None,
) -> Response:
    """Run `act`, note it in the audit log and keep its answer under the request's key, all in one transaction.

    When the request was answered before, nothing is done and that answer is given. `act` may change the status and
    the object of its `Write`. From `until_ms` on the answer is worth nothing, and the same request is carried out anew.
    """
    key = _key(request)
    async with audited(context, request, object_id, status) as write:
        if key is not None:
            first = await _book(context, request).take(write.connection, key, now_ms=context.clock.now_ms())
            if first is not None:
                write.repeat = True
                return _replay(first)
        body = (await act(write)).model_dump_json(by_alias=True).encode()
        if key is not None:
            answer = FirstAnswer(write.status, body)
            await _book(context, request).keep(write.connection, key, answer, until_ms=until_ms)
    return Response(body, write.status, media_type="application/json")


async def first_answer(context: ApiContext, request: Request) -> Response | None:
    """The answer that this request was given before: for routes that ask others before they begin to write.

    Raises Conflict when its key was used for something else.
    """
    key = _key(request)
    if key is None:
        return None
    async with context.database.statement() as connection:
        first = await _book(context, request).find(connection, key, now_ms=context.clock.now_ms())
    if first is None:
        return None
    request.scope[NOTED] = True
    return _replay(first)


def _key(request: Request) -> RequestKey | None:
    """The path is part of it, not its template: the same key for another job is another request."""
    return request_key(request.scope, f"POST {request.scope['path']}")


def _book(context: ApiContext, request: Request) -> AnswerBook:
    caller: Caller | None = request.scope.get(CALLER)
    if caller is None:
        raise InvariantBroken("only requests of a key that was let in are answered once")
    return AnswerBook(Sealer.of(context.settings), caller.project_id)


def _replay(first: FirstAnswer) -> Response:
    return Response(first.body, first.status, {REPLAYED: "true"}, media_type="application/json")
