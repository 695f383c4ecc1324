"""The operation workers: claim what is due, carry it out, never hold a transaction while a provider thinks."""

from __future__ import annotations

import asyncio
import logging

from app.control.context import ControlContext
from app.control.create_machine import create_machine
from app.control.end_machine import end_machine
from app.core.model.health import Chore
from app.db.listen import Listener
from app.db.nodes.operations import ALL, LeasedOperation, OperationKind, ProviderShare, renew
from app.db.nodes.operations import claim as take
from app.db.notify import OPERATIONS
from app.errors import AllpassError, Fenced, ProviderError, Unavailable
from app.services.kit.node_tokens import TokenMint

log = logging.getLogger(__name__)

_RENEWALS_PER_LEASE = 3


class OperationWorkers:
    """Every control process has them, leader or not: the lease on each operation is what keeps two from making the same
    call. Each provider has workers of its own, and what is left of providers that are not configured has some too: one
    that answers slowly or never holds up nobody else's machines."""

    def __init__(self, context: ControlContext) -> None:
        names = tuple(context.providers)
        self.of_all = Team(context, ALL)
        self._teams = [Team(context, ProviderShare((name,), all_but=False)) for name in names]
        self._teams.append(Team(context, ProviderShare(names)))

    async def run(self, listener: Listener) -> None:
        """Work until cancelled; then the calls in flight are cancelled too, and looked up by whoever comes next."""
        async with asyncio.TaskGroup() as group:
            for team in self._teams:
                group.create_task(team.run(listener))

    async def work_once(self) -> int:
        """Carry out one batch of what is due, to the end; returns how many operations that were."""
        return await self.of_all.work_once()


class Team:
    """At most `operation_workers` calls at once, of one share of the operations."""

    def __init__(self, context: ControlContext, share: ProviderShare) -> None:
        self._context = context
        self._share = share
        self._mint = TokenMint.of(context.settings)
        self._busy: set[asyncio.Task[None]] = set()

    async def run(self, listener: Listener) -> None:
        try:
            with listener.watch(OPERATIONS) as woken:
                while True:
                    woken.clear()
                    await self._fill(woken)
                    await self._rest(woken)
        finally:
            for task in self._busy:
                task.cancel()
            await asyncio.gather(*self._busy, return_exceptions=True)

    async def work_once(self) -> int:
        operations = await self.claim(self._context.settings.operation_workers)
        for operation in operations:
            await self._carry_out(operation)
        return len(operations)

    async def _fill(self, woken: asyncio.Event) -> None:
        free = self._context.settings.operation_workers - len(self._busy)
        if free <= 0:
            return
        try:
            operations = await self.claim(free)
        except AllpassError as error:
            log.warning("no operation could be claimed, trying again: %s", error)
            return
        except Exception:
            log.exception("no operation could be claimed, trying again")
            return
        for operation in operations:
            task = asyncio.create_task(self.guarded(operation), name=f"operation {operation.operation_id}")
            self._busy.add(task)
            task.add_done_callback(self._busy.discard)
            task.add_done_callback(lambda _task: woken.set())

    async def _rest(self, woken: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(self._context.settings.poll_s):
                await woken.wait()
        except TimeoutError:
            return  # the poll behind the wake-ups

    async def claim(self, limit: int) -> list[LeasedOperation]:
        context = self._context
        lease_s = context.settings.operation_lease_s
        now_ms = context.clock.now_ms()
        return await take(context.database, limit=limit, lease_s=lease_s, now_ms=now_ms, share=self._share)

    async def guarded(self, operation: LeasedOperation) -> None:
        """The outermost frame of one operation: what goes wrong here is tried again when the lease has run out.

        Work whose lease is lost, or may be, is cancelled wherever it is. Before a create call it was written that its
        outcome is unknown, so whoever holds the operation next looks for the machine first.
        """
        try:
            async with asyncio.timeout(self._context.settings.operation_lease_s) as held:
                renewal = asyncio.create_task(
                    self._keep_lease(operation, held), name=f"lease of {operation.operation_id}"
                )
                try:
                    await self._carry_out(operation)
                finally:
                    renewal.cancel()
        except (Fenced, Unavailable, ProviderError) as error:
            log.warning("%s of %s is tried again: %s", operation.kind, operation.node_id, error)
        except TimeoutError:
            log.warning("%s of %s was left: its lease is not ours any more", operation.kind, operation.node_id)
        except Exception as error:
            self._context.health.failed(Chore.OPERATIONS, f"{operation.kind} of {operation.node_id}", error)

    async def _keep_lease(self, operation: LeasedOperation, held: asyncio.Timeout) -> None:
        """Leases are short, so that a crash costs little; a slow provider call keeps its own alive. `held` ends when
        somebody else may have it: at once when a renewal is refused, else when the last one runs out."""
        context, loop = self._context, asyncio.get_running_loop()
        lease_s = context.settings.operation_lease_s
        while True:
            await asyncio.sleep(lease_s / _RENEWALS_PER_LEASE)
            asked_s = loop.time()  # the database counts from a later moment on
            try:
                async with context.database.transaction() as connection:
                    ours = await renew(connection, operation, lease_s=lease_s)
            except AllpassError as error:
                log.warning("the lease of %s could not be renewed: %s", operation.operation_id, error)
                continue
            held.reschedule(asked_s + lease_s if ours else loop.time())
            if not ours:
                return

    async def _carry_out(self, operation: LeasedOperation) -> None:
        if operation.kind is OperationKind.CREATE:
            await create_machine(self._context, self._mint, operation)
        else:
            await end_machine(self._context, operation)
