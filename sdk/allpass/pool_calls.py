"""Requests about pools of one's own machines, as `allpass.calls` has the others."""

from __future__ import annotations

from urllib.parse import quote

from allpass.calls import PAGE_LIMIT, Call
from allpass.errors import InvalidInput
from allpass.wire import pools
from allpass.wire.base import Page


def list_pools(cursor: str | None = None) -> Call[Page[pools.Pool]]:
    query: dict[str, str | int] = {"limit": PAGE_LIMIT, **({} if cursor is None else {"cursor": cursor})}
    return Call("GET", "/v1/pools", Page[pools.Pool], query=query)


def get_pool(name: str) -> Call[pools.Pool]:
    return Call("GET", _pool(name), pools.Pool)


def create_pool(request: pools.PoolRequest, *, key: str) -> Call[pools.Pool]:
    return Call("POST", "/v1/pools", pools.Pool, body=request, key=key)


def change_pool(name: str, request: pools.PoolChange) -> Call[pools.Pool]:
    return Call("PATCH", _pool(name), pools.Pool, body=request)


def remove_pool(name: str) -> Call[pools.Pool]:
    return Call("DELETE", _pool(name), pools.Pool)


def create_pool_token(name: str, request: pools.PoolTokenRequest, *, key: str) -> Call[pools.PoolToken]:
    return Call("POST", f"{_pool(name)}/tokens", pools.PoolToken, body=request, key=key)


def drain_pool(name: str, request: pools.DrainRequest, *, key: str) -> Call[pools.Pool]:
    return Call("POST", f"{_pool(name)}/drain", pools.Pool, body=request, key=key)


def undrain_pool(name: str, request: pools.UndrainRequest, *, key: str) -> Call[pools.Pool]:
    return Call("POST", f"{_pool(name)}/undrain", pools.Pool, body=request, key=key)


def forget_host(name: str, host: str) -> Call[pools.PoolHost]:
    return Call("DELETE", f"{_pool(name)}/hosts/{_segment(host, 'host')}", pools.PoolHost)


def change_host(name: str, host: str, request: pools.HostChange) -> Call[pools.PoolHost]:
    return Call("PATCH", f"{_pool(name)}/hosts/{_segment(host, 'host')}", pools.PoolHost, body=request)


def _pool(name: str) -> str:
    return f"/v1/pools/{_segment(name, 'pool')}"


def _segment(value: str, noun: str) -> str:
    """A name as one path segment: it can never reach another path."""
    if not isinstance(value, str) or not value.strip() or value in (".", ".."):
        raise InvalidInput(f"{noun}: {value!r} is not the name of one", hint="allpass pool list")
    return quote(value.strip(), safe="")
