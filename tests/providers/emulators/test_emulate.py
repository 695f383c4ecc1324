"""`allpass emulate` as a process."""

from __future__ import annotations

import json
import os
import shlex
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
from providers.conformance.suite import request_for
from providers.emulators.companies import Company
from providers.emulators.serving import KEY_VARIABLE
from providers.kubernetes.adapter import KubernetesProvider
from providers.kubernetes.options import KubeOptions, KubeShape
from tests.providers.cloud_process import PATIENCE_S, WallClock, eventually, processes_under
from tests.providers.kubernetes_cluster import idle_script

ALLPASS = str(Path(sys.executable).parent / "allpass")
QUIET = ["--port", "0", "--admin-port", "0", "--speed", "0"]


def start(folder: Path, *options: str, company: str = "lambda") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [ALLPASS, "emulate", company, "--data-dir", str(folder), *QUIET, *options],
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
        (told[name],) = shlex.split(value)  # as a shell reads it
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


async def test_a_cluster_is_used_by_what_is_printed_and_its_pods_end_with_it(tmp_path: Path) -> None:
    """The settings make a provider that has a machine there; its way in is for its owner alone; Ctrl-C leaves nothing
    that runs."""
    process = start(tmp_path / "cluster", company="kubernetes")
    told = settings_of(process)
    kubeconfig = Path(told["ALLPASS_KUBERNETES_KUBECONFIG"])
    assert stat.S_IMODE(kubeconfig.stat().st_mode) == 0o600  # noqa: ASYNC240 - a small local file
    shapes = tuple(KubeShape.model_validate(one) for one in json.loads(told["ALLPASS_KUBERNETES_SHAPES"]))
    options = KubeOptions(shapes, str(kubeconfig), grace_s=5)
    provider = KubernetesProvider(options, clock=WallClock(), bootstrap=idle_script)
    (offer,) = await provider.offers()
    await provider.create(request_for(offer))
    await provider.close()
    eventually(lambda: processes_under(tmp_path))
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 0, said
    assert f"kubectl --kubeconfig {kubeconfig}" in said
    eventually(lambda: not processes_under(tmp_path))


def test_pods_do_not_outlive_their_cluster(tmp_path: Path) -> None:
    """Asked to leave them, it says what to leave out instead."""
    app = typer.Typer()
    app.command()(command.emulate)
    asked = ["kubernetes", "--data-dir", str(tmp_path), "--no-machines-die-with-emulator"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 2
    assert "leave out --no-machines-die-with-emulator" in result.output.replace("\n", " ")


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
    told = connection_settings(company, "http://127.0.0.1:1", "ak-a:as-b", speed, Path("/emulator"))
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    settings = Settings(database_url="postgresql://a", secret_key="k" * 32, objects_signing_key="s" * 32)
    for name, value in told.items():
        (one,) = (one for one in settings.providers if name.startswith(one.prefix))
        found = getattr(one.section, name.removeprefix(one.prefix).lower())
        shown = found.get_secret_value() if hasattr(found, "get_secret_value") else found
        if isinstance(shown, list):
            assert [each.name for each in shown] == [each["name"] for each in json.loads(value)]
        else:
            assert str(shown) == value or float(shown) == float(value)
