"""API keys, secrets, and the audit log."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from allpass.wire.base import Instant, Name, Request, Response

Scope = Literal["read", "submit", "admin", "owner"]
SHORTEST_SECRET_CHARS = 6
LONGEST_SECRET_BYTES = 64 * 1024
MOST_SECRETS_PER_JOB = 20
LONGEST_SECRET_NAME = 100
_NAME = r"[A-Z_][A-Z0-9_]*"
# What the agent itself sets for user code, or the loader obeys.
_TAKEN = frozenset({"PATH", "HOME", "TMPDIR", "LANG", "PYTHONPATH", "PYTHONUNBUFFERED", "CUDA_VISIBLE_DEVICES"})
_TAKEN_PREFIXES = ("ALLPASS_", "LD_")
_REFUSED = "|".join([*(f"{name}$" for name in sorted(_TAKEN)), *_TAKEN_PREFIXES])
SECRET_NAME_PATTERN = f"^(?!{_REFUSED}){_NAME}$"  # for descriptions; `secret_name_problem` says what is wrong


def secret_name_problem(name: str) -> str | None:
    """What is wrong with the name of a secret; None for a good one. It becomes an environment variable."""
    if len(name) > LONGEST_SECRET_NAME or not re.fullmatch(_NAME, name):
        return (
            f"{name[:LONGEST_SECRET_NAME]!r} is not the name of a secret: capital letters, digits and _ "
            f"(at most {LONGEST_SECRET_NAME}, no digit first), e.g. HF_TOKEN"
        )
    if variable_is_taken(name):
        return f"{name!r} is a variable that Allpass or the system sets for your code; choose another name"
    return None


def variable_is_taken(name: str) -> bool:
    """Whether the agent itself sets this variable for user code, or the loader obeys it."""
    return name in _TAKEN or name.startswith(_TAKEN_PREFIXES)


def _checked_name(name: str) -> str:
    problem = secret_name_problem(name)
    if problem is not None:
        raise ValueError(problem)
    return name


SecretName = Annotated[
    str,
    AfterValidator(_checked_name),
    WithJsonSchema({"type": "string", "pattern": SECRET_NAME_PATTERN, "maxLength": LONGEST_SECRET_NAME}),
]


class KeyRequest(Request):
    """POST /v1/keys. `admin` includes `read` and `submit`. `owner` comes with `admin`, and makes projects and settles
    limits of the installation."""

    name: Name
    scopes: list[Scope] = Field(min_length=1, max_length=4)
    expires_at: Instant | None = Field(None, description="with its time zone; default: never")


class Key(Response):
    """What is known of a key. `prefix` is how the key itself begins; `last_used_at` is exact to about a minute."""

    id: str
    name: str
    prefix: str
    scopes: list[str]
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None


class CreatedKey(Key):
    """`key` is the key itself. It is shown in this answer and never again."""

    key: str = Field(repr=False)


class SessionRequest(Request):
    """POST /v1/session: sign a browser in with an API key."""

    api_key: str = Field(repr=False, min_length=1, max_length=200)


class Session(Response):
    """Who is signed in. `csrf_token` goes into the header X-CSRF-Token of each request that is neither GET nor HEAD;
    `expires_at` moves on as the session is used."""

    project_id: str
    project_name: str
    key_id: str
    key_name: str
    scopes: list[str]
    csrf_token: str = Field(repr=False)
    expires_at: datetime


class SecretRequest(Request):
    """PUT /v1/secrets/{name}. The value can be replaced, and never read."""

    value: str = Field(
        repr=False,
        max_length=LONGEST_SECRET_BYTES,
        description=f"{SHORTEST_SECRET_CHARS} characters to {LONGEST_SECRET_BYTES} bytes",
    )


class Secret(Response):
    """`used_by_jobs`: how many unfinished jobs name it."""

    name: str
    created_at: datetime
    changed_at: datetime
    used_by_jobs: int


class AuditEntry(Response):
    """One write that was asked for. `action` is the method and the path's template; `status` what was answered."""

    id: int
    at: datetime
    key_id: str
    action: str
    object_id: str | None = None
    request_id: str
    status: int
