"""Reading one version of an object from S3, piece by piece, over connections that may break. All of it blocks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Any

from botocore.exceptions import BotoCoreError

from app.errors import ObjectCorrupt, StoreUnavailable
from app.storage.s3_client import READ_BYTES, S3Client
from app.storage.s3_errors import lost_to_another, status_of

_CONTENT_RANGE = re.compile(r"bytes ([0-9]+)-([0-9]+)/(?:[0-9]+|\*)")


class Overtaken(StoreUnavailable):
    """The object was replaced while it was read: read it again."""


def read_pieces(client: S3Client, key: str, start: int, end: int | None, *, version: str = "") -> Iterator[bytes]:
    """Bytes `start` up to, not including, `end`, clipped as a slice is.

    A connection that breaks in the middle is taken up at the byte reached, of the same version (an ETag), a bounded
    number of times in a row. Raises ObjectMissing, ObjectCorrupt when the object ends early, Overtaken,
    StoreUnavailable.
    """
    reached, faults = start, 0
    while end is None or reached < end:
        answer = _open(client, key, reached, end, version)
        if answer is None:
            return
        version, end = str(answer["ETag"]), _stop(answer, key, reached)
        body = answer["Body"]
        try:
            while piece := body.read(READ_BYTES):
                reached, faults = reached + len(piece), 0
                yield piece
            if reached < end:
                raise ObjectCorrupt(f"{key!r} ended at byte {reached}, {end} were expected")
        except (BotoCoreError, OSError) as error:
            faults += 1
            if faults >= client.attempts:
                raise client.error_of(error, f"reading {key!r}") from error
        finally:
            body.close()


def read_range(client: S3Client, key: str, start: int, end: int | None) -> bytes:
    """These bytes at once. Raises as `read_pieces` does, also for an empty range of a missing object."""
    if end is not None and end <= start:
        client.call_blocking("head_object", f"looking at {key!r}", Key=client.place.object_key(key))
        return b""
    return b"".join(read_pieces(client, key, start, end))


def hash_version(client: S3Client, key: str, version: str, given_up: Callable[[], bool]) -> str:
    """The sha256 of that version of the object, in bounded memory."""
    digest = hashlib.sha256()
    for piece in read_pieces(client, key, 0, None, version=version):
        digest.update(piece)
        if given_up():
            raise StoreUnavailable("the object store is closed")
    return digest.hexdigest()


def _open(client: S3Client, key: str, start: int, end: int | None, version: str) -> Any:
    """The answer to a GET; None when the range lies behind the end of the object."""
    parameters: dict[str, Any] = {"Key": client.place.object_key(key)}
    if start or end is not None:
        parameters["Range"] = f"bytes={start}-" if end is None else f"bytes={start}-{end - 1}"
    if version:
        parameters["IfMatch"] = version
    try:
        return client.call_blocking("get_object", f"reading {key!r}", **parameters)
    except StoreUnavailable as error:
        if status_of(error) == 416:
            return None
        if lost_to_another(error):
            raise Overtaken(f"{key!r} was replaced while it was read: read it again") from error
        raise


def _stop(answer: Any, key: str, start: int) -> int:
    """The byte after the last that this answer holds."""
    told = str(answer.get("ContentRange", ""))
    found = _CONTENT_RANGE.fullmatch(told)
    if found is not None and int(found[1]) == start:
        return int(found[2]) + 1
    if start == 0 and found is None:
        return int(answer["ContentLength"])
    raise StoreUnavailable(
        f"the object store answered the range from byte {start} of {key!r} with {told or 'all of it'}"
    )
