"""What the leader tidies up, and what it leaves alone."""

from __future__ import annotations

import pytest
from pydantic import SecretStr
from sqlalchemy import insert, select

from app.control import housekeeping
from app.control.housekeeping import tidy_up
from app.core.hosts import HostFailure
from app.db import tables as t
from app.db.nodes.host_failures import DatabaseHostFailures
from app.db.tables import host_failures
from app.errors import Fenced
from app.services.access.keep_secret import set_secret
from app.services.kit.seal import Sealer
from tests.control.world import World
from tests.seeds import new_id, seed_project

DAY_MS = 86_400_000


async def _note(world: World, project_id: str, *ages_ms: int) -> None:
    now_ms = world.clock.now_ms()
    common = {"project_id": project_id, "key_id": "key", "request_id": "r", "route": "POST /v1/jobs", "status": 201}
    async with world.database.transaction() as connection:
        for age_ms in ages_ms:
            await connection.execute(insert(t.audit_log).values(**common, at_ms=now_ms - age_ms, object_id=str(age_ms)))


async def _ages_left(world: World) -> list[tuple[str, str | None]]:
    return [(row.project_id, row.object_id) for row in await world.rows(t.audit_log)]


async def test_the_audit_log_keeps_what_is_not_too_old(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every project, in as many small batches as it takes; an entry that is exactly old enough to stay stays."""
    monkeypatch.setattr(housekeeping, "_ENTRIES_AT_ONCE", 2)
    world.settings.audit_retention_days = 30
    async with world.database.transaction() as connection:
        other = await seed_project(connection)
    limit_ms = 30 * DAY_MS
    await _note(world, world.project_id, *(limit_ms + extra for extra in (5, 4, 3, 2, 1)), limit_ms, 0)
    await _note(world, other, limit_ms + 1, 7)
    await tidy_up(world.control.context)
    assert sorted(await _ages_left(world)) == sorted(
        [(world.project_id, str(limit_ms)), (world.project_id, "0"), (other, "7")]
    )


async def test_sessions_are_forgotten_when_they_have_expired(world: World) -> None:
    """They opened nothing any more; the others stay."""
    now_ms = world.clock.now_ms()
    row = {
        "project_id": world.project_id,
        "scopes": ["read"],
        "created_ms": now_ms - DAY_MS,
        "used_ms": now_ms - DAY_MS,
    }
    async with world.database.transaction() as connection:
        for expires_ms in (now_ms - 1, now_ms, now_ms + 1):
            token = {"token_sha256": str(expires_ms).encode(), "expires_ms": expires_ms}
            await connection.execute(insert(t.sessions).values(row | token | {"id": new_id("sess")}))
    await tidy_up(world.control.context)
    assert [one.expires_ms for one in await world.rows(t.sessions)] == [now_ms + 1]


async def test_one_round_deletes_a_bounded_number_and_the_next_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much has gathered, a round ends; nothing is forgotten."""
    monkeypatch.setattr(housekeeping, "_ENTRIES_AT_ONCE", 2)
    monkeypatch.setattr(housekeeping, "_MOST_BATCHES", 2)
    world.settings.audit_retention_days = 1
    await _note(world, world.project_id, *(DAY_MS + extra for extra in range(6, 0, -1)))
    await tidy_up(world.control.context)
    assert len(await _ages_left(world)) == 2
    await tidy_up(world.control.context)
    assert await _ages_left(world) == []


async def test_no_retention_means_for_ever(world: World) -> None:
    """0 days switches the deletion off."""
    world.settings.audit_retention_days = 0
    await _note(world, world.project_id, 50_000 * DAY_MS // 100)
    await tidy_up(world.control.context)
    assert len(await _ages_left(world)) == 1


async def test_a_host_that_failed_is_forgotten_when_that_counts_no_more(world: World) -> None:
    """The failure of today stays, that of a week ago goes."""
    now_ms = world.clock.now_ms()
    failures = DatabaseHostFailures(world.database, "cloud")
    for age_ms in (0, 7 * DAY_MS):
        await failures.note(HostFailure("7", str(age_ms), now_ms - age_ms))
    await tidy_up(world.control.context)
    assert [row.machine for row in await world.rows(host_failures)] == ["0"]


async def test_only_the_leader_deletes(world: World) -> None:
    """A process whose term is over is fenced before anything is gone."""
    world.settings.audit_retention_days = 1
    await _note(world, world.project_id, 2 * DAY_MS)
    old = world.control
    await world.restart()
    with pytest.raises(Fenced):
        await tidy_up(old.context)
    assert len(await _ages_left(world)) == 1


async def test_secrets_of_an_earlier_key_are_sealed_anew(world: World) -> None:
    """After one round the earlier key can be taken out of the settings."""
    before, now = world.settings.secret_key.get_secret_value(), "n" * 40
    async with world.database.transaction() as connection:
        await set_secret(connection, Sealer(before), world.project_id, "HF_TOKEN", "hf_123456", now_ms=1)
    world.settings.secret_key, world.settings.earlier_secret_keys = SecretStr(now), SecretStr(before)
    await tidy_up(world.control.context)
    async with world.database.transaction() as connection:
        row = (await connection.execute(select(t.secrets))).one()
    assert Sealer(now).open(world.project_id, "HF_TOKEN", bytes(row.sealed), row.seal_key_id) == "hf_123456"
