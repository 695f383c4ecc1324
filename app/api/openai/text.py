"""`/openai/v1/chat/completions` and `/openai/v1/completions`: whole, or as it is written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from app.api.audit import NOTED, author_of
from app.api.auth import Submitter
from app.api.context import ApiContext, context_of
from app.api.openai.doors import Doors, doors_of
from app.api.openai.errors import door_error
from app.api.openai.text_request import ChatRequest, CompletionRequest, Kind
from app.api.sse import ALIVE, EventStream
from app.db.doors.completions import Completion
from app.errors import AllpassError, InvalidInput, InvariantBroken
from app.services.doors.models import resolve

router = APIRouter(prefix="/openai/v1", include_in_schema=False)
ContextOf = Annotated[ApiContext, Depends(context_of)]
DoorsOf = Annotated[Doors, Depends(doors_of)]
_LONGEST_S = 3600.0
_ALIVE_EVERY = 7  # signs of life that the desk gives, for one that is sent


class AnswerShape:
    """How answers of one kind are written."""

    def __init__(self, kind: Kind, completion_id: str, model: str, created: int) -> None:
        self._is_chat = kind == "chat"
        self._head = {"id": completion_id, "created": created, "model": model}

    def whole(self, text: str, end: Completion) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": end.finish_reason}
        if self._is_chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        name = "chat.completion" if self._is_chat else "text_completion"
        return {**self._head, "object": name, "choices": [choice], "usage": usage(end)}

    def piece(self, text: str, reason: str | None, *, is_first: bool) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason}
        if self._is_chat:
            role = {"role": "assistant"} if is_first else {}
            choice["delta"] = {**role, **({"content": text} if text or is_first else {})}
        else:
            choice["text"] = text
        return {**self._head, "object": self._piece_name, "choices": [choice]}

    def usage_piece(self, end: Completion) -> dict[str, Any]:
        return {**self._head, "object": self._piece_name, "choices": [], "usage": usage(end)}

    @property
    def _piece_name(self) -> str:
        return "chat.completion.chunk" if self._is_chat else "text_completion"


@router.post("/chat/completions")
async def chat(body: ChatRequest, request: Request, caller: Submitter, context: ContextOf, doors: DoorsOf) -> Response:
    return await _answer("chat", body, request, caller.project_id, context, doors)


@router.post("/completions")
async def complete(
    body: CompletionRequest, request: Request, caller: Submitter, context: ContextOf, doors: DoorsOf
) -> Response:
    return await _answer("completion", body, request, caller.project_id, context, doors)


@router.api_route("/chat/completions", methods=["GET"])
@router.api_route("/chat/completions/{rest:path}", methods=["GET", "POST", "DELETE"])
async def stored(caller: Submitter, rest: str = "") -> None:
    """Known there, refused here."""
    raise InvalidInput(
        "store: answers are not kept by this server: each is deleted when it was delivered", code="unsupported"
    )


async def _answer(
    kind: Kind,
    body: ChatRequest | CompletionRequest,
    request: Request,
    project_id: str,
    context: ApiContext,
    doors: Doors,
) -> Response:
    asked = body.body()
    meant = await resolve(context.database, project_id, body.model)
    author = author_of(request.scope)
    if author is None:
        raise InvariantBroken("a caller that was let in is the author")
    request.scope[NOTED] = True  # the job that answers is in the audit log; what was asked is nobody's business
    prefix = "chatcmpl-" if kind == "chat" else "cmpl-"
    completion_id = await doors.models.ask(author, meant, asked, kind=prefix)
    shape = AnswerShape(kind, completion_id, body.model, context.clock.now_ms() // 1000)
    if body.stream:
        gone = asyncio.Event()
        pieces = _pieces(doors, completion_id, shape, gone, tells_usage=body.tells_usage)
        return EventStream(pieces, gone.set, _LONGEST_S, begins=ALIVE)  # its client reads no `retry`
    return await _whole(request, doors, completion_id, shape)


async def _whole(request: Request, doors: Doors, completion_id: str, shape: AnswerShape) -> Response:
    """The answer when it is there; nothing is written any more for whom has gone."""
    text, end = "", None
    try:
        async with aclosing(doors.models.follow(completion_id)) as parts:
            async for part in parts:
                text, end = text + part.text, part.end
                if end is None and await request.is_disconnected():
                    return Response(status_code=499)
    finally:
        await doors.models.leave(completion_id)
    if end is None:
        raise InvariantBroken("an answer ends with its last part")
    return Response(json.dumps(shape.whole(text, end), ensure_ascii=False), media_type="application/json")


async def _pieces(
    doors: Doors, completion_id: str, shape: AnswerShape, gone: asyncio.Event, *, tells_usage: bool
) -> AsyncGenerator[bytes, None]:
    """Server-sent events as OpenAI's client reads them. An error that comes late is one of them."""
    is_first, still = True, 0
    try:
        async with aclosing(doors.models.follow(completion_id)) as parts:
            async for part in parts:
                if gone.is_set():
                    return
                if part.text or part.end is not None:
                    reason = None if part.end is None else part.end.finish_reason
                    yield _event(shape.piece(part.text, reason, is_first=is_first))
                    is_first = False
                else:
                    still += 1
                    if still % _ALIVE_EVERY == 0:
                        yield b""
                if part.end is not None and tells_usage:
                    yield _event(shape.usage_piece(part.end))
        yield b"data: [DONE]\n\n"
    except AllpassError as error:
        yield b"data: %b\n\n" % bytes(door_error(error, completion_id).body)
    finally:
        await doors.models.leave(completion_id)


def usage(end: Completion) -> dict[str, int]:
    prompt, completion = end.prompt_tokens or 0, end.completion_tokens or 0
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _event(told: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % json.dumps(told, ensure_ascii=False).encode()
