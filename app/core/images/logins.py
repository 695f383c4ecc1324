"""Who may fetch images from private registries."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.core.images.reference import ImageReference, parse_image
from app.errors import InvalidInput

_EXAMPLE = '{"ghcr.io/team": {"user": "robot", "password": "..."}}'
# They travel to Vast.ai as the words of one line, between which spaces and quotes would make others.
_WORD = re.compile(r"[!-~]+")
_QUOTES = frozenset("'\"\\`")
_LONGEST_WORD = 4096


@dataclass(frozen=True, slots=True)
class RegistryLogin:
    """Of one registry. The password, which may be an access token, is never shown."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class RegistryLogins:
    """By registry, or by registry and the beginning of repositories."""

    by_prefix: Mapping[str, RegistryLogin] = field(default_factory=dict)

    def of(self, image: ImageReference) -> RegistryLogin | None:
        """That of the longest prefix; None where the image is fetched without one."""
        fitting = [prefix for prefix in self.by_prefix if f"{image.name}/".startswith(f"{prefix}/")]
        return self.by_prefix[max(fitting, key=len)] if fitting else None

    def for_name(self, image: str) -> RegistryLogin | None:
        """Likewise, of an image's name as it was given; one that cannot be read is somebody else's to refuse."""
        try:
            return self.of(parse_image(image))
        except InvalidInput:
            return None


def read_logins(text: str) -> RegistryLogins:
    """From JSON such as {"ghcr.io/team": {"user": "robot", "password": "..."}}; nothing is read from empty text.

    Raises ValueError, whose words hold nothing of what was given but the names of registries.
    """
    if not text.strip():
        return RegistryLogins()
    try:
        given = json.loads(text)
    except ValueError:
        raise ValueError(f"this is not JSON; it should look like {_EXAMPLE}") from None
    if not isinstance(given, dict):
        raise ValueError(f"this is no JSON object; it should look like {_EXAMPLE}")  # noqa: TRY004
    return RegistryLogins({_prefix(name): _login(name, value) for name, value in given.items()})


def _prefix(name: str) -> str:
    host, slash, path = name.rstrip("/").partition("/")
    try:
        registry = parse_image(f"{host}/x/y").registry if _is_host(host) else ""
        repository = parse_image(f"{registry}/{path}/x").repository.removesuffix("/x") if slash else ""
    except InvalidInput:
        registry = ""
    if not registry or ":" in path or "@" in path:
        raise ValueError(f"{name!r} is no registry: take its host (ghcr.io), or host and beginning (ghcr.io/team)")
    return f"{registry}/{repository}" if slash else registry


def _is_host(host: str) -> bool:
    return "." in host or ":" in host or host == "localhost"


def _login(name: str, value: object) -> RegistryLogin:
    if not isinstance(value, dict) or set(value) != {"user", "password"}:
        raise ValueError(f"of {name!r} exactly user and password are needed; it should look like {_EXAMPLE}")
    for key, word in value.items():
        if not isinstance(word, str) or not _WORD.fullmatch(word) or _QUOTES & set(word):
            raise ValueError(f"{key} of {name!r} must be text without spaces, quotes, '\\' and '`'")
        if len(word) > _LONGEST_WORD:
            raise ValueError(f"{key} of {name!r} has more than {_LONGEST_WORD} characters")
    return RegistryLogin(value["user"], value["password"])
