"""The client that commands use, made when the first one needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allpass.client import Client


def connect() -> Client:
    """A client for the configured server. Loading it costs half a second, which help must not pay."""
    from allpass.client import Client

    return Client()
