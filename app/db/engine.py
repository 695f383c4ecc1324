"""The connection pool, and the one way to open a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import QueuePool

from app.errors import Unavailable

# A server that shuts down, or has just begun to run, says so with errors of its own. The driver's InterfaceError is
# none of these: it says too that a statement has too many arguments, or one of the wrong kind. Of a connection that is
# lost SQLAlchemy knows.
_SHUT = (asyncpg.AdminShutdownError, asyncpg.CrashShutdownError, asyncpg.CannotConnectNowError)
_GONE = (
    OSError,
    OperationalError,
    asyncpg.PostgresConnectionError,
    *_SHUT,
    TimeoutError,
    PoolTimeout,
)
_PROBE_S = 3.0
DATABASE_FULL = "database_full"
_FULL_STATES = frozenset({"53100"})  # SQLSTATE: the disk is full
# Of resources that are short, of transactions that gave way to others, of a database that only reads, of its files.
_TRY_AGAIN_STATES = ("53", "40", "25006", "55P03", "58")
_KEPT = 2  # at most, and never so many that transactions go short
# A statement sent between the server's goodbye and the end of the connection finds asyncpg in a state that it cannot
# leave: an InternalClientError, which SQLAlchemy takes for a lost connection, too.
_DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)


def make_engine(database_url: str, *, pool_size: int, timeout_s: float) -> AsyncEngine:
    """An engine for `postgresql://…` URLs; every statement has a timeout."""
    return create_async_engine(
        as_asyncpg_url(database_url),
        pool_size=pool_size,
        max_overflow=0,
        pool_use_lifo=True,  # the connection used last knows our statements best
        pool_timeout=timeout_s,
        pool_pre_ping=False,
        connect_args={"command_timeout": timeout_s, "timeout": timeout_s},
    )


def as_asyncpg_url(database_url: str) -> str:
    """SQLAlchemy's spelling of a plain PostgreSQL URL."""
    for scheme in ("postgresql://", "postgres://"):
        if database_url.startswith(scheme):
            return "postgresql+asyncpg://" + database_url.removeprefix(scheme)
    return database_url


class Database:
    """Transactions and plain connections, with lost connections told as Unavailable."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")  # over the same pool
        self._kept: list[AsyncConnection] = []  # for `driver`
        pool = engine.sync_engine.pool
        self._most_kept = min(_KEPT, pool.size() // 3) if isinstance(pool, QueuePool) else 0
        self._closed = False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """One transaction: committed at the end of the block, rolled back on any error."""
        async with _told_as_unavailable(), self._engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def statement(self) -> AsyncIterator[AsyncConnection]:
        """For a single statement, which is a transaction of its own: one round trip instead of three."""
        async with _told_as_unavailable(), self._autocommit.connect() as connection:
            yield connection

    @asynccontextmanager
    async def driver(self) -> AsyncIterator[asyncpg.Connection]:
        """asyncpg's own connection, for hot paths: each statement is a transaction, durable when it returns.

        Up to two connections are kept for this between uses, since going through the pool costs a round trip of its
        own. One that was lost is not used again.
        """
        try:
            connection = await self._take_kept() or await self._engine.connect()
            raw = (await connection.get_raw_connection()).driver_connection
            assert raw is not None
            try:
                yield raw
            except BaseException as error:
                # A statement that was refused leaves the connection as it was; of anything else, nothing is known.
                intact = isinstance(error, (asyncpg.PostgresError, asyncpg.InterfaceError)) and not raw.is_closed()
                await _give_up(connection, intact=intact)
                if isinstance(error, _DRIVER_ERRORS) and not intact:
                    raise Unavailable("the database does not answer; try again") from error
                raise
            if len(self._kept) < self._most_kept and not self._closed:
                self._kept.append(connection)
            else:
                await connection.close()
        except (DBAPIError, *_GONE) as error:
            raise Unavailable("the database does not answer; try again") from error
        except asyncpg.PostgresError as error:
            _raise_if_short(error.sqlstate, error)
            raise

    async def answers(self) -> bool:
        """Whether the database does, at this moment: what failed otherwise is to blame for itself."""
        try:
            async with asyncio.timeout(_PROBE_S), self.statement() as connection:
                await connection.execute(text("SELECT 1"))
        except (Unavailable, TimeoutError):
            return False
        return True

    async def close(self) -> None:
        self._closed = True
        while self._kept:
            await self._kept.pop().close()
        await self._engine.dispose()

    async def _take_kept(self) -> AsyncConnection | None:
        if not self._kept:
            return None
        kept = self._kept.pop()
        raw = (await kept.get_raw_connection()).driver_connection
        if raw is not None and not raw.is_closed():
            return kept
        await _give_up(kept, intact=False)
        return None


@asynccontextmanager
async def _told_as_unavailable() -> AsyncIterator[None]:
    try:
        yield
    except DBAPIError as error:
        # A connection that breaks while it is being made is told as a plain error: what broke it is its cause.
        broke = getattr(error.orig, "__cause__", None)
        if error.connection_invalidated or isinstance(error, _GONE) or isinstance(broke, _GONE):
            raise Unavailable("the database does not answer; try again") from error
        _raise_if_short(getattr(error.orig, "sqlstate", None), error)
        raise
    except _GONE as error:
        raise Unavailable("the database does not answer; try again") from error


def _raise_if_short(sqlstate: str | None, error: Exception) -> None:
    """Raises Unavailable for what may succeed later, as it is: nothing of it was written."""
    if sqlstate in _FULL_STATES:
        message = "the database has no room left on its disk; nothing was written. Make room there, then try again"
        raise Unavailable(message, code=DATABASE_FULL) from error
    if sqlstate is not None and sqlstate.startswith(_TRY_AGAIN_STATES):
        raise Unavailable("the database cannot do this now; nothing was written. Try again") from error


async def _give_up(connection: AsyncConnection, *, intact: bool) -> None:
    if not intact:
        await connection.invalidate()
    await connection.close()
