"""Checkpoints of very many files at the server: two rows and a few pieces, and everything that others can do."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

from sqlalchemy import event, func, select

from app.db.checkpoints.garbage import delete_files
from app.db.tables import checkpoint_files, checkpoint_listings, checkpoint_pieces, checkpoints
from tests.services.agents.conftest import Place, Stage, sha
from tests.services.agents.test_checkpoints import LOST, commit, end

COUNT = 100_000
READS = {"reads": ["listing"]}


def listing(files: list[tuple[str, int]], *pieces: bytes) -> dict[str, Any]:
    packed = base64.b64encode(zlib.compress(json.dumps(files).encode())).decode()
    return {"files": packed, "pieces": [{"sha256": sha(piece), "size_bytes": len(piece)} for piece in pieces]}


async def open_listed(stage: Stage, place: Place, step: int, told: dict[str, Any], **more: Any) -> Any:
    body = {**place.writer(), "step": step, "files": [], "listing": told, **more}
    return await stage.post(place, "/checkpoints", body)


async def save_listed(stage: Stage, place: Place, files: list[tuple[str, int]], *pieces: bytes) -> str:
    opened = await open_listed(stage, place, 40, listing(files, *pieces))
    assert opened.status_code == 200, opened.text
    assert set(opened.json()["urls"]) == {sha(piece) for piece in pieces}
    for piece in pieces:
        await stage.store(place, piece)
    checkpoint_id: str = opened.json()["checkpoint_id"]
    assert (await commit(stage, place, checkpoint_id)).status_code == 200
    return checkpoint_id


async def resume(stage: Stage, place: Place, host: dict[str, Any]) -> dict[str, Any]:
    (run,) = (await stage.sync(place, host=host)).json()["runs"]
    found: dict[str, Any] = run["spec"]["resume"]
    return found


async def test_100_000_files_take_as_many_rows_and_statements_as_one(stage: Stage) -> None:
    """Opened, opened again, committed, and told to the next run's agent, in one compressed list."""
    place = await stage.running()
    files = [(f"shard-{number % 100}/part-{number}", 100) for number in range(COUNT)]
    pieces = [bytes([number]) * 1_000_000 for number in range(10)]
    statements = 0

    def count(*_: Any) -> None:
        nonlocal statements
        statements += 1

    event.listen(stage.database._engine.sync_engine, "before_cursor_execute", count)
    checkpoint_id = await save_listed(stage, place, files, *pieces)
    assert statements < 60
    again = await open_listed(stage, place, 40, listing(files, *pieces))
    assert again.json() == {"checkpoint_id": checkpoint_id, "urls": {}, "part": False}
    rows = [len(await stage.rows(table)) for table in (checkpoint_files, checkpoint_listings, checkpoint_pieces)]
    assert rows == [1, 1, 10]
    assert (await stage.row(checkpoints, checkpoint_id)).size_bytes == 10_000_000
    await end(stage, place, LOST)
    told = await resume(stage, await stage.next_run(place), READS)
    assert (told["step"], told["files"]) == (40, [])
    assert told["listing"] == listing(files, *pieces)
    assert len(json.dumps(told)) < 2_000_000


async def test_an_agent_of_an_older_release_is_told_every_file(stage: Stage) -> None:
    """It would restore half a checkpoint if it were told a list that it does not know."""
    place = await stage.running()
    await save_listed(stage, place, [("b", 3), ("a", 4), ("empty", 0)], b"12345", b"67")
    await end(stage, place, LOST)
    told = await resume(stage, await stage.next_run(place), {})
    assert told["listing"] is None
    assert told["files"] == [
        {
            "path": "a",
            "size_bytes": 4,
            "sha256": None,
            "pieces": [
                {"sha256": sha(b"12345"), "size_bytes": 5, "start": 3, "length": 2},
                {"sha256": sha(b"67"), "size_bytes": 2, "start": 0, "length": 2},
            ],
        },
        {
            "path": "b",
            "size_bytes": 3,
            "sha256": None,
            "pieces": [{"sha256": sha(b"12345"), "size_bytes": 5, "start": 0, "length": 3}],
        },
        {"path": "empty", "size_bytes": 0, "sha256": None, "pieces": []},
    ]


async def test_what_is_wrong_with_a_listing_is_named(stage: Stage) -> None:
    """As the field that is wrong; nothing is written."""
    place = await stage.running()
    good = listing([("a", 1)], b"1")
    wrong = [
        (good | {"files": "no base64!"}, {}, "listing.files"),
        (good | {"files": base64.b64encode(b"no zlib").decode()}, {}, "listing.files"),
        (listing([("../a", 1)], b"1"), {}, "files[0].path"),
        (listing([("a", 2)], b"1"), {}, "listing.pieces"),
        (good, {"files": [{"path": "b", "sha256": sha(b"1"), "size_bytes": 1}]}, "files"),
    ]
    for told, more, param in wrong:
        refused = await open_listed(stage, place, 1, told, **more)
        assert (refused.status_code, refused.json()["error"]["param"]) == (422, param), refused.text
    neither = await stage.post(place, "/checkpoints", {**place.writer(), "step": 1, "files": []})
    assert (neither.status_code, neither.json()["error"]["param"]) == (422, "files")
    assert await stage.rows(checkpoints) == []


async def test_the_list_goes_with_the_checkpoint(stage: Stage) -> None:
    """When it will never be used again."""
    place = await stage.running()
    opened = await open_listed(stage, place, 1, listing([("a", 1)], b"1"))
    assert opened.status_code == 200
    await end(stage, place, LOST)
    async with stage.database.transaction() as connection:
        assert await delete_files(connection, before_ms=stage.clock.ms + 1, most=10) == 1
        left = await connection.execute(select(func.count()).select_from(checkpoint_listings))
        assert left.scalar_one() == 0
