"""The beginning of a file that a job has left, to look at: enough to know what it is."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Literal

from app.db.engine import Database
from app.db.jobs.reads import find_state
from app.db.reading.job_records import find_artifact
from app.errors import NotFound
from app.ports.objects import ObjectStore, content_key

MOST_BYTES = 64 * 1024
_PICTURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")
Kind = Literal["text", "image", "binary"]


@dataclass(frozen=True, slots=True)
class Preview:
    """`text`: None where it is none."""

    size_bytes: int
    kind: Kind
    text: str | None
    truncated: bool


async def preview_file(database: Database, objects: ObjectStore, project_id: str, job_id: str, path: str) -> Preview:
    """Raises NotFound, and what the object store raises."""
    async with database.transaction() as connection:
        if await find_state(connection, project_id, job_id) is None:
            raise NotFound(f"there is no job {job_id!r} in this project")
        file = await find_artifact(connection, job_id, path)
    if file is None:
        raise NotFound(f"path: {job_id} has left no file {path[:200]!r}; GET /v1/jobs/{job_id}/artifacts lists them")
    data = b""
    if file.size_bytes:  # of an empty object no store gives a part
        data = await objects.get(content_key(project_id, file.sha256), start=0, end=MOST_BYTES)
    truncated = file.size_bytes > len(data)
    kind, text = look_at(data, truncated=truncated)
    return Preview(file.size_bytes, kind, text, truncated)


def look_at(data: bytes, *, truncated: bool) -> tuple[Kind, str | None]:
    """What it is by its first bytes, whatever it is called. A character that the end cuts in two is left out."""
    if data.startswith(_PICTURES) or (data[:4] == b"RIFF" and data[8:12] == b"WEBP"):
        return "image", None
    if b"\x00" in data:
        return "binary", None
    try:
        return "text", codecs.getincrementaldecoder("utf-8")().decode(data, final=not truncated)
    except UnicodeDecodeError:
        return "binary", None
