"""Database, disk, limits and the name of the image."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import asyncpg
import pytest
from pydantic import SecretStr

from app.core import pinned
from app.core.limits import FIRST_TIME, Limits
from app.core.model.finding import Finding, Verdict
from app.core.model.money import Money
from app.doctor.host import _judge_limits, look_at_database, look_at_disk, look_at_image, look_at_limits
from app.doctor.situation import SetUpKind, Situation
from app.settings import Settings
from app.stack.layout import StackPaths


def situation(url: str, folder: Path, kind: SetUpKind = SetUpKind.SERVICE, **settings: object) -> Situation:
    made = Settings(
        database_url=SecretStr(url),
        secret_key=SecretStr("s" * 40),
        objects_signing_key=SecretStr("o" * 40),
        objects_dir=folder / "objects",
    ).model_copy(update=settings)
    return Situation(kind, made, StackPaths(folder), frozenset(), 7701)


async def test_a_database_of_this_release_is_well(database_url: str, tmp_path: Path) -> None:
    """Its version and the connections that are left are told, and the limits as for a first time."""
    here = situation(database_url, tmp_path)
    (found,) = await look_at_database(here)
    assert found.verdict is not Verdict.FAIL
    assert "connections free" in found.message
    (limits,) = await look_at_limits(here)
    assert limits.message.startswith("at most 2 machines at once, at most $10")


async def test_a_database_that_was_not_migrated_is_said(database_url: str, tmp_path: Path) -> None:
    """With the command that brings it up to date; where the server does that itself it is fine."""
    url = database_url
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("UPDATE alembic_version SET version_num = '0009'")
    finally:
        await connection.close()
    (found,) = await look_at_database(situation(url, tmp_path))
    assert (found.verdict, found.code) == (Verdict.FAIL, "database_conflict")
    assert "migrate" in found.fix
    (found,) = await look_at_database(situation(url, tmp_path, migrate_on_start=True))
    assert found.verdict is not Verdict.FAIL


async def test_a_database_that_is_none_of_ours_or_not_there_is_said(tmp_path: Path, database_url: str) -> None:
    """No password in any of it."""
    wrong_password = database_url.replace("://", "://nobody:sesame@", 1) if "@" not in database_url else database_url
    for url in ("postgresql://ada:sesame@127.0.0.1:1/none", "no url", wrong_password.rsplit("/", 1)[0] + "/absent"):
        (found,) = await look_at_database(situation(url, tmp_path))
        assert found.verdict is Verdict.FAIL
        assert "sesame" not in found.message + found.fix
    (limits,) = await look_at_limits(situation("postgresql://ada:sesame@127.0.0.1:1/none", tmp_path))
    assert limits.code == "limits_not_known"


@pytest.mark.parametrize(("free_gib", "code"), [(0.5, "disk_full"), (5.0, "disk_little"), (50.0, "ok")])
async def test_room_on_the_disk(free_gib: float, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the folder, or of what it will be made in."""
    asked = []

    def usage(path: Path) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(free=int(free_gib * 2**30))

    monkeypatch.setattr(shutil, "disk_usage", usage)
    (found,) = await look_at_disk(situation("unused", tmp_path / "not" / "there"))
    assert found.code == code
    assert asked == [tmp_path]


async def test_a_store_elsewhere_needs_no_disk(tmp_path: Path) -> None:
    (found,) = await look_at_disk(situation("unused", tmp_path, objects_store="s3"))
    assert "elsewhere" in found.message


@pytest.mark.parametrize(
    ("image", "code"),
    [
        (pinned.IMAGE, "ok"),
        ("allpass/node:latest", "image_not_published"),
        ("docker.io/allpass/node:7", "image_not_published"),
        ("you/node:1", "ok"),
        ("registry.example.com/allpass/node:1", "ok"),
        ("registry.example.com:5000/a/b@sha256:" + "0" * 64, "ok"),
        ("localhost:5000/node:1", "image_registry_private"),
        ("10.0.0.5:5000/node:1", "image_registry_private"),
    ],
)
async def test_the_name_of_the_image(image: str, code: str, tmp_path: Path) -> None:
    """Judged only where containers are rented with real money."""
    settings = situation("unused", tmp_path, node_image=image).settings
    assert [one.code for one in await look_at_image(settings, ["vast"])] == [code]
    assert [one.code for one in await look_at_image(settings, ["lambda"])] == ["ok"]
    assert [one.code for one in await look_at_image(settings, [])] == ["ok"]


@pytest.mark.parametrize(
    ("limits", "verdict"),
    [
        (FIRST_TIME, Verdict.OK),
        (Limits(None, Money(10_000_000)), Verdict.WARN),
        (Limits(2, None), Verdict.WARN),
        (Limits(20, Money(500_000_000)), Verdict.OK),
    ],
)
def test_no_limit_is_a_doubt(limits: Limits, verdict: Verdict) -> None:
    found: Finding = _judge_limits(limits)
    assert found.verdict is verdict
