"""Requests about nodes that are vacated by moves, as `allpass.calls` has the others."""

from __future__ import annotations

from urllib.parse import quote

from allpass.calls import Call
from allpass.wire import defragmentations as wire
from allpass.wire.fragmentation import Fragmentation

_PATH = "/v1/defragmentations"


def create_defragmentation(request: wire.DefragmentationRequest, *, key: str) -> Call[wire.Defragmentation]:
    return Call("POST", _PATH, wire.Defragmentation, body=request, key=key)


def list_defragmentations() -> Call[wire.Defragmentations]:
    return Call("GET", _PATH, wire.Defragmentations)


def get_defragmentation(defragmentation_id: str) -> Call[wire.Defragmentation]:
    return Call("GET", f"{_PATH}/{quote(defragmentation_id, safe='')}", wire.Defragmentation)


def cancel_defragmentation(defragmentation_id: str, *, key: str) -> Call[wire.Defragmentation]:
    return Call("POST", f"{_PATH}/{quote(defragmentation_id, safe='')}/cancel", wire.Defragmentation, key=key)


def get_fragmentation(pool: str | None) -> Call[Fragmentation]:
    return Call("GET", "/v1/fragmentation", Fragmentation, query={} if pool is None else {"pool": pool})
