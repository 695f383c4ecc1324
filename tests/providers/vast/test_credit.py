"""What is left on an account that is paid in advance, before the emulated company."""

from __future__ import annotations

import pytest

from app.errors import Transient
from app.ports.provider import TellsCredit
from tests.providers.vast_emulator import EmulatedVast


async def test_the_credit_is_what_the_company_says(vast: EmulatedVast) -> None:
    """In micro-dollars; the emulated account has so much as its switch says, less what is spent."""
    vast.admin.post("/admin/switches", json={"credit_micros": 10**12}).raise_for_status()  # others spend less
    provider = vast.provider()
    assert isinstance(provider, TellsCredit)
    told = vast.api.get("/api/v0/users/current/").json()["credit"]
    assert await provider.credit_micros() == round(told * 1_000_000)
    assert 900_000 < told <= 1_000_000
    await provider.close()


async def test_a_key_without_the_right_knows_no_credit(vast: EmulatedVast) -> None:
    """It is no reason to refuse the key: renting needs other rights."""
    provider = vast.provider(key="another")
    assert await provider.credit_micros() is None
    await provider.close()


async def test_no_answer_is_no_credit_of_zero(vast: EmulatedVast) -> None:
    """Whoever cannot ask says so."""
    provider = vast.provider(url="http://127.0.0.1:9")
    with pytest.raises(Transient):
        await provider.credit_micros()
    await provider.close()
