"""The one-machine stack on data of another release: told in one sentence, left as it is, and taken back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from app.db.migrate import upgrade
from app.db.schema import revisions
from app.errors import Conflict
from app.stack import downgrade
from app.stack.layout import StackPaths
from app.stack.postgres import EmbeddedPostgres
from app.stack.supervisor import Stack, StackOptions

NEWEST = revisions()[-1]


def ask(url: str, statement: str) -> object:
    async def run() -> object:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    return asyncio.run(run())


@pytest.fixture
def kept(tmp_path: Path) -> StackPaths:
    """A data directory with a database at this release's revision; nothing runs."""
    layout = StackPaths(tmp_path / "data")
    layout.create()
    server = EmbeddedPostgres(layout.postgres)
    server.start()
    upgrade(server.url())
    server.stop()
    return layout


def within(layout: StackPaths, statement: str) -> object:
    """Ask the directory's own database."""
    server = EmbeddedPostgres(layout.postgres)
    server.start()
    try:
        return ask(server.url(), statement)
    finally:
        server.stop()


def files(layout: StackPaths) -> dict[str, bytes]:
    """What the stack keeps beside the files of PostgreSQL, its lock and its log."""
    apart = ("postgres", "lock")
    found = [path for path in layout.root.rglob("*") if path.is_file()]
    names = {path.relative_to(layout.root).as_posix(): path for path in found}
    return {name: path.read_bytes() for name, path in names.items() if not name.startswith(apart)}


def test_up_on_data_of_a_newer_release_says_so_and_changes_nothing(kept: StackPaths) -> None:
    """No child is started, no file is written, the schema stays; afterwards nothing holds the directory."""
    layout, newer = kept, "9999"
    layout.agent.write_bytes(b"the agent of the newer release")
    within(layout, f"UPDATE alembic_version SET version_num = '{newer}'")
    before = files(layout)
    stack = Stack(StackOptions(data_dir=layout.root, port=0), tell=print)
    with pytest.raises(Conflict, match=f"at revision {newer}, of a newer release than this one") as caught:
        stack.start()
    assert "\n" not in caught.value.message
    assert stack.children == {}
    assert files(layout) == before
    layout.lock().close()
    assert within(layout, "SELECT version_num FROM alembic_version") == newer


def test_the_data_of_one_machine_is_taken_back_by_a_command(
    kept: StackPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 0, and the database is at the revision of the earlier release; while another one has the directory, or
    for a directory without data, one line and no change."""
    with kept.lock():
        assert downgrade.main([str(kept.root), "0014"]) == 1
    assert "in use by another Allpass" in capsys.readouterr().err
    assert downgrade.main([str(kept.root), "0013"]) == 0
    assert within(kept, "SELECT version_num FROM alembic_version") == "0013"
    for wrong in ([str(kept.root)], [str(kept.root), "9999"], [str(kept.root / "nowhere"), "0013"]):
        assert downgrade.main(wrong) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (kept.root / "nowhere").exists()
