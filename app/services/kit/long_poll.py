"""Long polling: read, and while there is nothing to say, wait for news of the job and read again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from app.db.listen import Listener
from app.db.notify import JOB

Result = TypeVar("Result")


async def wait_for_change(
    listener: Listener,
    job_id: str,
    read: Callable[[], Awaitable[Result]],
    worth_telling: Callable[[Result], bool],
    *,
    wait_s: float,
    poll_s: float,
) -> Result:
    """What `read` gives, as soon as it is worth telling, or else after `wait_s`.

    Woken by notifications of the job; reads every `poll_s` as well, since a notification may be lost.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + wait_s
    with listener.watch(JOB, job_id) as changed:
        while True:
            changed.clear()
            result = await read()
            left_s = until - loop.time()
            if left_s <= 0 or worth_telling(result):
                return result
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, poll_s)):
                    await changed.wait()
