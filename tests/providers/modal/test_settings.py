"""Modal in the settings of the service."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pydantic import ValidationError

from app.errors import InvalidInput
from app.settings import Settings
from app.wiring import build_providers
from tests.providers.cloud_process import WallClock

REQUIRED: dict[str, Any] = {
    "database_url": "postgresql://user:password@127.0.0.1:1/none",
    "secret_key": "s" * 32,
    "objects_signing_key": "o" * 32,
}
TOKEN = {"modal_token_id": "ak-1", "modal_token_secret": "as-1"}


def settings(**given: Any) -> Settings:
    return Settings(**(REQUIRED | given))


async def names(of: Settings) -> dict[str, list[str]]:
    """The providers that are built, each with the offers it would show, without a call."""
    providers = build_providers(of, WallClock(), cast("Any", None))
    companies = {
        name: each for name, each in providers.items() if name != "joined"
    }  # a team's own hosts need no account
    shown = {name: [offer.key for offer in each._catalogue.offers()] for name, each in companies.items()}
    for provider in providers.values():
        await provider.close()
    return shown


async def test_without_a_token_there_is_no_modal() -> None:
    """A provider without credentials is absent, not broken."""
    assert await names(settings()) == {}


async def test_with_a_token_there_is() -> None:
    """A token is all that is needed; the list of GPUs can be narrowed."""
    assert "modal/H100:8" in (await names(settings(**TOKEN)))["modal"]
    assert await names(settings(**TOKEN, modal_gpus=["A10"])) == {
        "modal": ["modal/A10:1", "modal/A10:2", "modal/A10:4"]
    }


@pytest.mark.parametrize("half", list(TOKEN))
def test_half_a_token_is_refused(half: str) -> None:
    """An id without its secret, or the other way round, is told and not silently ignored."""
    with pytest.raises(ValidationError, match="ALLPASS_MODAL_TOKEN_ID and ALLPASS_MODAL_TOKEN_SECRET go together"):
        settings(**{half: TOKEN[half]})


@pytest.mark.parametrize(
    "wrong", [{"modal_gpus": ["H900"]}, {"modal_prices": {"H900": 1}}, {"modal_prices": {"cpu": "0.00000001"}}]
)
def test_a_wrong_list_is_told(wrong: dict[str, Any]) -> None:
    """A GPU that is not in the list, or a price finer than a micro-dollar, names the setting."""
    with pytest.raises(InvalidInput, match="ALLPASS_MODAL_GPUS or ALLPASS_MODAL_PRICES"):
        build_providers(settings(**TOKEN, **wrong), WallClock(), cast("Any", None))
