"""How a stack stops without losing work: every job saves and leaves its machine, and nothing decides any more.

Whoever stops the stack takes the lead away from its server, so that no job gets a new place meanwhile, asks the jobs as
a planned move does, and gives the lead back when the server has ended. What still holds a place when the time is over
is taken off it, and goes on from its newest checkpoint. None of it is a fault of a job.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

from app.core.model.job import TERMINAL_JOB_STATES
from app.core.model.run import RunState
from app.db.decisions.leadership import CONTROL, Lease, release, renew, take_over
from app.db.engine import Database, make_engine
from app.db.moves.held_places import HeldPlace, Rest, held_places, read_rest
from app.errors import Unavailable
from app.services.moves.clear_places import ask_to_clear, clear_by_force
from app.system import RandomIds, SystemClock

_HOLDER = "the stack, which is being stopped"
_WHY = "the stack is being stopped: saves at the next step, and goes on at the next start"
_TOO_LATE = "the stack was stopped before it had saved"
_LEASE_S = 10.0  # should we be killed, the next server leads after this
_SERVER_ENDS_WITHIN_S = 30.0
_TIMEOUT_S = 10.0
_LOOK_S = 0.2
_TELL_EVERY_S = 10.0
_NAMES = 5
_WITHOUT_DATABASE_S = 15.0


class Closing:
    """`hurried` says whether to wait no longer; `look_after` keeps running what the jobs need in order to save."""

    def __init__(
        self,
        database_url: str,
        *,
        tell: Callable[[str], None],
        hurried: Callable[[], bool],
        look_after: Callable[[], None],
    ) -> None:
        self._database_url = database_url
        self._tell = tell
        self._hurried = hurried
        self._look_after = look_after
        self._clock = SystemClock()
        self._ids = RandomIds(self._clock)
        self._lease: Lease | None = None
        self._told: dict[str, HeldPlace] | None = None  # who holds a place, by job, as it was told
        self._told_at = 0.0
        self._refused: set[str] = set()  # jobs that could not be asked, as it was told

    def clear(self, within_s: float) -> None:
        """Returns when no job has a place any more. Never raises: a stop goes on."""
        try:
            asyncio.run(self._with_database(lambda database: self._clear(database, within_s)))
        except Exception as error:  # the outermost frame
            self._tell(f"the jobs could not be asked to save ({error}); they go on from their newest checkpoints")

    def end(self) -> None:
        """The server has ended: the next one may lead at once."""
        try:
            asyncio.run(self._with_database(self._give_back))
        except Exception as error:  # the outermost frame
            self._tell(f"the next start may take {_SERVER_ENDS_WITHIN_S:.0f} s longer ({error})")

    async def _with_database(self, work: Callable[[Database], Awaitable[None]]) -> None:
        database = Database(make_engine(self._database_url, pool_size=1, timeout_s=_TIMEOUT_S))
        try:
            await work(database)
        finally:
            await database.close()

    async def _clear(self, database: Database, within_s: float) -> None:
        until = time.monotonic() + within_s
        while held := await self._look(database, within_s):
            if self._hurried() or time.monotonic() > until:
                await self._by_force(database, held)
                break
            self._tell_rest_of_time(until)
            self._look_after()
            await asyncio.sleep(_LOOK_S)
        await self._hold_lead(database, _SERVER_ENDS_WITHIN_S)

    async def _look(self, database: Database, within_s: float) -> list[HeldPlace]:
        """Who still holds a place; all of them are asked. A database that is just starting again is waited for."""
        until = time.monotonic() + _WITHOUT_DATABASE_S
        while True:
            try:
                await self._hold_lead(database, _LEASE_S)
                async with database.statement() as connection:
                    held = await held_places(connection)
                await self._tell_change(database, held, within_s)
                for job_id in {place.job_id: None for place in held if place.run_state is not RunState.STOPPING}:
                    await self._ask(database, job_id)
            except Unavailable:
                if self._hurried() or time.monotonic() > until:
                    raise
                self._look_after()
                await asyncio.sleep(_LOOK_S)
            else:
                return held

    async def _hold_lead(self, database: Database, lease_s: float) -> None:
        async with database.transaction() as connection:
            if self._lease is None or not await renew(connection, self._lease, lease_s=lease_s):
                self._lease = await take_over(connection, CONTROL, _HOLDER, lease_s=lease_s)

    async def _give_back(self, database: Database) -> None:
        if self._lease is not None:
            async with database.transaction() as connection:
                await release(connection, self._lease)

    async def _ask(self, database: Database, job_id: str) -> None:
        """One that cannot be asked does not keep the others from saving."""
        try:
            async with database.transaction() as connection:
                await ask_to_clear(connection, self._ids, job_id, _WHY, now_ms=self._clock.now_ms())
        except Unavailable:
            raise
        except Exception as error:  # the outermost frame of this job
            if job_id not in self._refused:
                self._refused.add(job_id)
                self._tell(f"{job_id} could not be asked to save: {error}")

    async def _by_force(self, database: Database, held: Iterable[HeldPlace]) -> None:
        for place in held:
            try:
                async with database.transaction() as connection:
                    await clear_by_force(connection, self._ids, place.run_id, _TOO_LATE, now_ms=self._clock.now_ms())
            except Unavailable:
                raise
            except Exception as error:  # the outermost frame of this job
                self._tell(f"{place.job_id} is left as it is: {error}")
        await self._tell_change(database, [], 0.0)

    async def _tell_change(self, database: Database, held: Iterable[HeldPlace], within_s: float) -> None:
        now = {place.job_id: place for place in held}
        before, self._told = self._told, now
        if before is None and now:
            self._told_at = time.monotonic()
            self._tell(f"saving first, for {within_s:.0f} s at most (Ctrl-C again does not wait): {_names(now)}")
        for job_id, place in (before or {}).items():
            if job_id not in now:
                async with database.statement() as connection:
                    rest = await read_rest(connection, job_id)
                self._tell(f"{place.job_name} {_outlook(rest)}")

    def _tell_rest_of_time(self, until: float) -> None:
        now = time.monotonic()
        if self._told and now - self._told_at > _TELL_EVERY_S:
            self._told_at = now
            self._tell(f"still saving, for {until - now:.0f} s at most: {_names(self._told)}")


def _names(held: Mapping[str, HeldPlace]) -> str:
    shown = [f"{place.job_name} (step {place.step})" for place in list(held.values())[:_NAMES]]
    return ", ".join(shown) + (f" and {len(held) - _NAMES} more" if len(held) > _NAMES else "")


def _outlook(rest: Rest) -> str:
    if rest.state in TERMINAL_JOB_STATES:
        return f"has {rest.state}"
    if rest.saved_step is None:
        return "has saved nothing: it begins again at step 0"
    return f"goes on at step {rest.saved_step}"
