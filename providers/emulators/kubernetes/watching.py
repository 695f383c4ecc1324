"""Watches: one JSON object a line, for as long as the client listens."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.requests import Request

from providers.emulators.faults import Fault
from providers.emulators.kubernetes import ways
from providers.emulators.kubernetes.answers import KubeError, expired
from providers.emulators.kubernetes.kinds import ApiKind
from providers.emulators.kubernetes.selectors import Matches
from providers.emulators.kubernetes.store import ClusterStore, ObjectChange
from providers.emulators.wire import ABORT

_USUAL_S = 1_800.0


class ObjectWatch:
    """One call. `fault`: what strikes it."""

    def __init__(
        self,
        store: ClusterStore,
        kind: ApiKind,
        namespace: str,
        matches: Matches,
        *,
        bookmark_every_ms: int,
        fault: Fault | None,
    ) -> None:
        self._store = store
        self._kind = kind
        self._namespace = namespace
        self._matches = matches
        self._bookmark_s = bookmark_every_ms / 1000
        self._fault = fault

    async def lines(self, request: Request) -> AsyncIterator[bytes]:
        """Raises nothing: what is wrong comes as an event of type ERROR."""
        asked = request.query_params
        ends = time.monotonic() + float(asked.get("timeoutSeconds") or _USUAL_S)
        with_bookmarks = asked.get("allowWatchBookmarks") in {"true", "1"}
        try:
            if self._fault is not None and self._fault.kind == ways.EXPIRED:
                raise expired()
            revision = int(asked.get("resourceVersion") or 0)
            if revision == 0:
                revision = self._store.revision
                for found in self._store.all(self._kind, self._namespace):
                    if self._matches(found):
                        yield _line("ADDED", found)
            bookmarked = time.monotonic()
            while time.monotonic() < ends:
                for change in self._store.since(revision):
                    revision = change.revision
                    told = self._told(change)
                    if told is not None:
                        yield told
                        if self._fault is not None and self._fault.kind == ways.CUT:
                            await asyncio.sleep(0.05)  # so that the event itself has left
                            request.scope[ABORT]()
                            return
                if with_bookmarks and time.monotonic() - bookmarked >= self._bookmark_s:
                    bookmarked = time.monotonic()
                    yield self._bookmark(max(revision, self._store.revision))
                await self._store.moved(min(self._bookmark_s, max(0.01, ends - time.monotonic())))
        except KubeError as error:
            yield json.dumps({"type": "ERROR", "object": error.body()}).encode() + b"\n"

    def _told(self, change: ObjectChange) -> bytes | None:
        """The event as this watch has it: what leaves its selector is deleted for it, what comes in is new."""
        if change.kind is not self._kind or self._namespace not in ("", change.namespace):
            return None
        now = change.type != "DELETED" and self._matches(change.after)
        before = change.before is not None and self._matches(change.before)
        if not now and not before:
            return None
        what = "DELETED" if not now else "MODIFIED" if before else "ADDED"
        return _line(what, change.after)

    def _bookmark(self, revision: int) -> bytes:
        told = {"kind": self._kind.kind, "apiVersion": self._kind.group_version}
        return _line("BOOKMARK", {**told, "metadata": {"resourceVersion": str(revision), "creationTimestamp": None}})


def _line(what: str, found: Mapping[str, Any]) -> bytes:
    return json.dumps({"type": what, "object": found}).encode() + b"\n"
