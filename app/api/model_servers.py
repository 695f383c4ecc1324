"""What jobs that answer for models ask, with the token of their project: what to answer, and where to tell it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from app.api.auth import bearer
from app.api.context import ApiContext, context_of
from app.db.doors.completions import Completion
from app.db.doors.servers import ModelServer, find_server
from app.errors import NotFound, Unauthenticated
from app.ports.objects import content_key
from app.services.doors.answer_requests import MOST_AT_ONCE, ToldAnswer, begin, check_instance, take, tell
from app.services.kit.long_poll import wait_for_change
from app.services.kit.serving_keys import ServingKeys

router = APIRouter(prefix="/v1/serving/{server_id}", include_in_schema=False)
ContextOf = Annotated[ApiContext, Depends(context_of)]
_Name = Annotated[str, StringConstraints(min_length=1, max_length=100)]
_LONGEST_WAIT_S = 25.0


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")
    instance: _Name


class TakeBody(_Asked):
    """`holding`: the requests that the process is answering; left out by one that answers one at a time."""

    wait_s: float = Field(ge=0, le=3600)
    holding: Annotated[list[_Name], Field(max_length=MOST_AT_ONCE)] = Field(default_factory=list)


class TellBody(_Asked):
    request_id: _Name
    text: Annotated[str, StringConstraints(max_length=200_000)] = ""
    position: int = Field(0, ge=0, le=10_000_000)
    prompt_tokens: int | None = Field(None, ge=0, le=2**31 - 1)
    completion_tokens: int | None = Field(None, ge=0, le=2**31 - 1)
    finish_reason: _Name | None = None
    error: Annotated[str, StringConstraints(max_length=2000)] | None = None
    is_request_wrong: bool = False


class TakenRequest(BaseModel):
    """`files`: of the adapter, by name, with where to fetch them."""

    id: str
    adapter: str | None
    files: dict[str, str]
    body: dict[str, object]


class Taken(BaseModel):
    request: TakenRequest | None


class Heard(BaseModel):
    goes_on: bool


async def server_of(server_id: str, request: Request, context: ContextOf) -> ModelServer:
    """The server that asks. Raises NotFound and Unauthenticated."""
    async with context.database.transaction() as connection:
        server = await find_server(connection, server_id)
    if server is None:
        raise NotFound("there is no such server")
    if not ServingKeys.of(context.settings).fits(server.project_id, bearer(request.scope["headers"])):
        raise Unauthenticated("this is not the token of the server's project")
    return server


ServerOf = Annotated[ModelServer, Depends(server_of)]


@router.post("/begin")
async def begin_serving(body: _Asked, server: ServerOf, context: ContextOf) -> Heard:
    async with context.database.transaction() as connection:
        await begin(connection, server, body.instance)
    return Heard(goes_on=True)


@router.post("/take")
async def take_request(body: TakeBody, server: ServerOf, context: ContextOf) -> Taken:
    """The next request; waited for as long as was asked for, and never longer than a poll may take."""

    async def read() -> TakenRequest | None:
        async with context.database.transaction() as connection:
            now = await find_server(connection, server.id)
            check_instance(now or server, body.instance)
            found = await take(connection, server, body.instance, body.holding)
        return None if found is None else _view(context, *found)

    found = await wait_for_change(
        context.listener,
        server.id,
        read,
        lambda one: one is not None,
        wait_s=min(body.wait_s, _LONGEST_WAIT_S),
        poll_s=context.settings.poll_s,
    )
    return Taken(request=found)


@router.post("/tell")
async def tell_answer(body: TellBody, server: ServerOf, context: ContextOf) -> Heard:
    told = body.model_dump(exclude={"instance", "request_id"})
    async with context.database.transaction() as connection:
        goes_on = await tell(connection, server, body.instance, body.request_id, ToldAnswer(**told))
    return Heard(goes_on=goes_on)


def _view(context: ApiContext, found: Completion, files: dict[str, str]) -> TakenRequest:
    expires_ms = context.clock.now_ms() + context.settings.signed_url_ttl_s * 1000
    urls = {
        name: context.objects.sign_get(content_key(found.project_id, sha256), expires_ms=expires_ms)
        for name, sha256 in files.items()
    }
    return TakenRequest(id=found.id, adapter=found.adapter_of, files=urls, body=dict(found.body))
