"""Vast.ai in the settings of the service."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pydantic import ValidationError

from app.db.engine import Database
from app.settings import Settings
from app.wiring import build_providers
from providers.vast.bids import ask_of
from tests.providers.vast_emulator import KEY, EmulatedVast, SystemTime

REQUIRED: dict[str, Any] = {
    "database_url": "postgresql://user:password@127.0.0.1:1/none",
    "secret_key": "s" * 32,
    "objects_signing_key": "o" * 32,
}


def settings(**given: Any) -> Settings:
    return Settings(**(REQUIRED | given))


@pytest.mark.parametrize("key", [None, ""])
def test_without_a_key_there_is_no_vast(key: str | None) -> None:
    """A provider without credentials is absent, not broken."""
    assert "vast" not in build_providers(settings(vast_api_key=key), SystemTime(), cast("Database", None))


async def test_what_is_set_is_what_is_looked_for(vast: EmulatedVast, database: Database) -> None:
    """Filters, times and the kind of contract come from the settings; calls take their turns in the database."""
    given = settings(
        vast_api_key=KEY,
        vast_url=vast.url,
        vast_gpu_types=["A100"],
        vast_reliability=0.99,
        vast_bids=True,
        vast_startup_s=2.5,
        vast_startup_deadline_s=90,
        vast_create_grace_s=7,
    )
    provider = build_providers(given, SystemTime(), database)["vast"]
    offers = await provider.offers()
    assert {offer.gpu_type for offer in offers} == {"A100"}
    assert {offer.startup_ms for offer in offers} == {2_500}
    (traits,) = provider.traits()
    assert (traits.preemptible, traits.startup_deadline_ms, traits.create_grace_ms) == (True, 90_000, 7_000)
    unreliable = {str(row["id"]) for row in vast.search(reliability2={"lt": 0.99}, limit=2_000)}
    assert not unreliable & {ask_of(offer.offer_id) for offer in offers}
    assert {offer.interruptible for offer in offers} == {True, False}
    await provider.close()


async def test_the_setting_of_the_release_before_is_told_what_it_means_now(
    vast: EmulatedVast, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """It made bids of everything; it is `bids` now, and whoever pays is told that other jobs rent on demand."""
    given = settings(vast_api_key=KEY, vast_url=vast.url, vast_reliability=0.0, vast_interruptible=True)
    provider = build_providers(given, SystemTime(), database)["vast"]
    (told,) = [one.message for one in caplog.records if "ALLPASS_VAST_INTERRUPTIBLE" in one.message]
    assert "spot jobs alone" in told
    assert "ALLPASS_VAST_BIDS=true" in told
    assert {offer.interruptible for offer in await provider.offers()} == {True, False}
    await provider.close()


@pytest.mark.parametrize("wrong", [{"vast_disk_gb": 7}, {"vast_reliability": 1.5}, {"vast_bid_percent": 90}])
def test_a_wrong_value_is_told(wrong: dict[str, Any]) -> None:
    """What Vast.ai could not mean is refused at the start, by name."""
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        settings(**wrong)
