"""Set prices in place of those of a provider's list, and take them back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, timedelta

from allpass.wire.price_lists import OwnPricesRequest
from app.core.dated_prices import DatedPrices, is_far_off
from app.core.model.money import Money
from app.core.model.price_list import OwnPrice, PriceInUse
from app.db.connection import Connection
from app.db.offers.price_lists import dated_prices, delete_own_prices, set_own_prices
from app.errors import Conflict, InvalidInput, NotFound
from app.services.jobs.compose_job import micros

FAR_OFF = "price_far_off"
_FIRST_DAY = date(2000, 1, 1)
_MOST_TOLD = 10


async def set_prices(
    connection: Connection, provider: str, request: OwnPricesRequest, *, set_by: str, now_ms: int
) -> DatedPrices:
    """From the next listing on. Raises NotFound for a provider without a list, InvalidInput naming the field, and
    Conflict for prices that are far off and not confirmed."""
    before = await prices_of(connection, provider)
    day = _day(request.as_of, now_ms)
    new = {name: Money(micros(usd, f"prices.{name}")) for name, usd in request.prices.items()}
    known = {one.name: one for one in before.prices if one.published is not None}
    _check_names(provider, new, known)
    if not request.confirm:
        _check_distance(new, known)
    own = [OwnPrice(name, price, day, now_ms, set_by) for name, price in new.items()]
    await set_own_prices(connection, provider, own)
    return await prices_of(connection, provider)


async def drop_prices(connection: Connection, provider: str, names: Collection[str] | None) -> DatedPrices:
    """Those of these names, or all. Raises NotFound for a provider without a list, and InvalidInput for a name that
    nobody has set a price for."""
    before = await prices_of(connection, provider)
    unknown = sorted(set(names or ()) - {one.name for one in before.prices})
    if unknown:
        raise InvalidInput(_no_such(provider, unknown, [one.name for one in before.prices]), param="names")
    await delete_own_prices(connection, provider, names)
    return await prices_of(connection, provider)


async def prices_of(connection: Connection, provider: str) -> DatedPrices:
    """Raises NotFound for a provider that is not configured, or has no list."""
    found = (await dated_prices(connection, provider)).get(provider)
    if found is None:
        raise NotFound(
            f"there is no price list of {provider!r:.80}: the provider is not configured, or tells its prices with "
            "every listing (allpass providers prices shows the lists there are)"
        )
    return found


def _day(text: str | None, now_ms: int) -> str:
    today = datetime.fromtimestamp(now_ms / 1000, UTC).date()
    if text is None:
        return today.isoformat()
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"as_of: {text!r} is not a day; write it as {today}", param="as_of") from None
    if not _FIRST_DAY <= day <= today + timedelta(days=1):  # it is tomorrow already somewhere
        raise InvalidInput(f"as_of: {text} is not a day from {_FIRST_DAY} to {today}", param="as_of")
    return day.isoformat()


def _check_names(provider: str, new: Mapping[str, Money], known: Mapping[str, PriceInUse]) -> None:
    unknown = sorted(new.keys() - known.keys())
    if unknown:
        raise InvalidInput(f"prices: {_no_such(provider, unknown, known)}", param="prices")


def _no_such(provider: str, unknown: list[str], known: Collection[str]) -> str:
    more = ", ..." if len(unknown) > _MOST_TOLD else ""
    told = ", ".join(f"{name:.40}" for name in unknown[:_MOST_TOLD])
    return f"{provider} has no price of {told}{more}; it has: {', '.join(sorted(known))}"


def _check_distance(new: Mapping[str, Money], known: Mapping[str, PriceInUse]) -> None:
    used = {name: one.used for name, one in known.items()}
    far = [
        f"{name}: {price}/h, where {before}/h is used now"
        for name, price in sorted(new.items())
        if (before := used[name]) is not None and is_far_off(price, before)
    ]
    if far:
        more = f" and {len(far) - _MOST_TOLD} more" if len(far) > _MOST_TOLD else ""
        raise Conflict(
            "prices: more than three times the price in use, or less than a third of it "
            f"({'; '.join(far[:_MOST_TOLD])}{more}). Nothing was changed; send it again with confirm: true if it is "
            "meant",
            param="prices",
            code=FAR_OFF,
        )
