"""Submitting: validated, durable, exactly once, and told back as it was accepted."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Table, func, select, update

from allpass.wire.jobs import Job, Sweep
from app.api.context import ApiContext
from app.db import notify
from app.db.tables import app_versions, apps, idempotency_keys, job_events, jobs
from tests.api.conftest import Tenant, error_of
from tests.conftest import ManualClock
from tests.seeds import new_id

TEMPLATE: dict[str, Any] = {
    "name": "llama",
    "training": {"steps": 3120, "batch_size": 16},
    "gpu": {"count": 2, "max_count": 2, "type": "A100", "memory_gb": 40},
    "cpus": 4,
    "memory_gb": 32.5,
    "checkpoint_interval_s": 60,
    "caps": {"max_cost_usd": 12.345678, "max_duration_s": 3600},
    "labels": {"team": "research"},
    "placement": {"locked": True},
}


async def all_rows(context: ApiContext, table: Table) -> list[Any]:
    async with context.database.transaction() as connection:
        return list((await connection.execute(select(table).order_by(table.c[0]))).all())


async def count(context: ApiContext, table: Table) -> int:
    async with context.database.transaction() as connection:
        return int((await connection.execute(select(func.count()).select_from(table))).scalar_one())


async def add_version(context: ApiContext, tenant: Tenant, version: int) -> None:
    """As another process would: this one's memory of the newest version is not told."""
    async with context.database.transaction() as connection:
        columns = [column for column in app_versions.c if column.name not in ("id", "version")]
        row = (await connection.execute(select(*columns).where(app_versions.c.id == tenant.version_id))).one()
        await connection.execute(app_versions.insert().values(id=new_id("ver"), version=version, **dict(row._mapping)))
        await connection.execute(update(apps).where(apps.c.id == tenant.app_id).values(version=version))


async def test_a_submitted_job_is_told_as_it_will_be_read(tenant: Tenant) -> None:
    """The 201 body equals what GET /v1/jobs/{id} says while the job is queued."""
    body = {"app_id": tenant.app_id, "template": TEMPLATE, "parameters": {"lr": 2e-4, "ü": ["é", None, True]}}
    submitted = await tenant.http.post("/v1/jobs", json=body | {"soft_deadline": "6hr", "name": "first"})
    assert submitted.status_code == 201, submitted.text
    read = await tenant.http.get(f"/v1/jobs/{submitted.json()['id']}")
    assert read.json() == submitted.json()
    assert Job.model_validate(read.json()).status == "queued"


async def test_the_row_says_what_the_template_asked_for(
    tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """Units are converted once: gigabytes to bytes, dollars to micro-dollars, seconds to milliseconds."""
    body = {"app_id": tenant.app_id, "template": TEMPLATE, "parameters": ["--lr", "1e-4"], "soft_deadline": "90m"}
    assert (await tenant.http.post("/v1/jobs", json=body)).status_code == 201
    (row,) = await all_rows(context, jobs)
    assert row.resources == {
        "gpus_min": 2,
        "gpus_max": 2,
        "gpu_type": "A100",
        "gpu_memory_bytes_min": 40_000_000_000,
        "cpus_min": 4,
        "memory_bytes_min": 32_500_000_000,
        "base_image": None,
    }
    assert (row.max_cost_micros, row.max_duration_ms) == (12_345_678, 3_600_000)
    assert (row.deadline_ms, row.deadline_given) == (clock.ms + 90 * 60_000, True)
    assert (row.name, row.labels, row.total_steps) == ("llama", {"team": "research"}, 3120)
    assert (row.parameters, row.elastic, row.checkpoint_interval_s) == (["--lr", "1e-4"], False, 60)
    assert row.affinity == {"affinity": {}, "anti_affinity": {}, "locked": True}
    assert (row.state, row.epoch, row.row_version, row.event_position) == ("queued", 0, 1, 1)


async def test_a_range_of_gpus_is_an_elastic_job(tenant: Tenant, context: ApiContext) -> None:
    """It asks for the least, may have the most, and is elastic whether it says so or not. One number twice is none."""
    for gpu in ({"count": 2, "max_count": 8}, {"count": 2, "max_count": 2}):
        assert (
            await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id, "template": {"gpu": gpu}})
        ).status_code == 201
    said = {"gpu": {"count": 2, "max_count": 8}, "elastic": True}
    assert (await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id, "template": said})).status_code == 201
    wide, fixed, same = sorted(await all_rows(context, jobs), key=lambda row: str(row.id))
    for row in (wide, same):
        assert {name: row.resources.get(name) for name in ("gpus_min", "gpus_max", "gpus_least")} == {
            "gpus_min": 2,
            "gpus_max": 8,
            "gpus_least": 2,
        }
        assert (row.elastic, row.template["elastic"]) == (True, True)
    assert (fixed.elastic, fixed.resources["gpus_max"], "gpus_least" in fixed.resources) == (False, 2, False)


async def test_an_empty_template_gets_the_defaults(tenant: Tenant, context: ApiContext, clock: ManualClock) -> None:
    """One GPU of any type, the app's name, the default deadline (marked as inferred) and checkpoint interval."""
    assert (await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id})).status_code == 201
    (row,) = await all_rows(context, jobs)
    assert (row.resources["gpus_min"], row.resources["gpus_max"], row.resources["gpu_type"]) == (1, 1, None)
    assert (row.name, row.parameters, row.max_cost_micros) == (tenant.app_id, {}, None)
    assert (row.deadline_ms, row.deadline_given) == (clock.ms + 86_400_000, False)
    assert row.checkpoint_interval_s == context.settings.checkpoint_interval_s


async def test_the_first_event_is_written_with_the_job(tenant: Tenant, context: ApiContext, clock: ManualClock) -> None:
    """Position 1 is `job_queued`: whoever follows the events sees the beginning."""
    await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id})
    (event,) = await all_rows(context, job_events)
    assert (event.position, event.kind, event.at_ms) == (1, "job_queued", clock.ms)


@pytest.mark.usefixtures("listening")
async def test_a_submission_wakes_the_control_loop(tenant: Tenant, context: ApiContext) -> None:
    """The notification arrives after the commit."""
    with context.listener.watch(notify.CONTROL) as woken:
        await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id})
        async with asyncio.timeout(60):
            await woken.wait()


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"template": {"training": {"batch_size": -4}}}, "template.training.batch_size", "-4"),
        ({"template": {"training": {"batchsize": 4}}}, "template.training.batchsize", "no such field"),
        ({"template": {"gpu": {"count": 4, "max_count": 2}}}, "template.gpu", "max_count (2) is below count (4)"),
        ({"template": {"gpu": {"count": 1, "max_count": 9}}}, "template.gpu.max_count", "9 are too many: a training"),
        ({"template": {"gpu": {"max_count": 65}}}, "template.gpu.max_count", "less than or equal to 64"),
        (
            {"template": {"gpu": {"count": 1, "max_count": 8}, "elastic": False}},
            "template",
            "elastic: false keeps the number of GPUs, and gpu.max_count (8) lets the job have 1 to 8; leave",
        ),
        (
            {"template": {"gpu": {"count": 1, "max_count": 8}, "nodes": 2}},
            "template.gpu.max_count",
            "keeps its GPUs: leave out gpu.max_count",
        ),
        (
            {"template": {"nodes": 4, "placement": {"most_per_switch": 3, "most_per_rack": 2}}},
            "template.placement",
            "most_per_switch (3) is above most_per_rack (2), and a switch is in one rack; say at most 2, or leave",
        ),
        (
            {"template": {"nodes": 4, "placement": {"most_per_switch": 0}}},
            "template.placement.most_per_switch",
            "greater than or equal to 1",
        ),
        ({"template": {"placement": {"most_per_rack": 1}}}, "template.placement.most_per_rack", "say nodes, or leave"),
        ({"template": {"priority_class": "cheap"}}, "template.priority_class", "'guaranteed' or 'spot'"),
        (
            {"template": {"priority_class": "spot", "placement": {"locked": True}}},
            "template.placement.locked",
            "a spot job leaves its machine when a guaranteed job needs it; leave out locked or",
        ),
        (
            {"template": {"training": {"steps": 10**12 + 1}}},
            "template.training.steps",
            "less than or equal to 1000000000000",
        ),
        (
            {"template": {"caps": {"max_duration_s": 10**12}}},
            "template.caps.max_duration_s",
            "less than or equal to 315360000",
        ),
        ({"template": {"soft_deadline": "2020-01-01T00:00Z"}}, "template.soft_deadline", "not in the future"),
        ({"template": {"deadline": "6h"}}, "template.deadline", "it is given with the job; try --deadline 6h"),
        ({"template": {"max_wait": "2h"}}, "template.max_wait", 'try "caps": {"max_wait_s": 7200}'),
        ({"template": {"caps": {"retries": 2}}}, "template.caps.retries", 'try "retries": 2'),
        ({"template": {"retries": 1.5}}, "template.retries", "valid integer"),
        ({"template": {"retries": 101}}, "template.retries", "less than or equal to 100"),
        ({"template": {"caps": {"max_wait_s": "2h"}}}, "template.caps.max_wait_s", "'2h'"),
        ({"template": "t.json"}, "template", "'t.json'"),
        ({"template": {"caps": {"max_cost_usd": 1.00000001}}}, "template.caps.max_cost_usd", "six decimals"),
        ({"template": {"kind": "urgent"}}, "template.kind", "'urgent'"),
        ({"template": {"outputs": ["ok", "../up"]}}, "template.outputs[1]", "name a folder that is in it"),
        ({"template": {"outputs": ["out/*.bin"]}}, "template.outputs[0]", "name the folder that the files are in"),
        ({"template": {"outputs": ["a"] * 65}}, "template.outputs", "64"),
        ({"soft_deadline": "soon"}, "soft_deadline", '"6hr"'),
        ({"soft_deadline": "2020-01-01T00:00:00Z"}, "soft_deadline", "not in the future"),
        ({"soft_deadline": "0h"}, "soft_deadline", "not in the future"),
        ({"soft_deadline": "2030-01-01T00:00:00"}, "soft_deadline", "no time zone"),
        ({"parameters": 7}, "parameters", "7"),
        ({"parameters": ["--lr", 7]}, "parameters[1]", "7"),
        ({"app_version": 0}, "app_version", "0"),
        ({"app_version": 2**31}, "app_version", "less than"),
        ({"app_id": "x" * 101}, "app_id", "at most 100"),
        ({"soft_deadline": "9" * 100 + "h"}, "soft_deadline", "at most 100"),
        ({"name": "a\x1b[2Jb"}, "name", "leave '\\x1b' out"),
        ({"template": {"labels": {"l" * 500_000: ""}}}, f"template.labels.{'l' * 79}…", "at most 200"),
        ({"template": {"labels": {"a\nb": ""}}}, "template.labels.a\\nb", "leave '\\n' out"),
        ({"app_id": None}, "app_id", "None"),
        ({"name": "a\x00b"}, "name", "NUL"),
        ({"parameters": {"a": [1, "\x00"]}}, "parameters.a[1]", "NUL"),
    ],
)
async def test_a_wrong_field_is_named_with_its_value(
    tenant: Tenant, context: ApiContext, change: dict[str, Any], param: str, words: str
) -> None:
    """422 `invalid_input`; `param` is the dotted path, the message says what is wrong; nothing is written."""
    response = await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id} | change)
    error = error_of(response, 422, "invalid_input")
    assert error["param"] == param
    assert words in error["message"]
    assert error["message"].startswith(param)
    assert await count(context, jobs) == 0


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"name": "lama-3-8b"}, "the nearest that is known is 'llama-3-8b'"),
        ({"name": "org/Qwen2.5-7B-Instrct"}, "the nearest that is known is 'qwen2.5-7b'"),
        ({"name": "a-b-c"}, "none that is known is like it"),
        ({"name": "meta-llama/Meta-Llama-3-8B-Instruct"}, None),
        ({"name": "mine", "config": {"model_type": "llama"}}, None),
    ],
)
async def test_a_model_that_nobody_knows_is_let_in_with_a_warning(
    tenant: Tenant, model: dict[str, Any], words: str | None
) -> None:
    """Told as the job is submitted and when it is asked for, with the nearest name; lists do not repeat it."""
    sent = await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id, "template": {"model": model}})
    assert sent.status_code == 201
    asked = (await tenant.http.get(f"/v1/jobs/{sent.json()['id']}")).json()
    listed = (await tenant.http.get("/v1/jobs")).json()["data"][0]
    assert (asked["warnings"], listed["warnings"]) == (sent.json()["warnings"], [])
    if words is None:
        assert asked["warnings"] == []
        return
    (told,) = asked["warnings"]
    assert told.startswith(f"template.model.name: {model['name']!r} is not a model whose size is known")
    assert words in told


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "JSON object"),
        (b'{"app_id": "\xff"}', "not UTF-8"),
        (b'{"parameters": {"a": NaN}}', "not valid JSON"),
        (b'{"parameters": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", "recursion limit"),
        (b"{'app_id': 'x'}", "not valid JSON"),
        (b'{"parameters": {"a": "\\ud800"}}', "not valid JSON"),
    ],
)
async def test_a_body_that_is_no_json_is_refused(tenant: Tenant, body: bytes, words: str) -> None:
    """422 with words for it, never a 500."""
    response = await tenant.http.post("/v1/jobs", content=body)
    assert words in error_of(response, 422, "invalid_input")["message"]


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ('"parameters": {"a": [1e999]}', "parameters"),
        ('"template": {"training": {"learning_rate": 1e999}}', "template.training.learning_rate"),
        ('"template": {"target": {"name": "loss", "value": -1e999}}', "template.target.value"),
    ],
)
async def test_infinite_numbers_are_refused(tenant: Tenant, text: str, param: str) -> None:
    """1e999 reads as infinity, which no JSON column can hold."""
    body = f'{{"app_id": "{tenant.app_id}", {text}}}'
    error = error_of(await tenant.http.post("/v1/jobs", content=body), 422, "invalid_input")
    assert error["param"] == param


async def test_words_that_look_like_infinity_are_kept(tenant: Tenant) -> None:
    """Only numbers are refused: the strings "Infinity" and "NaN" are text like any other."""
    body = {"app_id": tenant.app_id, "parameters": {"a": "Infinity", "b": ["NaN"]}}
    response = await tenant.http.post("/v1/jobs", json=body)
    assert response.json()["parameters"] == {"a": "Infinity", "b": ["NaN"]}


async def test_an_app_that_does_not_exist_is_not_found(tenant: Tenant, stranger: Tenant) -> None:
    """Unknown, malformed and foreign ids are the same 404; a missing version names the newest."""
    for app_id in (new_id("app"), "app_x", "x" * 100, stranger.app_id):
        response = await tenant.http.post("/v1/jobs", json={"app_id": app_id})
        assert error_of(response, 404, "not_found")["param"] == "app_id"
    for version in (2, 2**31 - 1):
        response = await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id, "app_version": version})
        error = error_of(response, 404, "not_found")
        assert (error["param"], "newest is 1" in error["message"]) == ("app_version", True)


async def test_a_job_never_runs_an_older_version_than_the_newest(tenant: Tenant, context: ApiContext) -> None:
    """A version that another process registered a moment ago counts, although this one remembers an older one."""
    first = await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id})
    await add_version(context, tenant, 2)
    second = await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id}, headers={"Idempotency-Key": "k"})
    pinned = await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id, "app_version": 1})
    assert [one.json()["app_version"] for one in (first, second, pinned)] == [1, 2, 1]
    assert await count(context, idempotency_keys) == 1


async def test_the_same_key_and_body_get_the_first_answer(tenant: Tenant, context: ApiContext) -> None:
    """One job, and the same body again, also when the job has moved on since."""
    body = {"app_id": tenant.app_id, "template": TEMPLATE, "parameters": {"z": 1, "a": 2}}
    headers = {"Idempotency-Key": "once"}
    first = await tenant.http.post("/v1/jobs", json=body, headers=headers)
    await tenant.http.post(f"/v1/jobs/{first.json()['id']}/cancel")
    again = await tenant.http.post("/v1/jobs", json=body, headers=headers)
    assert (again.status_code, again.json()) == (201, first.json())
    assert await count(context, jobs) == 1


async def test_a_repeat_is_answered_after_its_deadline_has_passed(tenant: Tenant, clock: ManualClock) -> None:
    """What would be refused today was accepted then: the answer is the first one."""
    instant = datetime.fromtimestamp(clock.ms / 1000, UTC) + timedelta(minutes=5)
    body = {"app_id": tenant.app_id, "soft_deadline": instant.isoformat()}
    first = await tenant.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "once"})
    clock.advance(s=600)
    again = await tenant.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "once"})
    assert (again.status_code, again.json()) == (201, first.json())
    error_of(await tenant.http.post("/v1/jobs", json=body), 422, "invalid_input")


async def test_a_key_is_good_for_one_request(tenant: Tenant, stranger: Tenant, context: ApiContext) -> None:
    """Another body or another route under the same key is refused; another project's keys are its own."""
    headers = {"Idempotency-Key": "once"}
    assert (await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id}, headers=headers)).status_code == 201
    other = await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id, "name": "b"}, headers=headers)
    assert error_of(other, 409, "idempotency_conflict")["param"] == "Idempotency-Key"
    sweep = {"app_id": tenant.app_id, "parameters": [{}]}
    error = error_of(await tenant.http.post("/v1/sweeps", json=sweep, headers=headers), 409, "idempotency_conflict")
    assert "POST /v1/jobs" in error["message"]
    theirs = await stranger.http.post("/v1/jobs", json={"app_id": stranger.app_id}, headers=headers)
    assert theirs.status_code == 201
    assert await count(context, jobs) == 2


@pytest.mark.parametrize("key", ["", "k" * 201, "ä"])
async def test_a_key_that_cannot_be_kept_is_refused(tenant: Tenant, key: str) -> None:
    """1 to 200 printable ASCII characters."""
    response = await tenant.http.post(
        "/v1/jobs", json={"app_id": tenant.app_id}, headers={"Idempotency-Key": key.encode()}
    )
    assert error_of(response, 422, "invalid_input")["param"] == "Idempotency-Key"


async def test_a_refused_request_does_not_use_up_its_key(tenant: Tenant) -> None:
    """After a 422 the mended request may go out under the same key."""
    headers = {"Idempotency-Key": "mended"}
    bad = {"app_id": tenant.app_id, "soft_deadline": "soon"}
    error_of(await tenant.http.post("/v1/jobs", json=bad, headers=headers), 422, "invalid_input")
    good = await tenant.http.post("/v1/jobs", json=bad | {"soft_deadline": "6h"}, headers=headers)
    assert good.status_code == 201


async def test_200_concurrent_submissions_give_200_jobs(tenant: Tenant, context: ApiContext) -> None:
    """Coalesced into few writes, each caller gets exactly its own job."""
    answers = await asyncio.gather(
        *(tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id, "name": f"n{n}"}) for n in range(200))
    )
    assert [answer.status_code for answer in answers] == [201] * 200
    assert [answer.json()["name"] for answer in answers] == [f"n{n}" for n in range(200)]
    stored = {row.id: row.name for row in await all_rows(context, jobs)}
    assert stored == {answer.json()["id"]: answer.json()["name"] for answer in answers}
    assert await count(context, job_events) == 200


async def test_the_same_request_sent_40_times_at_once_gives_one_job(tenant: Tenant, context: ApiContext) -> None:
    """All of them get the same answer, also those that met in one write."""
    body = {"app_id": tenant.app_id, "parameters": {"a": 1}}
    headers = {"Idempotency-Key": "burst"}
    answers = await asyncio.gather(*(tenant.http.post("/v1/jobs", json=body, headers=headers) for _ in range(40)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({json.dumps(answer.json(), sort_keys=True) for answer in answers}) == 1
    assert await count(context, jobs) == 1


async def test_one_bad_submission_harms_only_its_sender(tenant: Tenant, context: ApiContext) -> None:
    """Among concurrent submissions, those for an app of another project and with a reused key fail alone."""
    await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id}, headers={"Idempotency-Key": "used"})
    good = [tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id}) for _ in range(20)]
    reused = tenant.http.post(
        "/v1/jobs", json={"app_id": tenant.app_id, "name": "other"}, headers={"Idempotency-Key": "used"}
    )
    answers = await asyncio.gather(*good, reused, tenant.http.post("/v1/jobs", json={"app_id": new_id("app")}))
    assert [answer.status_code for answer in answers] == [201] * 20 + [409, 404]
    assert await count(context, jobs) == 21


@pytest.mark.parametrize("size", [1, 3, 150])
async def test_a_sweep_is_one_job_per_parameter_set(tenant: Tenant, context: ApiContext, size: int) -> None:
    """In their order, all under one sweep id; read back the same; repeated under its key without a second effect."""
    body = {"app_id": tenant.app_id, "parameters": [{"seed": number} for number in range(size)], "name": "grid"}
    first = await tenant.http.post("/v1/sweeps", json=body, headers={"Idempotency-Key": "s"})
    assert first.status_code == 201, first.text
    sweep = Sweep.model_validate(first.json())
    assert [job.parameters for job in sweep.jobs] == body["parameters"]
    assert {job.sweep_id for job in sweep.jobs} == {sweep.id}
    assert (await tenant.http.get(f"/v1/sweeps/{sweep.id}")).json() == first.json()
    again = await tenant.http.post("/v1/sweeps", json=body, headers={"Idempotency-Key": "s"})
    assert again.json() == first.json()
    assert await count(context, jobs) == size


async def test_a_sweep_with_a_wrong_set_writes_nothing(tenant: Tenant, context: ApiContext) -> None:
    """All of them, or none."""
    body = f'{{"app_id": "{tenant.app_id}", "parameters": [{{"a": 1}}, {{"a": 1e999}}]}}'
    error_of(await tenant.http.post("/v1/sweeps", content=body), 422, "invalid_input")
    empty = await tenant.http.post("/v1/sweeps", json={"app_id": tenant.app_id, "parameters": []})
    assert error_of(empty, 422, "invalid_input")["param"] == "parameters"
    assert await count(context, jobs) == 0


async def test_sweeps_of_others_are_not_found(tenant: Tenant, stranger: Tenant) -> None:
    """Foreign, unknown and malformed ids are the same 404."""
    body = {"app_id": tenant.app_id, "parameters": [{}]}
    sweep_id = (await tenant.http.post("/v1/sweeps", json=body)).json()["id"]
    for http, one in ((stranger.http, sweep_id), (tenant.http, new_id("swp")), (tenant.http, "x")):
        error_of(await http.get(f"/v1/sweeps/{one}"), 404, "not_found")


async def test_a_command_is_the_jobs_own(tenant: Tenant, context: ApiContext) -> None:
    """Kept in its template with its variables; its image takes the place of the app's; arguments of a script beside a
    command are refused."""
    template = {"command": ["torchrun", "train.py"], "env": {"WANDB_MODE": "offline"}, "image": "nvcr.io/x"}
    told = (await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id, "template": template})).json()
    assert told["template"] | template == told["template"]
    async with context.database.transaction() as connection:
        resources = select(jobs.c.resources).where(jobs.c.id == told["id"])
        assert (await connection.execute(resources)).scalar_one()["base_image"] == "nvcr.io/x"
    both = {"app_id": tenant.app_id, "template": template, "parameters": ["--lr", "1"]}
    error = error_of(await tenant.http.post("/v1/jobs", json=both), 422, "invalid_input")
    assert error["param"] == "template.command"


@pytest.mark.parametrize(
    ("template", "param", "says"),
    [
        ({"command": []}, "template.command", ""),
        ({"command": ["--lr"]}, "template.command", "is not a program to start"),
        ({"command": ["a\0"]}, "template.command[0]", ""),
        ({"command": ["x"] * 10_001}, "template.command", ""),
        ({"env": {"1A": "x"}}, "template.env", ""),
        ({"env": {"A": 1}}, "template.env.A", ""),
        ({"env": {"ALLPASS_JOB_ID": "x"}}, "template.env", "Allpass or the system sets"),
        ({"env": {"LD_PRELOAD": "x.so"}}, "template.env", "env LD_PRELOAD=... python train.py"),
        ({"env": {"HF_TOKEN": "hf_abcdefgh"}}, "template.env", "allpass secret set HF_TOKEN"),
        ({"env": {f"A{number}": "" for number in range(101)}}, "template.env", ""),
        ({"env": {"A": "x" * 32_000, "B": "x" * 32_000, "C": "x" * 3_000}}, "template.env", "65536 is the most"),
        ({"env": {"A": "1"}, "secrets": ["A"]}, "template", "in secrets, too"),
        ({"image": ""}, "template.image", ""),
    ],
)
async def test_commands_and_variables_have_limits(
    tenant: Tenant, context: ApiContext, template: dict[str, Any], param: str, says: str
) -> None:
    """Each refusal names the field; what looks like a secret is never stored in the open."""
    sent = await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id, "template": template})
    error = error_of(sent, 422, "invalid_input")
    assert error["param"].startswith(param)
    assert says in error["message"]
    assert await count(context, jobs) == 0


@pytest.mark.parametrize(
    "name", ["PAD_TOKEN=<pad>", "TOKENIZERS_PARALLELISM=false", "HF_TOKEN=", "MONKEY=banana-split"]
)
async def test_what_only_resembles_a_secret_is_let_through(tenant: Tenant, name: str) -> None:
    """Tokens of a tokenizer, and words that end alike."""
    key, _, value = name.partition("=")
    sent = await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id, "template": {"env": {key: value}}})
    assert sent.status_code == 201
