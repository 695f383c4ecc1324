"""Finding out whether providers take our credentials, and what they would rent now, without renting anything.

Requests are rows, and any control process answers them: who asks need not hold the credentials.
"""

from __future__ import annotations

import asyncio
import logging

from app.control.context import ControlContext
from app.control.each import each, each_by_itself
from app.control.prices import list_offers
from app.core.model.health import Chore
from app.db.connection import Connection
from app.db.listen import Listener
from app.db.notify import CHECKS
from app.db.offers.price_lists import publish_price_list
from app.db.offers.provider_checks import CheckAnswer, CheckRequest, answer_check, take_checks
from app.db.offers.provider_states import accept, refused_providers, set_configured, set_success
from app.errors import AllpassError, AuthFailed, ProviderError
from app.ports.prices import price_list_of

log = logging.getLogger(__name__)


class ProviderChecks:
    """One per control process, leader or not."""

    def __init__(self, context: ControlContext) -> None:
        self._context = context

    async def run(self, listener: Listener) -> None:
        """Answer requests until cancelled."""
        with listener.watch(CHECKS) as woken:
            while True:
                woken.clear()
                try:
                    await self.answer_open()
                except AllpassError as error:
                    log.warning("no check could be answered, trying again: %s", error)
                except Exception:
                    log.exception("a check failed, trying again")
                await self._rest(woken)

    async def answer_open(self) -> int:
        """Answer what is asked now, all at once; returns how many requests that were."""
        context = self._context
        async with context.database.transaction() as connection:
            now_ms, leads = context.clock.now_ms(), context.leader.leads
            taken = await take_checks(connection, context.providers.keys(), now_ms=now_ms, leads=leads)
        await asyncio.gather(*(self._answer_alone(request) for request in taken))
        return len(taken)

    async def check(self, provider: str) -> CheckAnswer:
        """List what is rented and what could be: both need the credentials, and cost nothing.

        Renting goes on where it had been stopped because the credentials were refused.
        """
        context = self._context
        asked = context.providers[provider]
        try:
            machines = await context.ask(asked.list_owned())
            offers = await context.ask(asked.offers())
        except ProviderError as error:
            return CheckAnswer(error.error_code, context.watch.said(error))
        async with context.database.transaction() as connection:
            await set_success(connection, provider, at_ms=context.clock.now_ms())
            if await accept(connection, provider):
                log.warning("%s takes our credentials again: renting goes on", provider)
        return CheckAnswer(None, "the credentials are taken", len(machines), len(offers))

    async def list_prices(self, provider: str) -> CheckAnswer:
        """Keep what it would rent now, as the chore does from time to time."""
        try:
            offers = await list_offers(self._context, provider)
        except ProviderError as error:
            return CheckAnswer(error.error_code, self._context.watch.said(error))
        return CheckAnswer(None, "its offers are as it lists them now", offers=offers)

    async def _answer_alone(self, request: CheckRequest) -> None:
        await each_by_itself(self._context, Chore.PROVIDERS, [request], self._answer, named=lambda one: one.provider)

    async def _answer(self, request: CheckRequest) -> None:
        answer = await (self.list_prices if request.prices else self.check)(request.provider)
        async with self._context.database.transaction() as connection:
            await answer_check(connection, request.check_id, answer, now_ms=self._context.clock.now_ms())

    async def _rest(self, woken: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(self._context.settings.poll_s):
                await woken.wait()
        except TimeoutError:
            return  # the poll behind the wake-ups

    async def recheck_refused(self) -> None:
        """The leader's chore: say which providers are configured and what their lists are, and try refused credentials
        again."""
        context = self._context

        async def note(connection: Connection, _what: str) -> None:
            await set_configured(connection, context.providers.keys())

        async def publish(connection: Connection, provider: str) -> None:
            await publish_price_list(connection, provider, price_list_of(context.providers[provider]))

        await each(context, Chore.PROVIDERS, ["which of them are configured"], note)
        await each(context, Chore.PROVIDERS, sorted(context.providers), publish, named="the price list of {}".format)
        async with context.led() as connection:
            refused = await refused_providers(connection)
        known = [provider for provider in refused if provider in context.providers]
        await each_by_itself(context, Chore.PROVIDERS, known, self._check_again)

    async def _check_again(self, provider: str) -> None:
        answer = await self.check(provider)
        if answer.error_code == AuthFailed.code:
            log.error("ALARM: %s still refuses our credentials: %s", provider, answer.message)
