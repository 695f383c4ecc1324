"""Text of fine-tuned models, by OpenAI's client; the server at the other end is played, over the real routes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI
from openai import AsyncOpenAI
from sqlalchemy import func, select, update

from app.api.context import ApiContext
from app.core.model.job import JobState
from app.db import tables as t
from app.ports.objects import content_key
from app.services.access.create_key import create_key
from app.services.access.keep_secret import open_secrets
from app.services.doors.begin_server import TOKEN, memory_gb
from app.services.kit.seal import Sealer
from app.services.kit.serving_keys import ServingKeys
from tests.api.builders import add_artifact, add_ended_run
from tests.api.conftest import SCOPES, Tenant, client
from tests.api.openai.conftest import openai as door_of
from tests.api.openai.conftest import strictly
from tests.api.openai.test_tunings import becomes, created, row_of
from tests.seeds import T0_MS

BASE = "Qwen/Qwen2.5-0.5B-Instruct"
HELLO: Any = [{"role": "user", "content": "hello"}]
Play = Callable[["Machine", dict[str, Any]], Awaitable[None]]


@dataclass
class Machine:
    """Plays the process that serves: takes requests and tells what `play` says."""

    http: httpx.AsyncClient
    server_id: str
    token: str
    instance: str = "first"
    seen: list[dict[str, Any]] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)

    async def post(self, name: str, **body: Any) -> httpx.Response:
        return await self.http.post(
            f"/v1/serving/{self.server_id}/{name}",
            json={"instance": self.instance, **body},
            headers={"Authorization": f"Bearer {self.token}"},
        )

    async def tell(self, request: dict[str, Any], **told: Any) -> bool:
        answer = await self.post("tell", request_id=request["id"], **told)
        assert answer.status_code == 200, answer.text
        return bool(answer.json()["goes_on"])

    async def take(self, *holding: str) -> dict[str, Any] | None:
        answer = await self.post("take", wait_s=0, holding=list(holding))
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] | None = answer.json()["request"]
        return found

    async def run(self, play: Play) -> None:
        assert (await self.post("begin")).status_code == 200
        while True:
            request = await self.take()
            if request is None:
                await asyncio.sleep(0.01)
                continue
            self.seen.append(request)
            await play(self, request)


async def echo(machine: Machine, request: dict[str, Any]) -> None:
    """Says the prompt again, in two pieces."""
    body = request["body"]
    text = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
    half = len(text) // 2
    await machine.tell(request, text=text[:half], position=0, prompt_tokens=7, completion_tokens=1)
    await machine.tell(
        request, text=text[half:], position=1, prompt_tokens=7, completion_tokens=2, finish_reason="stop"
    )


@pytest.fixture
async def machine(api: FastAPI, context: ApiContext, listening: None) -> AsyncIterator[Machine]:
    async with client(api) as http:
        yield Machine(http, "", "")


async def ready(machine: Machine, context: ApiContext) -> None:
    """The server that was asked for is known to the machine, as its job would know it."""
    while True:
        async with context.database.transaction() as connection:
            found = (
                await connection.execute(
                    select(t.model_servers).where(
                        t.model_servers.c.ended_ms.is_(None), t.model_servers.c.job_id.is_not(None)
                    )
                )
            ).one_or_none()
            if found is not None and found.id not in machine.ended:
                opened = await open_secrets(connection, Sealer.of(context.settings), found.project_id, [TOKEN])
                machine.server_id, machine.token = found.id, opened[TOKEN]
                return
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def serving(machine: Machine, context: ApiContext, play: Play = echo) -> AsyncIterator[None]:
    async def whole() -> None:
        await ready(machine, context)
        await machine.run(play)

    task = asyncio.create_task(whole())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def count(context: ApiContext, table: Any) -> int:
    async with context.database.transaction() as connection:
        return int((await connection.execute(select(func.count()).select_from(table))).scalar_one())


async def second_key(context: ApiContext, tenant: Tenant) -> str:
    """Another key of the same project."""
    async with context.database.transaction() as connection:
        return await create_key(connection, tenant.project_id, "second", SCOPES, clock=context.clock, ids=context.ids)


async def test_a_model_answers_whole(door: AsyncOpenAI, machine: Machine, context: ApiContext) -> None:
    async with serving(machine, context):
        told = await door.chat.completions.create(model=BASE, messages=HELLO, max_tokens=5, temperature=0)
        strictly(told)
        assert told.choices[0].message.content == "hello"
        assert told.choices[0].finish_reason == "stop"
        assert told.usage is not None
        assert (told.usage.prompt_tokens, told.usage.completion_tokens, told.usage.total_tokens) == (7, 2, 9)
        text = await door.completions.create(model=BASE, prompt="once", stop=["\n"], seed=3)
        strictly(text)
        assert text.choices[0].text == "once"
    chat, plain = machine.seen
    assert chat["body"] == {"messages": HELLO, "max_tokens": 5, "temperature": 0.0}
    assert plain["body"] == {"prompt": "once", "max_tokens": 16, "stop": ["\n"], "seed": 3}
    assert (chat["adapter"], chat["files"]) == (None, {})


async def test_a_model_answers_as_it_writes(door: AsyncOpenAI, machine: Machine, context: ApiContext) -> None:
    async with serving(machine, context):
        stream = await door.chat.completions.create(
            model=BASE, messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        pieces = [piece async for piece in stream]
        for piece in pieces:
            strictly(piece)
        assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices) == "hello"
        assert [piece.choices[0].finish_reason for piece in pieces if piece.choices][-1] == "stop"
        assert pieces[-1].usage is not None
        assert pieces[-1].usage.total_tokens == 9
        texts = [piece async for piece in await door.completions.create(model=BASE, prompt="once", stream=True)]
        strictly(texts[-1])  # of the others the reason is null, as OpenAI sends it, and its types do not say so
        assert "".join(text.choices[0].text for text in texts) == "once"
        async with door.chat.completions.stream(model=BASE, messages=HELLO) as events:
            final = await events.get_final_completion()
        assert final.choices[0].message.content == "hello"


async def test_one_job_serves_a_model_and_is_begun_again_when_it_is_over(
    door: AsyncOpenAI, machine: Machine, context: ApiContext, tenant: Tenant
) -> None:
    async def ask(text: str) -> str:
        told = await door.chat.completions.create(model=BASE, messages=[{"role": "user", "content": text}])
        return told.choices[0].message.content or ""

    async with serving(machine, context):
        assert await asyncio.gather(*(ask(f"text {n}") for n in range(8))) == [f"text {n}" for n in range(8)]
    async with context.database.transaction() as connection:
        (job,) = (await connection.execute(select(t.jobs))).all()
        assert (job.kind, job.start, job.template["gpu"]["memory_gb"]) == ("interactive", "now", memory_gb(BASE))
        assert job.template["secrets"] == [TOKEN]
        assert "token" not in str(job.parameters).lower()
        await connection.execute(update(t.jobs).values(state=JobState.SUCCEEDED, ended_ms=T0_MS))
    machine.ended.add(machine.server_id)
    async with serving(machine, context):
        assert await ask("again") == "again"
    assert await count(context, t.jobs) == 2


async def test_what_was_asked_and_answered_is_not_kept(
    door: AsyncOpenAI, machine: Machine, context: ApiContext
) -> None:
    async with serving(machine, context):
        await door.chat.completions.create(model=BASE, messages=HELLO)
        async for _ in await door.chat.completions.create(model=BASE, messages=HELLO, stream=True):
            pass
    assert await count(context, t.completions) == 0
    assert await count(context, t.completion_pieces) == 0


async def test_an_adapter_comes_with_the_request_that_needs_it(
    api: FastAPI, door: AsyncOpenAI, machine: Machine, context: ApiContext, tenant: Tenant
) -> None:
    tuned = await created(api, door, model=BASE)
    job_id = await becomes(context, tuned.id, JobState.SUCCEEDED, ended_ms=T0_MS)
    name = (await door.fine_tuning.jobs.retrieve(tuned.id)).fine_tuned_model
    assert name is not None
    async with serving(machine, context):
        with pytest.raises(openai.BadRequestError) as gone:
            await door.chat.completions.create(model=name, messages=HELLO)
        assert "its adapter is not there" in gone.value.message
        run_id = await add_ended_run(context, tenant, job_id)
        for path in ("adapter_config.json", "adapter_model.safetensors", "tokenizer.json"):
            digest = hashlib.sha256(path.encode()).hexdigest()
            await context.objects.put(content_key(tenant.project_id, digest), path.encode(), sha256=digest)
            await add_artifact(context, job_id, run_id, path, digest)
        told = await door.chat.completions.create(model=name, messages=HELLO)
    assert told.model == name
    (request,) = machine.seen
    assert request["adapter"] == tuned.id
    assert sorted(request["files"]) == ["adapter_config.json", "adapter_model.safetensors"]
    assert (await row_of(context, tuned.id)).id == job_id


async def test_what_is_wrong_with_a_request_is_told_to_who_asked(
    door: AsyncOpenAI, machine: Machine, context: ApiContext
) -> None:
    async def refuse(machine: Machine, request: dict[str, Any]) -> None:
        if request["body"]["messages"][0]["content"] == "long":
            await machine.tell(request, error="the prompt has 9 tokens, and the model takes 8", is_request_wrong=True)
        else:
            await machine.tell(request, error="CUDA error")

    async with serving(machine, context, refuse):
        with pytest.raises(openai.BadRequestError) as wrong:
            await door.chat.completions.create(model=BASE, messages=[{"role": "user", "content": "long"}])
        assert "takes 8" in wrong.value.message
        with pytest.raises(openai.InternalServerError):
            await door.chat.completions.create(model=BASE, messages=HELLO)
        with pytest.raises(openai.APIError, match="CUDA error"):
            async for _ in await door.chat.completions.create(model=BASE, messages=HELLO, stream=True):
                pass


async def test_a_job_that_fails_tells_who_waits(door: AsyncOpenAI, context: ApiContext, listening: None) -> None:
    asking = asyncio.create_task(door.chat.completions.create(model=BASE, messages=HELLO))
    while not await count(context, t.jobs):
        await asyncio.sleep(0.01)
    async with context.database.transaction() as connection:
        await connection.execute(update(t.jobs).values(state=JobState.FAILED, end_message="no such model at the hub"))
    with pytest.raises(openai.InternalServerError, match="no such model at the hub"):
        await asking
    assert await count(context, t.completions) == 0


async def test_an_answer_that_does_not_come_is_given_up(
    door: AsyncOpenAI, context: ApiContext, api: FastAPI, listening: None
) -> None:
    api.state.doors.models._wait_s = 0.2
    with pytest.raises(openai.InternalServerError, match=r"no answer within 0.2 s"):
        await door.chat.completions.create(model=BASE, messages=HELLO)
    assert await count(context, t.completions) == 0


async def test_of_a_process_that_died_nothing_is_lost_or_told_twice(
    door: AsyncOpenAI, machine: Machine, context: ApiContext
) -> None:
    """What it had said nothing of is answered by the next one; of what it had begun to say the rest is lost, and that
    is told. It may not come back."""
    untouched = asyncio.create_task(door.chat.completions.create(model=BASE, messages=HELLO))
    await ready(machine, context)
    await machine.post("begin")
    while (first := await machine.take()) is None:
        await asyncio.sleep(0.01)
    assert (await machine.take()) == first, "the answer to a poll may be lost: it is given again"
    old = machine.instance
    machine.instance = "second"
    await machine.post("begin")
    again = await machine.take()
    assert again == first
    begun = again
    assert begun is not None
    await machine.tell(begun, text="hel", position=0, prompt_tokens=1, completion_tokens=1)
    await machine.tell(begun, text="hel", position=0, prompt_tokens=1, completion_tokens=1)
    await machine.tell(begun, text="lo", position=1, prompt_tokens=1, completion_tokens=2, finish_reason="stop")
    assert (await untouched).choices[0].message.content == "hello"

    broken = asyncio.create_task(door.chat.completions.create(model=BASE, messages=HELLO))
    while (request := await machine.take()) is None:
        await asyncio.sleep(0.01)
    await machine.tell(request, text="hel", position=0, prompt_tokens=1, completion_tokens=1)
    machine.instance = "third"
    await machine.post("begin")
    with pytest.raises(openai.InternalServerError, match="was lost"):
        await broken
    machine.instance = old
    assert (await machine.post("take", wait_s=0)).status_code == 409


async def test_many_are_answered_at_once_and_a_key_that_asks_much_waits_for_itself(
    api: FastAPI, door: AsyncOpenAI, machine: Machine, context: ApiContext, tenant: Tenant
) -> None:
    """A poll gives what is not held yet; of two keys, the one of which fewer requests are being answered."""
    quiet = await second_key(context, tenant)
    asked = [asyncio.create_task(door.completions.create(model=BASE, prompt=f"loud {n}")) for n in range(4)]
    await ready(machine, context)
    while await count(context, t.completions) < 4:
        await asyncio.sleep(0.01)
    async with door_of(api, quiet) as other:
        asked += [asyncio.create_task(other.completions.create(model=BASE, prompt=f"quiet {n}")) for n in range(2)]
        while await count(context, t.completions) < 6:
            await asyncio.sleep(0.01)
        await machine.post("begin")
        held: dict[str, dict[str, Any]] = {}
        for _ in range(6):
            lost = await machine.take(*held)
            request = await machine.take(*held)
            assert request is not None
            assert request == lost, "what did not arrive is given again"
            held[request["id"]] = request
        assert await machine.take(*held) is None
        order = [one["body"]["prompt"].split()[0] for one in held.values()]
        assert order == ["loud", "quiet", "loud", "quiet", "loud", "loud"]
        for request in reversed(held.values()):
            await echo(machine, request)
        texts = [(await one).choices[0].text for one in asked]
    assert texts == [f"loud {n}" for n in range(4)] + [f"quiet {n}" for n in range(2)]


async def test_nobody_else_answers(
    door: AsyncOpenAI, machine: Machine, context: ApiContext, tenant: Tenant, stranger: Tenant
) -> None:
    asking = asyncio.create_task(door.chat.completions.create(model=BASE, messages=HELLO))
    await ready(machine, context)
    good = machine.token
    for token in ("", "x", tenant.key, ServingKeys.of(context.settings).token(stranger.project_id)):
        machine.token = token
        for name, more in (("begin", {}), ("take", {"wait_s": 0}), ("tell", {"request_id": "x"})):
            assert (await machine.post(name, **more)).status_code == 401
    machine.token = good
    answer = await tenant.http.get("/v1/jobs", headers={"Authorization": f"Bearer {good}"})
    assert answer.status_code == 401, "and the token opens nothing else"
    async with serving(machine, context):
        await asking


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"store": True}, "store"),
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"extra_body": {"top_k": 3}}, "top_k"),
    ],
)
async def test_what_is_not_offered_is_refused_by_name(
    door: AsyncOpenAI, context: ApiContext, options: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await door.chat.completions.create(**{"model": BASE, "messages": HELLO, **options})
    assert refused.value.param == param
    assert await count(context, t.jobs) == 0, "nothing was rented for it"


async def test_what_changes_nothing_is_taken(door: AsyncOpenAI, machine: Machine, context: ApiContext) -> None:
    async with serving(machine, context):
        told = await door.chat.completions.create(
            model=BASE,
            messages=[
                {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "nice"}]}
            ],
            n=1,
            logprobs=False,
            frequency_penalty=0,
            presence_penalty=0.0,
            response_format={"type": "text"},
            user="ada",
            metadata={"a": "b"},
            store=False,
        )
    assert told.choices[0].message.content == "Be nice"
    assert machine.seen[0]["body"]["messages"] == [{"role": "system", "content": "Be nice"}]


async def test_models_that_are_not_there_are_refused(door: AsyncOpenAI, other_door: AsyncOpenAI, api: FastAPI) -> None:
    tuned = await created(api, other_door, model=BASE)
    for name in ("gpt-9", "ft:x", f"ft:{BASE}:x::{tuned.id[-8:]}"):
        with pytest.raises(openai.NotFoundError) as refused:
            await door.chat.completions.create(model=name, messages=HELLO)
        assert refused.value.code == "model_not_found"


async def test_stored_answers_are_refused(door: AsyncOpenAI) -> None:
    of = door.chat.completions
    for ask in (of.list(), of.retrieve("x"), of.delete("x"), of.update("x", metadata=None), of.messages.list("x")):
        with pytest.raises(openai.BadRequestError) as refused:
            await ask
        assert refused.value.code == "unsupported"


async def test_a_server_that_ends_in_the_moment_of_a_request_is_followed_by_another_one(
    door: AsyncOpenAI, machine: Machine, context: ApiContext
) -> None:
    asking = asyncio.create_task(door.chat.completions.create(model=BASE, messages=HELLO))
    await ready(machine, context)
    async with context.database.transaction() as connection:
        await connection.execute(update(t.jobs).values(state=JobState.SUCCEEDED, ended_ms=T0_MS))
    machine.ended.add(machine.server_id)
    async with serving(machine, context):
        assert (await asking).choices[0].message.content == "hello"
    assert await count(context, t.jobs) == 2
