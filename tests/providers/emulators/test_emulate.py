"""`allpass emulate` as a process."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import typer
from typer.testing import CliRunner

from app.cli import emulate as command
from app.settings import Settings
from app.stack.emulated import connection_settings
from providers.emulators.companies import Company
from providers.emulators.serving import KEY_VARIABLE
from tests.providers.cloud_process import PATIENCE_S

ALLPASS = str(Path(sys.executable).parent / "allpass")
QUIET = ["--port", "0", "--admin-port", "0", "--speed", "0"]


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [ALLPASS, "emulate", "lambda", "--data-dir", str(folder), *QUIET, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def settings_of(process: subprocess.Popen[str]) -> dict[str, str]:
    """What it printed, up to the admin key, which comes last."""
    told: dict[str, str] = {}
    while "ALLPASS_EMULATOR_ADMIN_KEY" not in told:
        line = process.stdout.readline() if process.stdout else ""
        assert line, process.communicate()[1]
        name, _, value = line.strip().partition("=")
        told[name] = value
    return told


def test_it_serves_and_prints_the_settings_of_a_server(tmp_path: Path) -> None:
    """What it prints are settings that reach it; Ctrl-C ends it."""
    process = start(tmp_path / "lambda", "--set", "gpu_quota=3")
    told = settings_of(process)
    headers = {"Authorization": f"Bearer {told['ALLPASS_LAMBDA_API_KEY']}"}
    url = f"{told['ALLPASS_LAMBDA_URL']}/api/v1/instances"
    assert httpx.get(url, headers=headers, trust_env=False).json() == {"data": []}
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 0, said


def test_keys_are_made_once_and_kept_privately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of a data directory stay the same, in a file for its owner only; the environment wins over them."""
    keys = command._keys(Company.MODAL, tmp_path)
    assert command._keys(Company.MODAL, tmp_path) == keys
    assert stat.S_IMODE((tmp_path / "keys.json").stat().st_mode) == 0o600
    monkeypatch.setenv(KEY_VARIABLE, "given")
    assert command._keys(Company.MODAL, tmp_path) == keys | {KEY_VARIABLE: "given"}


def test_without_modals_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulated Modal needs Modal's own package; without it the message is the command that installs it."""
    app = typer.Typer()
    app.command()(command.emulate)
    monkeypatch.setattr(command, "find_spec", lambda _: None)
    result = CliRunner().invoke(app, ["modal", "--data-dir", str(tmp_path)])
    assert result.exit_code == 2
    assert "pip install 'modal>=1.6,<1.7'" in result.output


@pytest.mark.parametrize("company", list(Company))
@pytest.mark.parametrize("speed", [0.0, 0.05, 1.0])
def test_the_printed_settings_are_settings(company: Company, speed: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server accepts what is printed for each company, at every speed."""
    for name in [name for name in os.environ if name.startswith("ALLPASS_")]:
        monkeypatch.delenv(name)
    told = connection_settings(company, "http://127.0.0.1:1", "ak-a:as-b", speed)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    settings = Settings(database_url="postgresql://a", secret_key="k" * 32, objects_signing_key="s" * 32)
    for name, value in told.items():
        (one,) = (one for one in settings.providers if name.startswith(one.prefix))
        found = getattr(one.section, name.removeprefix(one.prefix).lower())
        shown = found.get_secret_value() if hasattr(found, "get_secret_value") else found
        assert str(shown) == value or float(shown) == float(value)
