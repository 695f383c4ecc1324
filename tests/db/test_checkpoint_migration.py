"""Checkpoints from before they were stored in pieces."""

from __future__ import annotations

import asyncio

import asyncpg

from app.core.model.checkpoint import SavedFile
from app.db.checkpoints.manifests import files_of
from app.db.engine import Database, make_engine
from app.db.migrate import upgrade
from tests.databases import Databases

BEFORE = "0007"
FILES = {"adapter/model": ("a" * 64, 70_000_000_000), "state": ("b" * 64, 3), "empty": ("c" * 64, 0)}
_CHECKPOINT = """
INSERT INTO checkpoints (id, project_id, job_id, run_id, epoch, step, state, manifest_sha256, size_bytes, opened_ms)
VALUES ('ckpt_1', 'proj_1', 'job_1', 'run_1', 1, 40, 'committed', 'm', 3, 1)
"""


def test_checkpoints_of_the_old_form_stay_readable(databases: Databases) -> None:
    """Each file is one piece of its own afterwards, however large it is."""
    url = databases.make()
    upgrade(url, BEFORE)
    asyncio.run(_fill(url))
    upgrade(url)
    assert asyncio.run(_read(url)) == {
        path: SavedFile.whole(path, sha256, size_bytes) for path, (sha256, size_bytes) in FILES.items()
    }


async def _fill(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("SET session_replication_role = replica")  # the job and all around it do not matter
        await connection.execute(_CHECKPOINT)
        for path, (sha256, size_bytes) in FILES.items():
            await connection.execute(
                "INSERT INTO checkpoint_files (checkpoint_id, path, sha256, size_bytes) VALUES ('ckpt_1', $1, $2, $3)",
                path,
                sha256,
                size_bytes,
            )
    finally:
        await connection.close()


async def _read(url: str) -> dict[str, SavedFile]:
    database = Database(make_engine(url, pool_size=1, timeout_s=10.0))
    async with database.transaction() as connection:
        files = await files_of(connection, "ckpt_1")
    await database.close()
    return {file.path: file for file in files}
