"""Prices that an owner set, at Modal: in force from the next listing on, and for what is rented from then on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import pytest

from app.core.model.money import Money
from app.errors import PriceMoved, Transient
from app.ports.prices import ProcessOwnPrices
from providers.conformance.suite import new_label
from providers.modal.adapter import ModalProvider
from tests.providers.modal_emulator import EmulatedModal, rent, wanted

T4, CPU, GIB_OF_MEMORY = 590_400, 141_480, 23_976  # micro-dollars per hour, as published


class Unknown(ProcessOwnPrices):
    """Nothing was ever read, and the database does not answer."""

    async def known(self) -> Mapping[str, Money]:
        raise Transient("not known")


@pytest.fixture
async def provider(shared_modal: EmulatedModal) -> AsyncIterator[ModalProvider]:
    provider = shared_modal.provider()
    yield provider
    await provider.close()


def set_prices(provider: ModalProvider, **micros: int) -> None:
    provider._own_prices = ProcessOwnPrices({name: Money(price) for name, price in micros.items()})


async def price(provider: ModalProvider, offer_id: str = "T4:1") -> int:
    return (await wanted(provider, offer_id)).offer.price_per_hour.micros


async def test_the_next_listing_has_the_new_price(provider: ModalProvider) -> None:
    """Of everything that has a part of this name, and of nothing else; unknown names have no effect."""
    assert await price(provider) == T4 + 2 * CPU + 16 * GIB_OF_MEMORY
    l4 = await price(provider, "L4:2")
    set_prices(provider, T4=500_000, H900=1)
    assert await price(provider) == 500_000 + 2 * CPU + 16 * GIB_OF_MEMORY
    assert await price(provider, "L4:2") == l4
    set_prices(provider, cpu=CPU + 1)
    assert await price(provider, "L4:2") == l4 + 4
    set_prices(provider)
    assert await price(provider) == T4 + 2 * CPU + 16 * GIB_OF_MEMORY


async def test_a_price_that_rose_since_it_was_agreed_is_refused(
    shared_modal: EmulatedModal, provider: ModalProvider
) -> None:
    """Between the listing and the create call, too: nothing is made."""
    request = await wanted(provider)
    set_prices(provider, cpu=CPU + 1)
    with pytest.raises(PriceMoved, match="agreed was"):
        await provider.create(request)
    assert shared_modal.machines(request.label) == []


async def test_a_machine_keeps_the_price_that_it_was_rented_at(provider: ModalProvider) -> None:
    """What is set later is for later machines; also another process lists the first one as it was."""
    set_prices(provider, T4=500_000)
    machine = await rent(provider)
    assert machine.price_per_hour == Money(500_000 + 2 * CPU + 16 * GIB_OF_MEMORY)
    set_prices(provider, T4=900_000)
    for listed in (*await provider.find(machine.label or ""), await provider.get(machine.ref)):
        assert listed is not None
        assert listed.price_per_hour == machine.price_per_hour
    assert await price(provider) == 900_000 + 2 * CPU + 16 * GIB_OF_MEMORY


async def test_nothing_is_rented_at_a_price_that_nobody_knows(
    shared_modal: EmulatedModal, provider: ModalProvider
) -> None:
    """A process that could never read what owners set neither lists nor rents; it looks after machines as ever."""
    request = await wanted(provider, label=new_label())
    provider._own_prices = Unknown()
    with pytest.raises(Transient):
        await provider.offers()
    with pytest.raises(Transient):
        await provider.create(request)
    assert shared_modal.machines(request.label) == []
    assert await provider.find(request.label) == []
    assert request.label not in {machine.label for machine in await provider.list_owned()}
