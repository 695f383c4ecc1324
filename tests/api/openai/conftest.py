"""OpenAI's own client, over the real application."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from openai import AsyncOpenAI, BaseModel
from pydantic import BaseModel as Model
from pydantic import ConfigDict, create_model

from tests.api.conftest import Tenant, client


def openai(api: FastAPI, key: str) -> AsyncOpenAI:
    """A client with two strings changed: the address and the key. It repeats nothing by itself."""
    return AsyncOpenAI(api_key=key, base_url="http://allpass/openai/v1", http_client=client(api), max_retries=0)


@pytest.fixture
async def door(api: FastAPI, tenant: Tenant) -> AsyncIterator[AsyncOpenAI]:
    async with openai(api, tenant.key) as made:
        yield made
    await api.state.doors.settled()


@pytest.fixture
async def other_door(api: FastAPI, stranger: Tenant) -> AsyncIterator[AsyncOpenAI]:
    """Another project's."""
    async with openai(api, stranger.key) as made:
        yield made
    await api.state.doors.settled()


def chats(count: int = 12) -> bytes:
    """Rows as OpenAI documents them."""
    return b"".join(
        json.dumps(
            {
                "messages": [
                    {"role": "system", "content": "You add numbers."},
                    {"role": "user", "content": f"{number}+1="},
                    {"role": "assistant", "content": str(number + 1)},
                ]
            }
        ).encode()
        + b"\n"
        for number in range(count)
    )


def preferences(count: int = 12) -> bytes:
    """Pairs of answers as OpenAI documents them."""
    return b"".join(
        json.dumps(
            {
                "input": {
                    "messages": [{"role": "user", "content": f"Is {number} even?"}],
                    "tools": [],
                    "parallel_tool_calls": True,
                },
                "preferred_output": [{"role": "assistant", "content": "Yes." if number % 2 == 0 else "No."}],
                "non_preferred_output": [{"role": "assistant", "content": "Who knows."}],
            }
        ).encode()
        + b"\n"
        for number in range(count)
    )


async def sent(door: AsyncOpenAI, content: bytes | None = None, name: str = "train.jsonl") -> str:
    """The id of a file to train on."""
    file = await door.files.create(file=(name, chats() if content is None else content), purpose="fine-tune")
    return file.id


def strictly(told: BaseModel) -> None:
    """An answer is exactly what the client's types say, which it does not check by itself: no field that they do not
    know, none missing, no value of another kind."""
    _strict(type(told)).model_validate(told.to_dict(mode="json"))


_known: dict[type[Model], type[Model]] = {}


def _strict(model: type[Model]) -> type[Model]:
    """The same model, that lets nothing else in."""
    if model not in _known:
        _known[model] = create_model(f"Strict{model.__name__}", __base__=model, __config__=None)
        _known[model].model_config = ConfigDict(extra="forbid", strict=False)
        _known[model].model_rebuild(force=True)
    return _known[model]


def fields_of(response: httpx.Response) -> dict[str, Any]:
    told: dict[str, Any] = response.json()["error"]
    return told
