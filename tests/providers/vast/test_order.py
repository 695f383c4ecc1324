"""What is sent to rent a host, and what is refused before it is sent."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from app.core.images.logins import RegistryLogin, RegistryLogins
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.errors import InvalidRequest
from app.ports.provider import MachineRequest
from providers.vast.options import VastOptions
from providers.vast.order import create_body

OPTIONS = VastOptions(api_key="k", disk_gb=64)
OFFER = Offer("vast", "123", Tier.MARKETPLACE, "A100", 1, 1, 1, 1, Money(1), 1)
REQUEST = MachineRequest("node_x", OFFER, Money(1), "allpass/node:1", (("ALLPASS_URL", "https://a.example"),))


def test_the_body_is_what_the_api_takes() -> None:
    """Our id is the label, the script is the container's command, and nothing may be left behind unavailable."""
    assert create_body(REQUEST, "exec true", OPTIONS, None) == {
        "client_id": "me",
        "image": "allpass/node:1",
        "env": {
            "ALLPASS_URL": "https://a.example",
            "ALLPASS_AGENT_ENDS": "https://console.vast.ai/api/v0/instances/{CONTAINER_ID}/ CONTAINER_API_KEY",
        },
        "price": None,
        "disk": 64,
        "label": "node_x",
        "runtype": "args",
        "onstart": "/bin/sh",
        "args": ["-c", "exec true"],
        "cancel_unavail": True,
        "target_state": "running",
    }


def test_a_bid_is_a_number() -> None:
    """With a price the contract is an interruptible one."""
    assert create_body(REQUEST, "exec true", OPTIONS, Decimal("1.155"))["price"] == 1.155


@pytest.mark.parametrize(
    ("change", "script", "field"),
    [
        ({}, "x" * 4_088, "args"),
        ({}, "é" * 2_044, "args"),
        ({"bootstrap": (("ALLPASS_JOIN_TOKEN", "t" * 257),)}, "x", "env.ALLPASS_JOIN_TOKEN"),
        ({"bootstrap": tuple((f"V{n}", "t" * 256) for n in range(130))}, "x", "env"),
        ({"label": "l" * 257}, "x", "label"),
        ({"image": "i" * 1_025}, "x", "image"),
    ],
    ids=["script", "script in bytes", "a value", "all values", "label", "image"],
)
def test_what_is_too_long_is_refused_by_name(change: dict[str, Any], script: str, field: str) -> None:
    """The field that Vast.ai would not take is named before anything is sent."""
    with pytest.raises(InvalidRequest) as raised:
        create_body(replace(REQUEST, **change), script, OPTIONS, None)
    assert raised.value.param == field
    assert field in raised.value.message


def test_what_just_fits_is_sent() -> None:
    """The limits themselves are allowed."""
    request = replace(REQUEST, bootstrap=(("TOKEN", "t" * 256),))
    body = create_body(request, "x" * 4_087, OPTIONS, None)
    assert len(body["onstart"]) + sum(len(each) for each in body["args"]) == 4_096


@pytest.mark.parametrize(
    ("image", "login"),
    [
        ("ghcr.io/team/node:1", "-u robot -p hush ghcr.io"),
        ("ghcr.io/other/node:1", None),
        ("team/node:1", "-u hub -p hush2 docker.io"),
        ("python:3.11", None),
    ],
)
def test_a_private_image_brings_its_login(image: str, login: str | None) -> None:
    """Beside the container's environment, never in it; and only the login of that very registry."""
    given = {"ghcr.io/team": ("robot", "hush"), "docker.io/team": ("hub", "hush2")}
    logins = RegistryLogins({prefix: RegistryLogin(*words) for prefix, words in given.items()})
    body = create_body(replace(REQUEST, image=image), "exec true", replace(OPTIONS, logins=logins), None)
    assert body.get("image_login") == login
    assert "hush" not in str({key: value for key, value in body.items() if key != "image_login"})
    assert "hush" not in repr(replace(OPTIONS, logins=logins))


def test_a_disk_has_a_least_size() -> None:
    """Vast.ai rents out no disk of less than 8 GB."""
    with pytest.raises(InvalidRequest) as raised:
        create_body(REQUEST, "x", replace(OPTIONS, disk_gb=7), None)
    assert raised.value.param == "disk"
