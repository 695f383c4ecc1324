"""The object store port: content is named by key, verified by sha256, and reached from outside by signed URLs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    key: str
    size_bytes: int
    sha256: str


def content_prefix(project_id: str) -> str:
    """What the keys of all content of a project begin with."""
    return f"projects/{project_id}/sha256/"


def content_key(project_id: str, sha256: str) -> str:
    """Where a piece of content lives: inside its project's namespace, named by its hash."""
    return f"{content_prefix(project_id)}{sha256[:2]}/{sha256}"


class ObjectStore(Protocol):
    """Both adapters sit one conformance suite (tests/storage).

    Raises ObjectMissing, ObjectCorrupt (bytes that do not match the promised sha256 are never stored) and
    StoreUnavailable.
    """

    async def put(self, key: str, data: bytes, *, sha256: str) -> ObjectInfo: ...

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes: ...

    async def head(self, key: str) -> ObjectInfo | None: ...

    async def delete(self, key: str) -> None: ...

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]: ...

    def sign_put(self, key: str, *, sha256: str, size_bytes: int, expires_ms: int) -> str: ...

    def sign_get(self, key: str, *, expires_ms: int) -> str: ...

    async def check(self) -> str | None:
        """None when the store can be used; else one sentence on what is wrong and how to mend it. Never raises a
        StoreError."""
        ...

    async def close(self) -> None: ...
