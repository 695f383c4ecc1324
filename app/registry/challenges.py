"""How a registry wants to be asked: with a token of its own service, or with the login itself."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from contextlib import suppress

import httpx

from app.core.images.logins import RegistryLogin

_PARAMETER = re.compile(r'([a-z]+)="([^"]*)"', re.IGNORECASE)
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def authorization(http: httpx.Client, challenge: str, scope: str, login: RegistryLogin | None) -> str | None:
    """The header to ask with; None where there is none to be had. Raises what `http` raises.

    A login is sent to a token service over an encrypted line, or on this very host, and else not at all.
    """
    scheme, _, rest = challenge.partition(" ")
    if scheme.lower() == "basic":
        return None if login is None else _basic(login)
    told = {name.lower(): value for name, value in _PARAMETER.findall(rest)}
    realm = told.get("realm", "")
    if scheme.lower() != "bearer" or not _is_safe(realm):
        return None
    query = {"service": told["service"]} if "service" in told else {}
    headers = {} if login is None else {"Authorization": _basic(login)}
    response = http.get(realm, params={**query, "scope": told.get("scope", scope)}, headers=headers)
    if not response.is_success:
        return None
    with suppress(ValueError, AttributeError):
        answer = json.loads(response.content)
        token = answer.get("token") or answer.get("access_token")
        if isinstance(token, str) and token.isascii() and token.isprintable():
            return f"Bearer {token}"
    return None


def _is_safe(realm: str) -> bool:
    with suppress(httpx.InvalidURL):
        url = httpx.URL(realm)
        return url.scheme == "https" or (url.scheme == "http" and url.host in _LOOPBACK)
    return False


def _basic(login: RegistryLogin) -> str:
    return "Basic " + b64encode(f"{login.user}:{login.password}".encode()).decode()
