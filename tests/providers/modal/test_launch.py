"""What a sandbox runs, and what it asks for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core.model.node import ProviderTraits
from app.ports.provider import MachineRequest
from providers.conformance.suite import new_label
from providers.modal.catalogue import Catalogue, Shape
from providers.modal.launch import asked_for, launch_of, lifetime_s
from tests.providers.modal_emulator import provider_at

OFFER = Catalogue(Shape(cpus=2, memory_gib=16)).offers()[0]
REQUEST = MachineRequest(
    label=new_label(),
    offer=OFFER,
    max_price_per_hour=OFFER.price_per_hour,
    image="allpass/node:1",
    bootstrap=(
        ("ALLPASS_URL", "https://allpass.example"),
        ("ALLPASS_AGENT_SHA256", "0" * 64),
        ("ALLPASS_JOIN_TOKEN", "the-token"),
    ),
)


def test_the_token_is_in_the_secret_and_nowhere_else() -> None:
    """The entry point can be read in Modal's dashboard: it names where the agent is, not what lets it in."""
    launch = launch_of(REQUEST)
    assert launch.command[:2] == ("sh", "-c")
    assert "https://allpass.example" in launch.command[2]
    assert "the-token" not in " ".join(launch.command)
    assert launch.environment["ALLPASS_JOIN_TOKEN"] == "the-token"


def test_nothing_is_left_to_modals_defaults() -> None:
    """CPU, memory, lifetime, GPU and tags are all asked for."""
    asked = asked_for(REQUEST, OFFER, "T4:1", 77)
    assert (asked["cpu"], asked["memory"], asked["gpu"], asked["timeout"]) == (2.0, 16_384, "T4:1", 86_400)
    assert asked["tags"] == {
        "allpass": "node",
        "allpass-node": REQUEST.label,
        "allpass-price": str(OFFER.price_per_hour.micros),
        "allpass-asked": "77",
    }


@pytest.mark.parametrize(
    ("lifetime_ms", "seconds"), [(None, 86_400), (10**9, 86_400), (90_001, 91), (90_000, 90), (1, 10)]
)
def test_a_lifetime_is_whole_seconds_up_to_a_day(lifetime_ms: int | None, seconds: int) -> None:
    """Modal takes whole seconds and at most 24 hours."""
    assert lifetime_s(lifetime_ms) == seconds
    assert asked_for(replace(REQUEST, lifetime_ms=lifetime_ms), OFFER, "T4:1", 0)["timeout"] == seconds


async def test_what_is_promised_about_modal() -> None:
    """One tier, that dies with its run, may be preempted, and ends by itself after 24 hours."""
    provider = provider_at("http://127.0.0.1:1")
    (traits,) = provider.traits()
    assert isinstance(traits, ProviderTraits)
    assert (traits.dies_with_run, traits.preemptible, traits.max_lifetime_ms) == (True, True, 86_400_000)
    await provider.close()
