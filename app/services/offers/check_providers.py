"""Have every configured provider asked, by whichever process holds its credentials: whether it takes them, or what it
would rent now."""

from __future__ import annotations

import asyncio
import contextlib

from app.db.engine import Database
from app.db.listen import Listener
from app.db.notify import CHECKS
from app.db.offers.provider_checks import (
    CheckAnswer,
    CheckRow,
    ask_for_check,
    configured_providers,
    read_checks,
)
from app.errors import Unavailable
from app.ports.clock import Clock, IdSource

WAIT_S = 20.0


async def check_providers(
    database: Database,
    listener: Listener,
    clock: Clock,
    ids: IdSource,
    *,
    poll_s: float,
    wait_s: float = WAIT_S,
    prices: bool = False,
) -> list[tuple[CheckRow, CheckAnswer]]:
    """Each provider's answer, by name; one that nobody gave in time says so. Reads again when something was answered,
    and every `poll_s`. `prices`: what it would rent now is to be kept."""
    now_ms = clock.now_ms()
    check_ids = []
    async with database.transaction() as connection:
        for provider in await configured_providers(connection):
            check_ids.append(ids.new("chk"))
            deadline_ms = now_ms + round(wait_s * 1000)
            await ask_for_check(
                connection, check_ids[-1], provider, now_ms=now_ms, deadline_ms=deadline_ms, prices=prices
            )
    rows = await _answered(database, listener, check_ids, poll_s, wait_s) if check_ids else []
    return [(row, row.answer or _nobody(wait_s)) for row in rows]


async def _answered(
    database: Database, listener: Listener, check_ids: list[str], poll_s: float, wait_s: float
) -> list[CheckRow]:
    loop = asyncio.get_running_loop()
    until = loop.time() + wait_s
    with listener.watch(CHECKS) as news:
        while True:
            news.clear()
            async with database.transaction() as connection:
                rows = await read_checks(connection, check_ids)
            left_s = until - loop.time()
            if left_s <= 0 or all(row.answer is not None for row in rows):
                return rows
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, poll_s)):
                    await news.wait()


def _nobody(wait_s: float) -> CheckAnswer:
    words = f"no answer within {wait_s:g} s: does a process with ALLPASS_ROLE=all or control run? It holds the keys"
    return CheckAnswer(Unavailable.code, words)
