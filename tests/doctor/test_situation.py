"""Which installation is looked at, read from a shell and a data directory."""

from __future__ import annotations

import json
import os
from pathlib import Path

from app.doctor.situation import SetUpKind, Situation, look_around
from app.stack.layout import StackPaths

SERVICE = {
    "ALLPASS_DATABASE_URL": "postgresql://ada:lovelace@127.0.0.1:5432/allpass",
    "ALLPASS_SECRET_KEY": "s" * 40,
    "ALLPASS_OBJECTS_SIGNING_KEY": "o" * 40,
    "ALLPASS_VAST_API_KEY": "v" * 40,
}


def seen(folder: Path, environment: dict[str, str]) -> Situation:
    found = look_around(folder / "data", environment)
    assert isinstance(found, Situation), found
    return found


def test_the_settings_of_a_server_are_taken_as_they_are(tmp_path: Path) -> None:
    """With their secrets, every one of which may not be told: the database's password among them."""
    found = seen(tmp_path, SERVICE)
    assert found.kind is SetUpKind.SERVICE
    assert found.settings.database_url.get_secret_value() == SERVICE["ALLPASS_DATABASE_URL"]
    assert {"lovelace", "s" * 40, "o" * 40, "v" * 40} <= set(found.secrets)


def test_an_empty_shell_is_a_stack_to_be_started(tmp_path: Path) -> None:
    """Nothing is made, and no account is there."""
    found = seen(tmp_path, {})
    assert (found.kind, found.real) == (SetUpKind.PLANNED, frozenset())
    assert not (tmp_path / "data").exists()


def test_keys_alone_are_what_up_would_be_given(tmp_path: Path) -> None:
    """Whole accounts only; the addresses of the shell count, and half an account is said."""
    shell = {"ALLPASS_VAST_API_KEY": "v" * 40, "ALLPASS_LAMBDA_API_KEY": "l" * 40, "ALLPASS_LAMBDA_SSH_KEY": "mine"}
    found = seen(tmp_path, {**shell, "ALLPASS_PUBLIC_URL": "https://gpu.example.com"})
    assert (found.kind, found.real) == (SetUpKind.PLANNED, frozenset({"vast", "lambda"}))
    assert (found.settings.public_url, found.objects_port) == ("https://gpu.example.com", 7701)
    half = look_around(tmp_path / "data", {"ALLPASS_MODAL_TOKEN_ID": "ak-1"})
    assert isinstance(half, list)
    assert "ALLPASS_MODAL_TOKEN_SECRET" in half[0].message


def test_a_wrong_setting_is_named_without_its_value(tmp_path: Path) -> None:
    """It may be a secret that was put into the wrong place."""
    found = look_around(tmp_path, {**SERVICE, "ALLPASS_POLL_S": "sesame"})
    assert isinstance(found, list)
    assert [one.code for one in found] == ["setting_wrong"]
    assert "ALLPASS_POLL_S" in found[0].message
    assert "sesame" not in found[0].message + found[0].fix


def test_a_port_that_is_none_is_named(tmp_path: Path) -> None:
    """Also where the stack's own ports are worked out from it."""
    found = look_around(tmp_path, {"ALLPASS_PORT": "many"})
    assert isinstance(found, list)
    assert "ALLPASS_PORT" in found[0].message


def test_a_stack_that_runs_is_looked_at_with_its_own_settings(tmp_path: Path) -> None:
    """Its file counts only while somebody holds the directory; keys that this shell lacks are with the server."""
    layout = StackPaths((tmp_path / "data").resolve())
    layout.create()
    settings = {**SERVICE, "ALLPASS_PUBLIC_URL": "https://gpu.example.com", "ALLPASS_PORT": "7800"}
    del settings["ALLPASS_VAST_API_KEY"]
    layout.server_file.write_text(json.dumps({"objects_port": 7801, "real": ["vast"], "settings": settings}))
    assert seen(tmp_path, {}).kind is SetUpKind.PLANNED
    with layout.lock():
        found = seen(tmp_path, {})
    assert (found.kind, found.settings.port, found.objects_port) == (SetUpKind.RUNNING, 7800, 7801)
    (vast,) = (one for one in found.settings.providers if one.name == "vast")
    assert vast.is_configured
    assert "v" * 40 not in found.secrets


def test_looking_leaves_the_environment_as_it_was(tmp_path: Path) -> None:
    """Settings are read from the environment; for that moment only it is another."""
    before = dict(os.environ)
    seen(tmp_path, SERVICE)
    look_around(tmp_path, {**SERVICE, "ALLPASS_POLL_S": "x"})
    assert dict(os.environ) == before
