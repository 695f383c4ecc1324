"""The objects of the cluster, each with its version, and what has lately become of them.

In memory: a cluster that is started again is a new one.
"""

from __future__ import annotations

import asyncio
import copy
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from providers.emulators.kubernetes.answers import KubeError, expired, missing, taken
from providers.emulators.kubernetes.kinds import ApiKind

KubeObject = dict[str, Any]
_MOST_REMEMBERED = 20_000


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """One event of a watch. `before` is the object as it was, None for a new one."""

    revision: int
    type: str
    kind: ApiKind
    namespace: str
    after: KubeObject
    before: KubeObject | None


class ClusterStore:
    """What is given out is a value: change a copy, and `put` it. `on_change` is called after each change."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._objects: dict[str, dict[tuple[str, str], KubeObject]] = {}
        self._changes: deque[ObjectChange] = deque(maxlen=_MOST_REMEMBERED)
        self._forgotten = 0
        self._pulse = asyncio.Event()
        self.revision = 1_000
        self.on_change: list[Callable[[ObjectChange], None]] = []

    def add(self, kind: ApiKind, given: Mapping[str, Any]) -> KubeObject:
        """A new one, with what the server adds. Raises KubeError where the name is taken."""
        made = copy.deepcopy(dict(given))
        meta = made.setdefault("metadata", {})
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + secrets.token_hex(3)[:5]
        key = (meta.get("namespace", ""), meta["name"])
        if key in self._objects.get(kind.plural, {}):
            raise taken(kind.qualified, meta["name"])
        made |= {"apiVersion": kind.group_version, "kind": kind.kind}
        meta |= {"uid": str(uuid4()), "creationTimestamp": self.stamp(), "generation": 1}
        self._write(kind, "ADDED", made, None)
        return made

    def put(self, kind: ApiKind, changed: KubeObject) -> KubeObject:
        """An object in place of the one with its name. One that is as before makes no event."""
        before = self.required(kind, changed["metadata"].get("namespace", ""), changed["metadata"]["name"])
        if before == changed:
            return before
        self._write(kind, "MODIFIED", changed, before)
        return changed

    def change(self, kind: ApiKind, found: Mapping[str, Any], alter: Callable[[KubeObject], None]) -> KubeObject | None:
        """Alter the object as it is now; None when it is gone, or another has its name."""
        meta = found["metadata"]
        now = self.get(kind, meta.get("namespace", ""), meta["name"])
        if now is None or now["metadata"]["uid"] != meta["uid"]:
            return None
        altered = copy.deepcopy(now)
        alter(altered)
        return self.put(kind, altered)

    def remove(self, kind: ApiKind, found: KubeObject) -> None:
        key = (found["metadata"].get("namespace", ""), found["metadata"]["name"])
        before = self._objects.get(kind.plural, {}).pop(key, None)
        if before is not None:
            self._write(kind, "DELETED", copy.deepcopy(before), before)

    def get(self, kind: ApiKind, namespace: str, name: str) -> KubeObject | None:
        return self._objects.get(kind.plural, {}).get((namespace, name))

    def required(self, kind: ApiKind, namespace: str, name: str) -> KubeObject:
        found = self.get(kind, namespace, name)
        if found is None:
            raise missing(kind.qualified, name)
        return found

    def all(self, kind: ApiKind, namespace: str = "") -> list[KubeObject]:
        """By name, as lists show them. Without a namespace: of all."""
        rows = self._objects.get(kind.plural, {}).items()
        return [each for (place, _), each in sorted(rows, key=lambda row: row[0]) if namespace in ("", place)]

    # -- watching

    def since(self, revision: int) -> Iterator[ObjectChange]:
        """What changed after this version. Raises KubeError (410) where that is not known any more."""
        if revision < self._forgotten:
            raise expired()
        return (change for change in list(self._changes) if change.revision > revision)

    async def moved(self, timeout_s: float) -> None:
        """Wait for the next change, or for that long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._pulse.wait()
        except TimeoutError:
            return

    def forget(self) -> None:
        """As a compaction does: nobody can go on from any version before now, and who watches hears so."""
        self.revision += 1
        self._changes.clear()
        self._forgotten = self.revision
        self._wake()

    def stamp(self, at_ms: int | None = None) -> str:
        """A moment as objects tell it, in whole seconds."""
        moment = datetime.fromtimestamp((self._now_ms() if at_ms is None else at_ms) // 1000, UTC)
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")

    def _write(self, kind: ApiKind, what: str, after: KubeObject, before: KubeObject | None) -> None:
        meta = after["metadata"]
        self.revision += 1
        meta["resourceVersion"] = str(self.revision)
        if what == "MODIFIED" and before is not None and before.get("spec") != after.get("spec"):
            meta["generation"] = int(meta.get("generation", 1)) + 1
        namespace = meta.get("namespace", "")
        if what != "DELETED":
            self._objects.setdefault(kind.plural, {})[namespace, meta["name"]] = after
        if len(self._changes) == self._changes.maxlen:
            self._forgotten = self._changes[0].revision
        change = ObjectChange(self.revision, what, kind, namespace, after, before)
        self._changes.append(change)
        self._wake()
        for listener in self.on_change:
            listener(change)

    def _wake(self) -> None:
        self._pulse.set()
        self._pulse = asyncio.Event()


def check_version(found: KubeObject, wanted: Any) -> None:
    """Raises KubeError (409) for a write that goes by an older version."""
    if wanted is not None and str(wanted) != found["metadata"]["resourceVersion"]:
        message = "the object has been modified; please apply your changes to the latest version and try again"
        raise KubeError(409, f'Operation cannot be fulfilled on "{found["metadata"]["name"]}": {message}')


def parse_ms(stamp: str) -> int:
    return round(datetime.fromisoformat(stamp).timestamp() * 1000)
