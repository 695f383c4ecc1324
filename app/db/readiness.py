"""Whether the database can be worked with, asked once before anything depends on it."""

from __future__ import annotations

import asyncio

import asyncpg
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from app.errors import InvalidInput, Unavailable

_PARAM = "ALLPASS_DATABASE_URL"
_AGAIN_S = 0.5
_NOT_YET = (
    OSError,
    TimeoutError,
    asyncpg.CannotConnectNowError,
    asyncpg.ConnectionDoesNotExistError,
    asyncpg.TooManyConnectionsError,
)


async def reach_database(database_url: str, *, timeout_s: float) -> None:
    """Returns once the database answers; one that is only just starting is waited for.

    Raises Unavailable when it does not answer in time, and InvalidInput when waiting cannot help: the URL is none, or
    the user or the database is refused. No message holds the password.
    """
    try:
        url = make_url(database_url)
        port = url.port or 5432
    except (ArgumentError, ValueError):
        raise InvalidInput("is no URL of the form postgresql://user:password@host:port/name", param=_PARAM) from None
    where = f"{url.host or 'this host'}:{port}"
    last: Exception | None = None
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    return await _ask(database_url, url, where, timeout_s)
                except _NOT_YET as error:
                    last = error
                await asyncio.sleep(_AGAIN_S)
    except TimeoutError:
        reason = str(last or "") or "no answer"
        raise Unavailable(
            f"the database at {where} does not answer within {timeout_s:g} s ({reason}); start it, or correct {_PARAM}"
        ) from None


async def _ask(database_url: str, url: URL, where: str, timeout_s: float) -> None:
    try:
        connection = await asyncpg.connect(database_url, timeout=timeout_s)
    except asyncpg.InvalidAuthorizationSpecificationError as error:
        raise InvalidInput(
            f"the database at {where} refuses the user {url.username!r}: {error}", param=_PARAM
        ) from None
    except asyncpg.InvalidCatalogNameError:
        raise InvalidInput(
            f"there is no database {url.database!r} at {where}; make it with CREATE DATABASE, or name another",
            param=_PARAM,
        ) from None
    await connection.close()
