"""Whose login an image is fetched with."""

from __future__ import annotations

import json

import pytest

from app.core.images.logins import RegistryLogin, read_logins

LOGINS = json.dumps(
    {
        "ghcr.io": {"user": "all", "password": "p1"},
        "ghcr.io/team": {"user": "team", "password": "p2"},
        "docker.io/acme": {"user": "hub", "password": "p3"},
        "127.0.0.1:5000": {"user": "here", "password": "p4"},
        "nvcr.io": {"user": "$oauthtoken", "password": "p5"},
    }
)


@pytest.mark.parametrize(
    ("image", "user"),
    [
        ("ghcr.io/other/node:1", "all"),
        ("ghcr.io/team/node:1", "team"),
        ("ghcr.io/team", "team"),
        ("ghcr.io/teamwork/node", "all"),
        ("acme/node:2", "hub"),
        ("acme-evil/node", None),
        ("python:3.11", None),
        ("127.0.0.1:5000/a", "here"),
        ("nvcr.io/nvidia/pytorch:26.01-py3", "$oauthtoken"),
        ("ghcr.io.evil.example/team/node", None),
        ("Not An Image", None),
    ],
)
def test_the_longest_prefix_counts(image: str, user: str | None) -> None:
    """A login is given to its own registry and repositories alone: a name that only looks like them gets none."""
    login = read_logins(LOGINS).for_name(image)
    assert (login.user if login else None) == user


def test_without_logins_everything_is_public() -> None:
    """Nothing set, or only spaces."""
    assert read_logins("").for_name("ghcr.io/a/b") is None
    assert read_logins("  ").by_prefix == {}


def test_a_password_is_not_shown() -> None:
    """Neither by the login nor by all of them."""
    assert "hush" not in repr(RegistryLogin("me", "hush"))
    assert "hush" not in repr(read_logins('{"ghcr.io": {"user": "me", "password": "hush"}}'))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{hush", "not JSON"),
        ('["hush"]', "no JSON object"),
        ('{"ghcr.io": "hush"}', "exactly user and password"),
        ('{"ghcr.io": {"user": "me"}}', "exactly user and password"),
        ('{"ghcr.io": {"user": "me", "password": "hush", "more": 1}}', "exactly user and password"),
        ('{"ghcr.io": {"user": "me", "password": "hu sh"}}', "without spaces"),
        ('{"ghcr.io": {"user": "me", "password": "hush -p other"}}', "without spaces"),
        ('{"ghcr.io": {"user": "me", "password": "hush`id`"}}', "without spaces"),
        ('{"ghcr.io": {"user": "me", "password": ""}}', "without spaces"),
        ('{"ghcr.io": {"user": "me", "password": 7}}', "without spaces"),
        ('{"team": {"user": "me", "password": "hush"}}', "no registry"),
        ('{"https://ghcr.io": {"user": "me", "password": "hush"}}', "no registry"),
        ('{"ghcr.io/team:1": {"user": "me", "password": "hush"}}', "no registry"),
        ('{"ghcr.io/Team": {"user": "me", "password": "hush"}}', "no registry"),
    ],
)
def test_what_is_wrong_is_said_without_the_password(text: str, why: str) -> None:
    """The message names the registry at most."""
    with pytest.raises(ValueError, match=why) as raised:
        read_logins(text)
    assert "hush" not in str(raised.value)
