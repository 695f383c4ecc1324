"""Bring a database to the schema of this release, or back to an earlier one.

Each migration is a transaction of its own: one that fails leaves the database at the revision before it. A migration
waits for nobody's lock for longer than a moment, since everybody who comes later would wait behind it; it gives up its
turn and tries again. Of several processes that begin at once, one migrates and the others wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import asyncpg
from alembic import command
from alembic.config import Config
from sqlalchemy.exc import DBAPIError

from app.db.engine import as_asyncpg_url
from app.db.schema import MIGRATIONS, check_standing, read_standing, revisions
from app.errors import Conflict, InvalidInput, Unavailable

log = logging.getLogger(__name__)

WAIT_S = 600.0
_TURN = 7_226_001  # any number that nothing else locks
_AGAIN_S = 0.5
_BUSY = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)


def upgrade(database_url: str, revision: str = "head", *, wait_s: float = WAIT_S) -> None:
    """Run all missing migrations. Blocking.

    Raises Conflict when the database is not this release's to migrate, or a migration fails, and Unavailable when
    others keep it busy for `wait_s`.
    """
    asyncio.run(_migrate(database_url, revision, wait_s, back=False))


def downgrade(database_url: str, revision: str, *, wait_s: float = WAIT_S) -> None:
    """Take the schema back to `revision`; what later ones have added is lost. Blocking. Raises as `upgrade` does, and
    InvalidInput for a revision that there is not, and Conflict while a control process leads."""
    if revision not in revisions():
        known = revisions()
        raise InvalidInput(f"{revision!r} is no revision; there are {known[0]} to {known[-1]}", param="revision")
    asyncio.run(_migrate(database_url, revision, wait_s, back=True))


async def _migrate(database_url: str, revision: str, wait_s: float, *, back: bool) -> None:
    patience = _Patience(wait_s)
    connection = await asyncpg.connect(database_url)
    try:
        await _take_turn(connection, patience)
        standing = await read_standing(connection)
        check_standing(standing)
        if back:
            await _check_way_back(connection, standing.revision, revision)
        await _until_done(_action(database_url, revision, back=back), patience)
    except DBAPIError as error:
        raise _told(error, (await read_standing(connection)).revision) from error
    finally:
        await connection.close()


class _Patience:
    """How long others are waited for. What is under way is never cut off."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._until_s = time.monotonic() + wait_s
        self._told = False

    async def wait(self, why: str) -> None:
        """A moment, said once. Raises Unavailable when it was long enough."""
        if time.monotonic() >= self._until_s:
            raise Unavailable(
                f"the schema could not be changed within {self._wait_s:g} s: {why}; "
                "look for long transactions in pg_stat_activity, and start again"
            )
        if not self._told:
            log.warning("%s; waiting", why)
        self._told = True
        await asyncio.sleep(_AGAIN_S)


async def _take_turn(connection: asyncpg.Connection, patience: _Patience) -> None:
    """Ours until the connection closes, however this process ends."""
    while not await connection.fetchval("SELECT pg_try_advisory_lock($1)", _TURN):
        await patience.wait("another process migrates this database")


async def _until_done(act: Callable[[], None], patience: _Patience) -> None:
    while True:
        try:
            return await asyncio.to_thread(act)
        except DBAPIError as error:
            if not isinstance(_cause(error), _BUSY):
                raise
        await patience.wait("tables that a migration changes are in use")


async def _check_way_back(connection: asyncpg.Connection, current: str | None, revision: str) -> None:
    known = revisions()
    if current is None or known.index(current) < known.index(revision):
        raise Conflict(f"the database is at revision {current or 'none'}, which is before {revision}: nothing to undo")
    if await connection.fetchval("SELECT count(*) FROM leader_leases WHERE expires_at > clock_timestamp()"):
        raise Conflict(
            "a control process leads on this database; stop every process of the service, wait until the leader's "
            "lease has run out (ALLPASS_LEADER_LEASE_S), and start again"
        )


def _action(database_url: str, revision: str, *, back: bool) -> Callable[[], None]:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("sqlalchemy.url", as_asyncpg_url(database_url).replace("%", "%%"))
    return lambda: (command.downgrade if back else command.upgrade)(config, revision)


def _cause(error: DBAPIError) -> BaseException | None:
    return None if error.orig is None else error.orig.__cause__


def _told(error: DBAPIError, revision: str | None) -> Conflict:
    cause = _cause(error) or error
    if isinstance(cause, asyncpg.InsufficientPrivilegeError):
        return Conflict(
            f"the database's user may not change its schema ({cause}); migrate as the owner of the database "
            f"(it stays at revision {revision or 'none'})"
        )
    first_line = str(cause).partition("\n")[0]
    return Conflict(
        f"a migration failed and was undone ({first_line}); the database is at revision {revision or 'none'}, "
        "as the migrations before that one left it"
    )
