"""Items apart: what fails of one is its own. The one place where a chore catches.

Each item has a transaction of its own under the leader's term. What one raises is logged, counted and left behind, and
the next one follows. Two things end a round: a lead that was lost (Fenced), and a database that is gone (Unavailable).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from app.control.context import ControlContext
from app.core.model.health import Chore
from app.db.connection import Connection
from app.errors import Fenced, ProviderError, StoreUnavailable, Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

# A row that somebody else has locked looks like a database that does not answer. So many in a row are left behind
# while the database does answer: each may have cost a whole timeout.
_MOST_UNANSWERED = 3


async def each(
    context: ControlContext,
    chore: Chore,
    items: Iterable[T],
    act: Callable[[Connection, T], Awaitable[R]],
    *,
    named: Callable[[T], str] = str,
) -> list[R]:
    """Do `act` for every item, each in a transaction of its own; what came of those that did not fail."""

    async def alone(item: T) -> R:
        async with context.led() as connection:
            return await act(connection, item)

    return await each_by_itself(context, chore, items, alone, named=named)


async def each_by_itself(
    context: ControlContext,
    chore: Chore,
    items: Iterable[T],
    act: Callable[[T], Awaitable[R]],
    *,
    named: Callable[[T], str] = str,
) -> list[R]:
    """As `each`, for what opens transactions by itself: it asks somebody between them. A provider that fails in a way
    that it may (ProviderError) is no failure of the chore: that is told of the provider."""
    done: list[R] = []
    unanswered = 0
    for item in items:
        try:
            done.append(await act(item))
            unanswered = 0
        except Fenced:
            raise
        except ProviderError as error:
            log.warning("%s: %s has to wait: %s", chore, named(item), error)
        except (Unavailable, StoreUnavailable) as error:
            unanswered += 1
            if unanswered >= _MOST_UNANSWERED or not await context.database.answers():
                raise
            context.health.failed(chore, named(item), error)
        except Exception as error:
            context.health.failed(chore, named(item), error)
    return done


async def in_batches(
    context: ControlContext,
    chore: Chore,
    items: Sequence[T],
    act: Callable[[Connection, Sequence[T]], Awaitable[R]],
    *,
    at_once: int,
    named: Callable[[T], str] = str,
) -> list[R]:
    """Do `act` for some items in each transaction. A batch that fails is done again one by one, so that only the item
    that makes it fail is left out."""
    done: list[R] = []
    for start in range(0, len(items), at_once):
        batch = items[start : start + at_once]
        try:
            async with context.led() as connection:
                done.append(await act(connection, batch))
        except Fenced:
            raise
        except Exception as error:
            if isinstance(error, Unavailable) and not await context.database.answers():
                raise
            log.warning("%s: %d items are done one by one, for together they fail: %s", chore, len(batch), error)
            done += await each(context, chore, batch, lambda connection, item: act(connection, (item,)), named=named)
    return done
