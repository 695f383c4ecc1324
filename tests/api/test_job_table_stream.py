"""What changes among the jobs of a project, as it happens: nothing lost, nobody else's, and nothing piled up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import select, update

from allpass.wire.job_lines import JobChanges
from app.api import job_table
from app.api.context import ApiContext
from app.core.model.job import JobEnd, JobState
from app.core.model.node import Tier
from app.db.access.keys import revoke_key
from app.db.reading.changed_jobs import FORGOTTEN_AFTER_S, parse_moment
from app.db.tables import api_keys, jobs
from app.errors import Unavailable
from app.services.reading import follow_lines
from app.services.reading.follow_lines import LineHub
from app.services.reading.watched_lines import TableWatcher
from tests.api.builders import add_job, add_run
from tests.api.conftest import Tenant, error_of
from tests.api.test_session import COOKIE, browser
from tests.api.test_streams import PATIENCE_S, Client
from tests.seeds import T0_MS

TABLE = "/v1/jobs/table"
STREAM = f"{TABLE}/stream"


@pytest.fixture(autouse=True)
def hub(api: FastAPI) -> LineHub:
    """That of the app, in a hurry."""
    made: LineHub = api.state.line_hub
    made.every_s, made.check_s, made.words_s = 0.02, 0.02, 0.02
    return made


@asynccontextmanager
async def watching(api: FastAPI, tenant: Tenant, query: str = "", **headers: str) -> AsyncIterator[Client]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    client = Client(api, tenant, STREAM + query, names)
    try:
        yield client
    finally:
        client.gone.set()
        async with asyncio.timeout(PATIENCE_S):
            await client.task


def lines_of(client: Client) -> dict[str, dict[str, Any]]:
    """The newest line of each job that was told."""
    found = {}
    for record in client.records():
        if record.get("event") == "jobs":
            found |= {line["id"]: line for line in json.loads(record["data"])["data"]}
    return found


async def until(client: Client, job_id: str, **fields: Any) -> None:
    """Wait until the job's line says so."""
    async with asyncio.timeout(PATIENCE_S):
        while fields.items() - {(name, _plain(value)) for name, value in lines_of(client).get(job_id, {}).items()}:
            await asyncio.sleep(0.01)


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | None) else json.dumps(value)


async def begun(api: FastAPI, tenant: Tenant) -> None:
    """Wait until the project is watched, and its first watcher has been told what was new to it."""
    windows = api.state.line_hub._windows
    async with asyncio.timeout(PATIENCE_S):
        while tenant.project_id not in windows or windows[tenant.project_id].position is None:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)


async def change(context: ApiContext, job_id: str, **columns: Any) -> None:
    async with context.database.transaction() as connection:
        await connection.execute(update(jobs).where(jobs.c.id == job_id).values(**columns))


async def position_of(tenant: Tenant) -> str:
    return str((await tenant.http.get(TABLE)).json()["position"])


async def test_nothing_is_lost_between_a_page_and_the_stream(api: FastAPI, tenant: Tenant, context: ApiContext) -> None:
    """What changed after the page was read comes first, whenever the stream begins; what it held does not come."""
    old, moved = await add_job(context, tenant), await add_job(context, tenant)
    position = await position_of(tenant)
    await change(context, moved, state=JobState.RUNNING, row_version=2)
    new = await add_job(context, tenant)
    async with watching(api, tenant, f"?after={position}") as client:
        await until(client, new, status="queued")
        assert set(lines_of(client)) == {moved, new}
        await change(context, old, step=5)
        await until(client, old, step=5)
    assert client.head["content-type"] == "text/event-stream; charset=utf-8"
    assert client.head["cache-control"] == "no-store"
    told = JobChanges.model_validate_json(client.records()[0]["data"])
    assert told.counts == {"queued": 2, "running": 1}


async def test_who_says_nothing_is_told_what_has_just_changed(
    api: FastAPI, tenant: Tenant, context: ApiContext
) -> None:
    """A page that was read a moment before is up to date then."""
    job_id = await add_job(context, tenant)
    async with watching(api, tenant) as client:
        await until(client, job_id, status="queued")


async def test_every_kind_of_change_is_told(api: FastAPI, tenant: Tenant, context: ApiContext) -> None:
    """States, steps, cost, where it is, labels, and why it waits, which is written without a new version of the row."""
    job_id = await add_job(context, tenant, wait_reason="first")
    async with watching(api, tenant, f"?after={await position_of(tenant)}") as client:
        await begun(api, tenant)
        await change(context, job_id, wait_reason="then")
        await until(client, job_id, message="then")
        await change(context, job_id, state=JobState.RUNNING, row_version=2, wait_reason=None)
        await until(client, job_id, status="running")
        await add_run(context, tenant, job_id, tier=Tier.SERVERLESS, node_gpu_type="H100")
        async with asyncio.timeout(PATIENCE_S):
            while (lines_of(client)[job_id]["where"] or {}).get("gpu_type") != "H100":
                await asyncio.sleep(0.01)
        await change(context, job_id, step=7, spent_micros=12, labels={"a": "<b>"})
        await until(client, job_id, step=7, cost=12, labels='{"a": "<b>"}')
        over = {"state": JobState.SUCCEEDED, "end_reason": JobEnd.FINISHED, "ended_ms": T0_MS, "row_version": 3}
        await change(context, job_id, **over)
        await until(client, job_id, status="succeeded")
    assert json.loads(client.records()[-1]["data"])["counts"] == {"succeeded": 1}


async def test_a_line_is_that_of_the_page(api: FastAPI, tenant: Tenant, context: ApiContext) -> None:
    """Field by field, so that a browser puts it in the other's place."""
    await add_job(context, tenant, name="</script>\n\ndata: {}", labels={"a": "\r\n\r\n"})
    async with watching(api, tenant) as client:
        await client.until("event: jobs")
        (line,) = lines_of(client).values()
        assert line == (await tenant.http.get(TABLE)).json()["data"][0]


async def test_projects_hear_nothing_of_each_other(
    api: FastAPI, tenant: Tenant, stranger: Tenant, context: ApiContext, hub: LineHub
) -> None:
    """Neither lines nor counts, and not by another's position."""
    ours, theirs = await add_job(context, tenant), await add_job(context, stranger)
    position = await position_of(tenant)
    async with watching(api, tenant, f"?after={position}") as client, watching(api, stranger) as other:
        await change(context, theirs, state=JobState.RUNNING, row_version=2)
        await until(other, theirs, status="running")
        await change(context, ours, step=1)
        await until(client, ours, step=1)
        assert set(lines_of(client)) == {ours} and set(lines_of(other)) == {theirs}
        assert json.loads(client.records()[-1]["data"])["counts"] == {"queued": 1}
        assert hub.watched_projects == 2


async def test_all_watchers_of_a_project_share_one_reader_and_its_bytes(
    api: FastAPI, tenant: Tenant, context: ApiContext, hub: LineHub
) -> None:
    """However many there are, what changed is read and written once."""
    job_id = await add_job(context, tenant)
    position = await position_of(tenant)
    written = 0
    encode = hub._writer.line

    def counting(line: Any) -> bytes:
        nonlocal written
        written += 1
        return encode(line)

    object.__setattr__(hub._writer, "line", counting)
    watchers = [TableWatcher("key", None) for _ in range(50)]
    hub.check_s = 3600  # these have no key
    streams = [hub.watch(tenant.project_id, one, parse_moment(position)) for one in watchers]
    first = [await anext(stream) for stream in streams]
    assert first == [b""] * 50
    assert (hub.watchers, hub.watched_projects) == (50, 1)
    await change(context, job_id, step=3)
    messages = await asyncio.gather(*(anext(stream) for stream in streams))
    assert written == 1
    assert all(message is messages[0] for message in messages)
    for stream in streams:
        await stream.aclose()
    assert (hub.watchers, hub.watched_projects) == (0, 0)


async def test_a_slow_reader_gets_the_newest_of_each_job_at_once(
    api: FastAPI, tenant: Tenant, context: ApiContext, hub: LineHub
) -> None:
    """Nothing is piled up for it: however often two jobs change meanwhile, two lines wait, and others do not."""
    one, two = await add_job(context, tenant), await add_job(context, tenant)
    begin = parse_moment(await position_of(tenant))
    hub.check_s = 3600
    slow, quick = TableWatcher("key", None), TableWatcher("key", None)
    async with (
        aclosing(hub.watch(tenant.project_id, slow, begin)) as slow_stream,
        aclosing(hub.watch(tenant.project_id, quick, begin)) as quick_stream,
    ):
        await anext(slow_stream)
        await anext(quick_stream)
        for step in range(1, 6):
            await change(context, one, step=step)
            assert b'"step":%d,' % step in await anext(quick_stream)
        await change(context, two, step=9)
        await anext(quick_stream)
        window = hub._windows[tenant.project_id]
        assert len(window._lines) == 2
        message = (await anext(slow_stream)).decode()
        data = json.loads(message.partition("data: ")[2])
        assert {line["id"]: line["step"] for line in data["data"]} == {one: 5, two: 9}
        assert message.count("event: jobs") == 1
        await change(context, one, step=6)
        await anext(slow_stream)
        await anext(quick_stream)
        await change(context, one, step=7)
        await anext(slow_stream)
        assert len(window._lines) == 1, "what all have is forgotten"


async def test_more_than_one_message_holds_comes_in_several(
    api: FastAPI, tenant: Tenant, context: ApiContext, hub: LineHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it; and who is cut off before the last one goes on where nothing is missing."""
    made = [await add_job(context, tenant) for _ in range(7)]
    position = await position_of(tenant)
    monkeypatch.setattr(follow_lines, "MOST_LINES", 3)
    async with watching(api, tenant, f"?after={position}") as client:
        await begun(api, tenant)
        async with context.database.transaction() as connection:
            await connection.execute(update(jobs).values(step=4))
        for job_id in made:
            await until(client, job_id, step=4)
        sizes = [len(json.loads(record["data"])["data"]) for record in client.records()]
        assert max(sizes) == 3 and sum(sizes) == 7
        first = client.records()[0]["id"]
    async with watching(api, tenant, last_event_id=first) as client:
        for job_id in made:
            await until(client, job_id, step=4)


async def test_a_browser_that_connects_again_goes_on_where_it_was(
    api: FastAPI, tenant: Tenant, context: ApiContext
) -> None:
    """By the last id, which goes before `after`. What it had may be told again; nothing that it missed is left out."""
    never = await add_job(context, tenant)
    first, second = await add_job(context, tenant), await add_job(context, tenant)
    begin = await position_of(tenant)
    async with watching(api, tenant, f"?after={begin}") as client:
        await change(context, first, step=1)
        await until(client, first, step=1)
        last = client.records()[-1]["id"]
    await change(context, second, step=2)
    async with watching(api, tenant, f"?after={begin}", last_event_id=last) as client:
        await until(client, second, step=2)
        assert never not in lines_of(client)


async def test_many_that_come_back_from_one_moment_are_greeted_with_one_reading(
    api: FastAPI, tenant: Tenant, context: ApiContext, hub: LineHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a server is restarted; what changes after that reading is told to all of them."""
    first = await add_job(context, tenant)
    begin = parse_moment(await position_of(tenant))
    second = await add_job(context, tenant)
    hub.check_s, reads = 3600, 0
    read = follow_lines.jobs_changed

    async def counting(*arguments: Any, **named: Any) -> Any:
        nonlocal reads
        reads += arguments[2] == begin
        return await read(*arguments, **named)

    monkeypatch.setattr(follow_lines, "jobs_changed", counting)
    streams = [hub.watch(tenant.project_id, TableWatcher("key", None), begin) for _ in range(20)]
    greetings = await asyncio.gather(*(anext(stream) for stream in streams))
    assert all(second.encode() in greeting and first.encode() not in greeting for greeting in greetings)
    assert reads <= 4, "those that ask at the very same time"
    await change(context, first, step=1)
    assert all(first.encode() in message for message in await asyncio.gather(*(anext(stream) for stream in streams)))
    late = hub.watch(tenant.project_id, TableWatcher("key", None), begin)
    assert first.encode() in await anext(late), "a greeting is not kept beyond the next message"
    for stream in (*streams, late):
        await stream.aclose()


async def test_a_transaction_that_commits_late_is_not_missed(api: FastAPI, tenant: Tenant, context: ApiContext) -> None:
    """It began before the page was read; nor does one that stays open have others told again and again."""
    late, other = await add_job(context, tenant), await add_job(context, tenant)
    async with context.database.transaction() as connection:
        await connection.execute(update(jobs).where(jobs.c.id == late).values(step=1))
        async with watching(api, tenant, f"?after={await position_of(tenant)}") as client:
            await begun(api, tenant)
            for step in (1, 2):
                await change(context, other, step=step)
                await until(client, other, step=step)
            reads = api.state.line_hub.reads
            async with asyncio.timeout(PATIENCE_S):
                while api.state.line_hub.reads < reads + 5:
                    await asyncio.sleep(0.01)
            assert [set(json.loads(record["data"])) for record in client.records()] == [{"data", "counts"}] * 2
            await connection.commit()
            await until(client, late, step=1)


async def test_who_was_away_for_too_long_reads_the_table_anew(
    api: FastAPI, tenant: Tenant, context: ApiContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a quarter of an hour, after a restore, or when more has changed than a page would say sooner."""
    job_id = await add_job(context, tenant)
    position = await position_of(tenant)
    at_s, _, seen = position.partition(".")
    beyond = int(seen.split(":")[1]) + 1_000_000
    long_ago = f"{int(at_s) - FORGOTTEN_AFTER_S - 5}.{seen}"
    monkeypatch.setattr(follow_lines, "MOST_CAUGHT_UP", 2)
    for start in (long_ago, f"{at_s}.{beyond}:{beyond}:"):
        async with watching(api, tenant, f"?after={start}") as client:
            await client.until("event: reset\ndata: {}\n\n")
            await change(context, job_id, faults=1)
            await until(client, job_id, faults=1)
    for _ in range(3):
        await add_job(context, tenant)
    async with watching(api, tenant, f"?after={position}") as client:
        await client.until("event: reset")
        (record,) = client.records()
        assert parse_moment(record["id"]) is not None


@pytest.mark.parametrize(
    "position",
    ["x", "1", "1.1", "1.1:2", "1.2:1:", "1.1:5:0", "1.1:5:5", "1.1:5:3,2", "1.1:5:2,2", "1.0:5:", "1.1:5:,", "-1.1:5:",
     "1." + "9" * 19 + ":" + "9" * 19 + ":", "1.1:5:'; --", "²1.1:5:", " 1.1:5:"],
)  # fmt: skip
async def test_what_is_no_position_is_refused(tenant: Tenant, position: str) -> None:
    """422 with where one comes from; never an error of the database."""
    error = error_of(await tenant.http.get(STREAM, params={"after": position}), 422, "invalid_input")
    assert error["param"] == "after"
    assert "GET /v1/jobs/table" in error["message"]
    headers = {"last-event-id": position.encode()}
    assert error_of(await tenant.http.get(STREAM, headers=headers), 422, "invalid_input")["param"] == "Last-Event-ID"


@pytest.mark.parametrize("position", ["1.1:5:1,4", "0.1:1:", "99.3:3:"])
def test_what_is_one_is_read_and_written_back(position: str) -> None:
    """As it was."""
    moment = parse_moment(position)
    assert moment is not None and str(moment) == position


async def test_a_stream_ends_after_its_longest_time(
    api: FastAPI, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the client, which connects again, shows its key again."""
    assert job_table.LONGEST_S == 900
    monkeypatch.setattr(job_table, "LONGEST_S", 0.05)
    async with watching(api, tenant) as client, asyncio.timeout(PATIENCE_S):
        await client.task
    assert client.complete and client.records() == []


async def test_a_stream_ends_with_the_key_and_the_session(api: FastAPI, tenant: Tenant, context: ApiContext) -> None:
    """Within seconds: signed out, expired, or with the key that it came with. Others of the project listen on."""
    async with browser(api, tenant.key) as http, browser(api, tenant.key) as another:
        cookies = [
            {"cookie": f"{COOKIE}={one.cookies[COOKIE]}", "authorization": "Basic eA"} for one in (http, another)
        ]
        async with (
            watching(api, tenant, **cookies[0]) as ended,
            watching(api, tenant, **cookies[1]) as listens,
            watching(api, tenant) as keyed,
        ):
            for client in (ended, listens, keyed):
                await client.until("retry")
            assert (await http.delete("/v1/session")).status_code == 204
            async with asyncio.timeout(PATIENCE_S):
                await ended.task
            job_id = await add_job(context, tenant)
            await until(listens, job_id, status="queued")
            await until(keyed, job_id, status="queued")
            async with context.database.transaction() as connection:
                key_id = (await connection.execute(select(api_keys.c.id))).scalar_one()
                await revoke_key(connection, key_id, now_ms=context.clock.now_ms())
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(listens.task, keyed.task)
    assert ended.complete and listens.complete and keyed.complete


async def test_a_client_that_leaves_is_forgotten_at_once(api: FastAPI, tenant: Tenant, hub: LineHub) -> None:
    """The last to go ends the reader."""
    async with watching(api, tenant) as client:
        await client.until("retry")
        await begun(api, tenant)
    assert (hub.watchers, hub.watched_projects) == (0, 0)


async def test_signs_of_life_carry_how_far_it_is(api: FastAPI, tenant: Tenant, hub: LineHub) -> None:
    """So that who is cut off after a long silence need not read everything."""
    hub.beat_s = 0.01
    async with watching(api, tenant) as client:
        await client.until(": still there\nid: ")
        beat = client.text.partition(": still there\nid: ")[2].partition("\n")[0]
        async with asyncio.timeout(PATIENCE_S):
            while client.text.count(beat) == client.text.count("id: "):
                await asyncio.sleep(0.01)
    assert parse_moment(beat) is not None
    assert client.records() == [], "no event: a browser passes over it"


async def test_a_database_that_is_away_for_a_moment_is_waited_for(
    api: FastAPI, tenant: Tenant, context: ApiContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that changed meanwhile is lost. What cannot be read ends the stream, so that the client comes back."""
    job_id = await add_job(context, tenant)
    read, failing = follow_lines.lines_by_id, [Unavailable("away"), Unavailable("away")]

    async def fails(*arguments: Any) -> Any:
        if failing:
            raise failing.pop()
        return await read(*arguments)

    async with watching(api, tenant, f"?after={await position_of(tenant)}") as client:
        await begun(api, tenant)
        monkeypatch.setattr(follow_lines, "lines_by_id", fails)
        await change(context, job_id, step=1)
        await until(client, job_id, step=1)
        failing.append(RuntimeError("a bug"))  # type: ignore[arg-type]  # any error
        await change(context, job_id, step=2)
        async with asyncio.timeout(PATIENCE_S):
            await client.task
        assert client.complete
        last = client.records()[-1]["id"]
    async with watching(api, tenant, last_event_id=last) as client:
        await until(client, job_id, step=2)


async def test_more_than_can_be_served_are_told_to_come_back(
    api: FastAPI, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 with a Retry-After, before anything is sent."""
    monkeypatch.setattr(follow_lines, "MAX_WATCHERS", 0)
    error_of(await tenant.http.get(STREAM), 503, "unavailable")
