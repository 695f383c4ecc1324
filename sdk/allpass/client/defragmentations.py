"""The clients' methods about nodes that are vacated by moves."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from allpass import defrag_calls
from allpass.client.awaited import Awaited
from allpass.client.blocking import Blocking
from allpass.client.setup import new_key
from allpass.errors import InvalidInput
from allpass.wire.defragmentations import Defragmentation, DefragmentationRequest
from allpass.wire.fragmentation import Fragmentation


class DefragMethods(Blocking):
    """Of `Client`. All but `fragmentation` need a key with scope `owner`."""

    def fragmentation(self, *, pool: str | None = None) -> Fragmentation:
        """How many requests of usual sizes would fit on hosts of pools now, and what blocks the rest."""
        return self._call(defrag_calls.get_fragmentation(pool))

    def defragment(self, **asked: Any) -> Defragmentation:
        """Have nodes vacated by moves. `asked`: goal ("pools", or "rent"), pool, dry_run, max_moves."""
        return self._call(defrag_calls.create_defragmentation(_read(asked), key=new_key()))

    def list_defragmentations(self) -> list[Defragmentation]:
        """Those of 30 days, newest first; at most 100."""
        return self._call(defrag_calls.list_defragmentations()).items

    def get_defragmentation(self, defragmentation_id: str) -> Defragmentation:
        """NotFound if there is none."""
        return self._call(defrag_calls.get_defragmentation(defragmentation_id))

    def cancel_defragmentation(self, defragmentation_id: str) -> Defragmentation:
        """No more of its moves begin."""
        return self._call(defrag_calls.cancel_defragmentation(defragmentation_id, key=new_key()))


class AsyncDefragMethods(Awaited):
    """As `DefragMethods`, of `AsyncClient`."""

    async def fragmentation(self, *, pool: str | None = None) -> Fragmentation:
        """As `Client.fragmentation`."""
        return await self._call(defrag_calls.get_fragmentation(pool))

    async def defragment(self, **asked: Any) -> Defragmentation:
        """Have nodes vacated by moves. `asked`: goal ("pools", or "rent"), pool, dry_run, max_moves."""
        return await self._call(defrag_calls.create_defragmentation(_read(asked), key=new_key()))

    async def list_defragmentations(self) -> list[Defragmentation]:
        """Those of 30 days, newest first; at most 100."""
        return (await self._call(defrag_calls.list_defragmentations())).items

    async def get_defragmentation(self, defragmentation_id: str) -> Defragmentation:
        """NotFound if there is none."""
        return await self._call(defrag_calls.get_defragmentation(defragmentation_id))

    async def cancel_defragmentation(self, defragmentation_id: str) -> Defragmentation:
        """No more of its moves begin."""
        return await self._call(defrag_calls.cancel_defragmentation(defragmentation_id, key=new_key()))


def _read(asked: dict[str, Any]) -> DefragmentationRequest:
    try:
        return DefragmentationRequest.model_validate({"goal": "pools", **asked})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "defragment"
        hint = 'defragment(goal="rent", dry_run=True)'
        raise InvalidInput(f"{name}: {first['input']!r:.80} is refused: {first['msg']}", hint=hint) from None
