"""What both clients are made with: the connection, the addresses that no proxy is asked for, idempotency keys."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import httpx

from allpass.config import Connection, checked_url, find_connection
from allpass.errors import ConfigurationError
from allpass.http import Answer, Open, Send, httpx_timeout

DEFAULT_TIMEOUT_S = 30.0
# A proxy from the environment is never asked for this very machine. None means: the client's own transport.
NO_PROXY: Mapping[str, None] = {"all://127.0.0.1": None, "all://localhost": None, "all://[::1]": None}


def new_key() -> str:
    """A fresh idempotency key."""
    return uuid.uuid4().hex


def connection_for(url: str | None, api_key: str | None) -> Connection:
    """The one that is given, else the one that is configured."""
    if url is None and api_key is None:
        return find_connection()
    if not url or not api_key:
        missing = "api_key" if url else "url"
        raise ConfigurationError(
            f"url and api_key go together: {missing} is missing", hint=f"Client(..., {missing}=...)"
        )
    return Connection(checked_url(url, "url"), api_key, "as given")


def request_of(http: httpx.Client | httpx.AsyncClient, step: Send | Open) -> httpx.Request:
    """The step as httpx sends it."""
    method, content = (step.method, step.content) if isinstance(step, Send) else ("GET", None)
    return http.build_request(
        method, step.url, headers=dict(step.headers), content=content, timeout=httpx_timeout(step.timeout_s)
    )


def answer_of(response: httpx.Response) -> Answer:
    """A response that has been read."""
    return Answer(response.status_code, response.headers, response.content)
