"""Secrets: written, listed by name, given to runs, and never read."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import SecretStr
from sqlalchemy import select, update

from app.api.context import ApiContext
from app.core.model.job import JobState
from app.db.access.secrets import sealed_secrets
from app.db.tables import audit_log, job_events, jobs, metadata, secrets
from app.services.access.keep_secret import MOST_SECRETS, open_secrets
from app.services.access.reseal_secrets import reseal_secrets
from app.services.kit.seal import Sealer
from tests.api.conftest import Tenant, error_of
from tests.conftest import ManualClock

TOKEN = "hf_0123456789abcdef"
WHERE = "/v1/secrets/HF_TOKEN"


def sealer(context: ApiContext) -> Sealer:
    return Sealer(context.settings.secret_key.get_secret_value())


async def put(tenant: Tenant, name: str = "HF_TOKEN", value: str = TOKEN) -> dict[str, Any]:
    answer = await tenant.http.put(f"/v1/secrets/{name}", json={"value": value})
    assert answer.status_code == 200, answer.text
    stored: dict[str, Any] = answer.json()
    return stored


async def submit(tenant: Tenant, *names: str, **headers: str) -> Any:
    body = {"app_id": tenant.app_id, "template": {"secrets": list(names)}}
    return await tenant.http.post("/v1/jobs", json=body, headers=headers)


async def test_a_secret_is_set_listed_and_never_told(
    tenant: Tenant, context: ApiContext, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its name and times can be read; its value is in no answer, no log line and no row of any table."""
    caplog.set_level(logging.DEBUG)
    first = await put(tenant)
    clock.advance(s=5)
    second = await put(tenant, value=TOKEN + "2")
    assert first["created_at"] == second["created_at"] == first["changed_at"] < second["changed_at"]
    (shown,) = (await tenant.http.get("/v1/secrets")).json()["data"]
    assert shown == {**second, "name": "HF_TOKEN", "used_by_jobs": 0}
    assert set(shown) == {"name", "created_at", "changed_at", "used_by_jobs"}
    error_of(await tenant.http.get(WHERE), 405, "method_not_allowed")
    assert TOKEN not in caplog.text
    async with context.database.transaction() as connection:
        for table in metadata.sorted_tables:
            assert TOKEN not in repr((await connection.execute(select(table))).all())
        opened = await open_secrets(connection, sealer(context), tenant.project_id, ["HF_TOKEN", "OTHER"])
    assert opened == {"HF_TOKEN": TOKEN + "2"}


@pytest.mark.parametrize(
    "name",
    [
        "hf_token",
        "1X",
        "HF-TOKEN",
        "ALLPASS_JOB_ID",
        "PATH",
        "LD_PRELOAD",
        "CUDA_VISIBLE_DEVICES",
        "Ä",
        "A" * 101,
        "A ",
    ],
)
async def test_names_are_those_of_free_environment_variables(tenant: Tenant, name: str) -> None:
    """Everything else is refused, naming it; in a template too."""
    answer = await tenant.http.put(f"/v1/secrets/{name}", json={"value": TOKEN})
    assert error_of(answer, 422, "invalid_input")["param"] == "name"
    refused = error_of(await submit(tenant, name), 422, "invalid_input")
    assert refused["param"] == "template.secrets[0]"


@pytest.mark.parametrize(
    "value", ["", "short", "      ", "x" * 65_537, "ü" * 32_769, 123456, ["hf_very_private"], {"a": "hf_very_private"}]
)
async def test_a_value_that_cannot_be_kept_is_refused_unseen(tenant: Tenant, value: Any) -> None:
    """Too short to be found in a log, too long, or no text: 422, without repeating what was sent."""
    error = error_of(await tenant.http.put(WHERE, json={"value": value}), 422, "invalid_input")
    assert error["param"] == "value"
    assert "hf_very_private" not in error["message"]
    assert "123456" not in error["message"]
    assert (await tenant.http.get("/v1/secrets")).json()["data"] == []


async def test_the_longest_value_is_kept_to_the_byte(tenant: Tenant, context: ApiContext) -> None:
    """64 KiB of UTF-8, with line ends and quotes."""
    value = "ü\n'\"" * 13_107 + "x"
    assert len(value.encode()) == 65_536
    await put(tenant, value=value)
    async with context.database.transaction() as connection:
        opened = await open_secrets(connection, sealer(context), tenant.project_id, ["HF_TOKEN"])
    assert opened["HF_TOKEN"] == value


async def test_a_job_may_only_name_secrets_that_exist(tenant: Tenant, stranger: Tenant) -> None:
    """422 at submit, naming what is missing; another project's secret is missing too."""
    await put(stranger, "WANDB_KEY")
    await put(tenant)
    error = error_of(await submit(tenant, "HF_TOKEN", "WANDB_KEY", "A_KEY"), 422, "invalid_input")
    assert error["param"] == "template.secrets"
    assert "no secret A_KEY, WANDB_KEY" in error["message"]
    accepted = await submit(tenant, "HF_TOKEN")
    assert accepted.status_code == 201
    assert accepted.json()["template"]["secrets"] == ["HF_TOKEN"]
    error_of(await submit(tenant, *(f"S{number}" for number in range(21))), 422, "invalid_input")


async def test_a_repeated_submit_gets_its_answer_though_the_secret_is_gone(tenant: Tenant) -> None:
    """What was accepted stays accepted."""
    await put(tenant)
    first = await submit(tenant, "HF_TOKEN", **{"Idempotency-Key": "one"})
    assert (await tenant.http.delete(WHERE)).status_code == 200
    again = await submit(tenant, "HF_TOKEN", **{"Idempotency-Key": "one"})
    assert (again.status_code, again.json()) == (201, first.json())


async def test_use_is_counted_by_unfinished_job(tenant: Tenant, context: ApiContext) -> None:
    """Ended jobs and jobs that name other secrets, or none, do not count; naming it twice is once."""
    await put(tenant)
    await put(tenant, "WANDB_KEY")
    ids = [(await submit(tenant, *names)).json()["id"] for names in (["HF_TOKEN"], ["HF_TOKEN", "HF_TOKEN"], [])]
    await submit(tenant, "HF_TOKEN", "WANDB_KEY")
    async with context.database.transaction() as connection:
        await connection.execute(update(jobs).where(jobs.c.id == ids[0]).values(state=JobState.SUCCEEDED))
        await connection.execute(update(jobs).where(jobs.c.id == ids[2]).values(template={}))
    shown = (await tenant.http.get("/v1/secrets")).json()["data"]
    assert [(one["name"], one["used_by_jobs"]) for one in shown] == [("HF_TOKEN", 2), ("WANDB_KEY", 1)]


async def test_a_secret_is_deleted_at_once(tenant: Tenant, stranger: Tenant) -> None:
    """Also when jobs need it: the answer says how many; then it is gone, and only in its own project."""
    await put(tenant)
    await put(stranger)
    await submit(tenant, "HF_TOKEN")
    gone = await tenant.http.delete(WHERE)
    assert (gone.status_code, gone.json()["used_by_jobs"]) == (200, 1)
    error_of(await tenant.http.delete(WHERE), 404, "not_found")
    assert len((await stranger.http.get("/v1/secrets")).json()["data"]) == 1


async def test_secrets_come_in_pages_by_name(tenant: Tenant) -> None:
    """Each once."""
    for name in ("B_KEY", "A_KEY", "C_KEY"):
        await put(tenant, name)
    first = (await tenant.http.get("/v1/secrets", params={"limit": 2})).json()
    rest = (await tenant.http.get("/v1/secrets", params={"limit": 2, "cursor": first["next_cursor"]})).json()
    assert [one["name"] for one in first["data"] + rest["data"]] == ["A_KEY", "B_KEY", "C_KEY"]
    assert rest["next_cursor"] is None


async def test_a_project_has_a_bounded_number_of_secrets(tenant: Tenant, context: ApiContext) -> None:
    """One more is a conflict; replacing one is not one more."""
    row = {"project_id": tenant.project_id, "sealed": b"", "seal_key_id": "x", "created_ms": 1, "changed_ms": 1}
    async with context.database.transaction() as connection:
        await connection.execute(secrets.insert(), [{**row, "name": f"S{index}"} for index in range(MOST_SECRETS)])
    error_of(await tenant.http.put(WHERE, json={"value": TOKEN}), 409, "conflict")
    await put(tenant, "S1")


async def test_a_value_opens_only_in_its_own_row(tenant: Tenant, stranger: Tenant, context: ApiContext) -> None:
    """Copied to another name or project, altered, or under another key, it opens nothing, and nobody else suffers."""
    await put(tenant)
    await put(tenant, "GOOD_KEY", "good value")
    async with context.database.transaction() as connection:
        (row,) = await sealed_secrets(connection, tenant.project_id, ["HF_TOKEN"])
        copy = {"sealed": row.sealed, "seal_key_id": row.seal_key_id, "created_ms": 1, "changed_ms": 1}
        altered = {**copy, "sealed": row.sealed[:-1] + bytes([row.sealed[-1] ^ 1])}
        await connection.execute(
            secrets.insert(),
            [
                {"project_id": tenant.project_id, "name": "MOVED", **copy},
                {"project_id": stranger.project_id, "name": "HF_TOKEN", **copy},
                {"project_id": tenant.project_id, "name": "ALTERED", **altered},
                {"project_id": tenant.project_id, "name": "OLD_KEY", **copy, "seal_key_id": "s1-other"},
            ],
        )
        everything = ["HF_TOKEN", "MOVED", "ALTERED", "OLD_KEY", "GOOD_KEY"]
        mine = await open_secrets(connection, sealer(context), tenant.project_id, everything)
        theirs = await open_secrets(connection, sealer(context), stranger.project_id, everything)
        after_a_change = await open_secrets(connection, Sealer("another key" * 4), tenant.project_id, everything)
    assert mine == {"HF_TOKEN": TOKEN, "GOOD_KEY": "good value"}
    assert theirs == {}
    assert after_a_change == {}


async def test_a_new_key_takes_over_and_the_old_one_can_be_given_up(
    tenant: Tenant, stranger: Tenant, context: ApiContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the old key among the earlier ones everything opens, is sealed anew, and then opens without it; its owner
    sees no change."""
    monkeypatch.setattr("app.services.access.reseal_secrets._AT_ONCE", 2)
    names = [f"TOKEN_{number}" for number in range(5)]
    stored = [await put(tenant, name, f"value of {name}") for name in names]
    await put(stranger)
    old = context.settings.secret_key.get_secret_value()
    settings = context.settings.model_copy(
        update={"secret_key": SecretStr("n" * 32), "earlier_secret_keys": SecretStr(f"{'o' * 32} {old}")}
    )
    both, new = Sealer.of(settings), Sealer("n" * 32)
    assert await opened_by(both, context, tenant, names) == {name: f"value of {name}" for name in names}
    assert await opened_by(new, context, tenant, names) == {}
    assert await reseal_secrets(context.database, both) == 6
    assert await reseal_secrets(context.database, both) == 0
    assert await opened_by(new, context, tenant, names) == {name: f"value of {name}" for name in names}
    assert await opened_by(new, context, stranger, ["HF_TOKEN"]) == {"HF_TOKEN": TOKEN}
    assert (await tenant.http.get("/v1/secrets")).json()["data"] == stored


async def test_a_key_that_nobody_named_is_told_with_the_setting_that_mends_it(
    tenant: Tenant, context: ApiContext, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is lost: the secret stays as it is, and the log says which setting opens it again."""
    await put(tenant)
    wrong = Sealer("w" * 32, ["x" * 32])
    assert await opened_by(wrong, context, tenant, ["HF_TOKEN"]) == {}
    assert "ALLPASS_EARLIER_SECRET_KEYS" in caplog.text
    assert sealer(context).key_id in caplog.text
    assert await reseal_secrets(context.database, wrong) == 0
    assert await opened_by(sealer(context), context, tenant, ["HF_TOKEN"]) == {"HF_TOKEN": TOKEN}


async def test_an_altered_secret_does_not_stop_the_others_from_being_sealed_anew(
    tenant: Tenant, context: ApiContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is named in the log and left as it is."""
    monkeypatch.setattr("app.services.access.reseal_secrets._AT_ONCE", 1)
    await put(tenant, "ALTERED")
    await put(tenant, "GOOD_KEY", "good value")
    async with context.database.transaction() as connection:
        await connection.execute(update(secrets).where(secrets.c.name == "ALTERED").values(sealed=b"x" * 40))
    both = Sealer("n" * 32, [context.settings.secret_key.get_secret_value()])
    assert await reseal_secrets(context.database, both) == 1
    assert "ALTERED" in caplog.text
    assert "good value" not in caplog.text
    assert await opened_by(Sealer("n" * 32), context, tenant, ["ALTERED", "GOOD_KEY"]) == {"GOOD_KEY": "good value"}


async def opened_by(box: Sealer, context: ApiContext, tenant: Tenant, names: list[str]) -> dict[str, str]:
    async with context.database.transaction() as connection:
        return await open_secrets(connection, box, tenant.project_id, names)


async def test_sealing_twice_gives_different_bytes(context: ApiContext) -> None:
    """Nobody can tell from the rows that two projects have the same value."""
    box = sealer(context)
    assert box.seal("proj_1", "HF_TOKEN", TOKEN) != box.seal("proj_1", "HF_TOKEN", TOKEN)
    assert Sealer("s" * 32).key_id == box.key_id != Sealer("t" * 32).key_id


async def test_events_and_the_audit_log_name_secrets_at_most(api: FastAPI, tenant: Tenant, context: ApiContext) -> None:
    """The name is an object of the audit log; the value is nowhere."""
    await put(tenant)
    await submit(tenant, "HF_TOKEN")
    async with context.database.transaction() as connection:
        noted = (await connection.execute(select(audit_log).order_by(audit_log.c.id))).all()
        events = (await connection.execute(select(job_events))).all()
    assert (noted[0].route, noted[0].object_id, noted[0].status) == ("PUT /v1/secrets/{name}", "HF_TOKEN", 200)
    assert TOKEN not in repr(noted) + repr(events)
    assert "value" not in str(api.openapi()["components"]["schemas"]["Secret"]["properties"])
