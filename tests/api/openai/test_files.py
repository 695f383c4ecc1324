"""Files of OpenAI's client: kept as they were sent, looked at before anything is trained on them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import openai
import pytest
from fastapi import FastAPI
from openai import AsyncOpenAI

from app.api.context import ApiContext
from tests.api.conftest import Tenant
from tests.api.openai.conftest import chats, preferences, sent, strictly
from tests.conftest import ManualClock


async def test_a_file_is_kept_as_it_was_sent(door: AsyncOpenAI) -> None:
    file = await door.files.create(file=("train.jsonl", chats()), purpose="fine-tune")
    strictly(file)
    assert (file.filename, file.purpose, file.bytes) == ("train.jsonl", "fine-tune", len(chats()))
    assert (file.status, file.status_details) == ("processed", None)
    strictly(again := await door.files.retrieve(file.id))
    assert again == file
    assert (await door.files.content(file.id)).content == chats()
    assert [one.id async for one in door.files.list()] == [file.id]


async def test_a_deleted_file_is_gone(door: AsyncOpenAI) -> None:
    file_id = await sent(door)
    gone = await door.files.delete(file_id)
    strictly(gone)
    assert gone.deleted
    for ask in (door.files.retrieve, door.files.content, door.files.delete):
        with pytest.raises(openai.NotFoundError) as refused:
            await ask(file_id)
        assert refused.value.param == "id"
    assert [one.id async for one in door.files.list()] == []


async def test_more_files_than_a_page_are_listed_each_once_in_either_order(door: AsyncOpenAI) -> None:
    made = [await sent(door, b"x", f"{n}.txt") if n % 2 else await _plain(door, f"{n}.txt") for n in range(7)]
    assert [one.id async for one in door.files.list(limit=2)] == list(reversed(made))
    assert [one.id async for one in door.files.list(limit=3, order="asc")] == made
    assert [one.id async for one in door.files.list(purpose="fine-tune", limit=1)] == list(reversed(made[1::2]))


async def _plain(door: AsyncOpenAI, name: str) -> str:
    return (await door.files.create(file=(name, b"anything"), purpose="user_data")).id


async def test_files_of_another_project_are_not_there(door: AsyncOpenAI, other_door: AsyncOpenAI) -> None:
    file_id = await sent(door)
    for ask in (other_door.files.retrieve, other_door.files.content, other_door.files.delete):
        with pytest.raises(openai.NotFoundError):
            await ask(file_id)
    assert [one.id async for one in other_door.files.list()] == []
    assert (await door.files.retrieve(file_id)).id == file_id


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"messages": [\n' * 12, "train.jsonl, row 1: is not JSON"),
        (chats(11) + b'{"messages": []}\n', 'row 12, field "messages"'),
        (chats(11) + b"[1, 2]\n", "row 12: is not an object of fields"),
        (chats(10) + b'\n\n{"messages": [{"role": "user", "content": "?"}]}\n', "row 11 (line 13)"),
        (chats(9), "has 9 example(s), but must have at least 10 examples"),
        (b"\xff\xfe" * 40, "not UTF-8"),
        (chats(11) + json.dumps({"messages": [{"role": "robot", "content": "x"}]}).encode(), "'robot' is not one of"),
        (chats(11) + b'{"messages": ' + b"[" * 60_000 + b"\n", "row 12"),
        (chats() + b'{"messages": [{"role": "user", "content": "' + b"a" * 530_000 + b'"}, '
         b'{"role": "assistant", "content": "b"}]}\n', "line 13: has about 132,5"),
    ],
)  # fmt: skip
async def test_what_is_wrong_with_rows_is_said_by_line(door: AsyncOpenAI, content: bytes, told: str) -> None:
    file = await door.files.create(file=("train.jsonl", content), purpose="fine-tune")
    strictly(file)
    assert file.status == "error"
    assert told in (file.status_details or "")


async def test_a_file_in_no_format_that_is_read_says_what_is_expected(door: AsyncOpenAI) -> None:
    file = await door.files.create(file=("train.docx", b"PK" * 40), purpose="fine-tune")
    assert "is in the .docx format, and a .jsonl file is expected" in (file.status_details or "")


async def test_pairs_of_answers_are_rows_too(door: AsyncOpenAI) -> None:
    file = await door.files.create(file=("pairs.jsonl", preferences()), purpose="fine-tune")
    assert (file.status, file.status_details) == ("processed", None)
    broken = preferences() + b'{"input": {"messages": []}, "preferred_output": []}\n'
    file = await door.files.create(file=("pairs.jsonl", broken), purpose="fine-tune")
    assert "row 13" in (file.status_details or "")


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"purpose": "fine-tuning"}, "purpose"),
        ({"purpose": "evals"}, "purpose"),
        ({"purpose": "batch", "expires_after": {"anchor": "created_at", "seconds": 10}}, "expires_after.seconds"),
        ({"purpose": "batch", "expires_after": {"anchor": "now", "seconds": 3600}}, "expires_after.anchor"),
    ],
)
async def test_a_wrong_option_is_named(door: AsyncOpenAI, options: dict[str, object], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await door.files.create(file=("a.jsonl", b"x"), **options)  # type: ignore[arg-type]  # wrong on purpose
    assert refused.value.param == param
    assert refused.value.type == "invalid_request_error"


async def test_an_empty_file_is_refused(door: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await door.files.create(file=("a.jsonl", b""), purpose="fine-tune")
    assert refused.value.param == "file"


async def test_a_file_that_is_too_large_is_refused_whether_or_not_its_size_is_announced(
    door: AsyncOpenAI, context: ApiContext, tenant: Tenant
) -> None:
    most = context.settings.openai_max_file_bytes
    context.settings.openai_max_file_bytes = 10_000
    try:
        with pytest.raises(openai.APIStatusError) as refused:
            await door.files.create(file=("a.txt", b"x" * 90_000), purpose="user_data")
        assert refused.value.status_code == 413

        async def blocks() -> object:
            head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
            yield head
            for _ in range(90):
                yield b"x" * 1000

        answer = await tenant.http.post(
            "/openai/v1/files", content=blocks(), headers={"content-type": "multipart/form-data; boundary=b"}
        )  # type: ignore[arg-type]  # an async generator
        assert answer.status_code == 413
    finally:
        context.settings.openai_max_file_bytes = most


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b",
        b"--b\r\n\r\n",
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n--b--\r\n',
    ],
)
async def test_a_form_that_is_none_is_refused(tenant: Tenant, body: bytes) -> None:
    told = {"content-type": "multipart/form-data; boundary=b"}
    answer = await tenant.http.post("/openai/v1/files", content=body, headers=told)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "file"
    answer = await tenant.http.post("/openai/v1/files", content=body)
    assert answer.status_code == 400


async def test_nothing_is_read_of_who_has_no_key(api: FastAPI) -> None:
    """Not even a file: whoever sends without a key must not fill the server's memory."""
    read: list[int] = []

    async def blocks() -> object:
        for _ in range(1000):
            read.append(1)
            yield b"x" * 1000

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=api), base_url="http://allpass") as stranger:
        answer = await stranger.post(
            "/openai/v1/files", content=blocks(), headers={"content-type": "multipart/form-data; boundary=b"}
        )  # type: ignore[arg-type]  # an async generator
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert len(read) < 3


async def test_a_name_leads_nowhere_and_content_is_never_a_page(door: AsyncOpenAI, tenant: Tenant) -> None:
    page = b"<script>alert(1)</script>"
    file = await door.files.create(file=("../../etc/<b>x</b>\r\n.html", page), purpose="user_data")
    assert "/" not in file.filename.replace("</b>", "")
    answer = await tenant.http.get(f"/openai/v1/files/{file.id}/content")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.content == page


async def test_an_expired_file_is_gone(door: AsyncOpenAI, clock: ManualClock) -> None:
    file = await door.files.create(
        file=("a.txt", b"x"), purpose="user_data", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert file.expires_at == file.created_at + 3600
    clock.advance(s=3600)
    with pytest.raises(openai.NotFoundError):
        await door.files.retrieve(file.id)


async def test_a_file_whose_store_fails_leaves_nothing_that_is_listed(
    door: AsyncOpenAI, context: ApiContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from app.errors import StoreUnavailable

    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("the store does not answer")

    monkeypatch.setattr(type(context.objects), "put", away)
    with pytest.raises(openai.InternalServerError) as refused:
        await sent(door)
    assert refused.value.status_code == 503
    assert [one.id async for one in door.files.list()] == []


def test_models_that_names_mean_have_a_known_size() -> None:
    """So that a script from elsewhere need not say which GPU it takes."""
    from app.core.memory.catalogue import known_name
    from app.services.doors.models import KNOWN

    for model in set(KNOWN.values()):
        assert known_name(model) is not None, model


async def test_nobody_waits_for_those_who_send_slowly(tenant: Tenant, other_door: AsyncOpenAI) -> None:
    """However many of another project hold their connections open."""
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    goes_on = asyncio.Event()

    async def slowly() -> object:
        yield head
        await goes_on.wait()
        yield b'x\r\n--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b--\r\n'

    told = {"content-type": "multipart/form-data; boundary=b"}
    slow = [
        asyncio.create_task(tenant.http.post("/openai/v1/files", content=slowly(), headers=told))  # type: ignore[arg-type]  # an async generator
        for _ in range(12)
    ]
    await asyncio.sleep(0.1)
    async with asyncio.timeout(30):
        assert (await other_door.files.create(file=("a.txt", b"x"), purpose="batch")).bytes == 1
    goes_on.set()
    assert {answer.status_code for answer in await asyncio.gather(*slow)} == {200}
