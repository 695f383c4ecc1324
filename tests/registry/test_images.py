"""`allpass images`: what people see and what is run for them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from allpass.cli.faults import exit_code_of
from allpass.cli.main import as_command
from app.cli.images import images
from tests.registry.conftest import PYTHON
from tests.registry.emulated import EmulatedRegistry

Told = tuple[int, str, str]
Call = Callable[..., Told]


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """Runs the command with an empty PATH but for `tmp_path`; exit code and what it wrote."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def called(*words: str, **environ: str) -> Told:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        code = exit_code_of(lambda: as_command("images", images).main(list(words), standalone_mode=False))
        out, err = capfd.readouterr()
        return code, out, err

    return called


def engine(folder: Path, name: str = "docker", code: int = 0) -> Path:
    """A program of that name, which writes down how it was called."""
    program = folder / name
    noted = folder / "called.json"
    program.write_text(
        f"#!{sys.executable}\nimport json, pathlib, sys\nwords = sys.argv[1:]\n"
        f"holds = sorted(map(str, pathlib.Path(words[-1]).iterdir())) if words[0] == 'build' else []\n"
        f"pathlib.Path({str(noted)!r}).write_text(json.dumps([words, holds]))\nsys.exit({code})\n"
    )
    program.chmod(0o755)
    return noted


def test_an_image_is_told_in_a_screen(call: Call, registry: EmulatedRegistry) -> None:
    """What it is, how long it takes, and what speaks against it."""
    code, out, _ = call("check", f"{registry.host}/team/node:1")
    assert code == 0
    said = " ".join(out.split())
    for words in ("access public", "python 3.11.9", "cuda 13.0", "linux/arm64, linux/amd64", "entry point none"):
        assert words in said
    assert "3.50 GB, 140 s at 200 Mbit/s" in said
    assert "nothing speaks against it" in said


def test_the_setting_is_checked_without_an_argument(call: Call, registry: EmulatedRegistry) -> None:
    """With the login of its registry, which is not shown, and with the other settings of the server."""
    registry.private = frozenset({"team/node"})
    login = json.dumps({registry.host: {"user": "robot", "password": "hush"}})
    code, out, err = call(
        "check",
        ALLPASS_NODE_IMAGE=f"{registry.host}/team/node:1",
        ALLPASS_REGISTRY_LOGINS=login,
        ALLPASS_VAST_INET_DOWN_MBPS="100",
        ALLPASS_VAST_CUDA="12.8",
    )
    said = " ".join(out.split())
    assert code == 0, err
    assert "with the login of robot" in said
    assert "280 s at 100 Mbit/s" in said
    assert "vast: its CUDA is 13.0, and hosts of CUDA 12.8 are rented" in said
    assert "hush" not in out + err


def test_programs_get_an_object(call: Call, registry: EmulatedRegistry) -> None:
    """And the exit code says whether machines could be rented with it."""
    registry.tag("team/node", "arm", registry.put("team/node", {**PYTHON, "architecture": "arm64"}))
    code, out, err = call("check", f"{registry.host}/team/node:arm", "--json", "--bandwidth-mbps", "8")
    told = json.loads(out)
    assert (code, told["download_s"], told["python"]) == (1, 1.0, "3.11.9")
    assert told["findings"][0]["severity"] == "refused"
    assert "machines cannot be rented with" in err


@pytest.mark.parametrize(
    ("words", "environ", "code", "said"),
    [
        (("check", "Not An Image"), {}, 2, "is no image"),
        (("check",), {"ALLPASS_NODE_IMAGE": "Not An Image"}, 2, "ALLPASS_NODE_IMAGE"),
        (("check",), {"ALLPASS_REGISTRY_LOGINS": '{"ghcr.io": "hush"}'}, 2, "exactly user and password"),
        (("check", "127.0.0.1:9/team/node:1"), {}, 1, "cannot be asked"),
        (("build",), {}, 1, "none of docker, podman, nerdctl is in PATH"),
        (("build", "--engine", "podman"), {}, 1, "podman is not in PATH"),
        (("build", "--engine", "rm"), {}, 2, "none of docker, podman, nerdctl"),
        (("push", "ghcr.io/team/node:1"), {}, 1, "none of docker, podman, nerdctl is in PATH"),
    ],
)
def test_what_cannot_be_done_says_why(
    call: Call, words: tuple[str, ...], environ: dict[str, str], code: int, said: str
) -> None:
    """Usage is 2, everything else 1; a password is never part of it."""
    got, out, err = call(*words, **environ)
    assert got == code, err
    assert said in " ".join(err.split())
    assert "hush" not in out + err


def test_an_image_is_built_by_the_engine_that_is_there(call: Call, tmp_path: Path) -> None:
    """For the platform of rented machines, whatever this one is; with nothing of this host in its context."""
    noted = engine(tmp_path, "podman")
    code, _, err = call("build", "ghcr.io/team/node:1", "--package", "torch==2.13.0", "--package", "peft")
    assert code == 0, err
    words, holds = json.loads(noted.read_text())
    assert words[:3] == ["build", "--platform", "linux/amd64"]
    assert Path(words[words.index("--file") + 1]).read_text().startswith("# What a rented machine boots")
    assert words[words.index("--tag") + 1] == "ghcr.io/team/node:1"
    assert "PYTHON_IMAGE=python:3.11-slim" in words
    assert "PACKAGES=torch==2.13.0 peft" in words
    assert holds == []
    assert not Path(words[-1]).exists()


def test_a_failed_build_and_push_are_told(call: Call, tmp_path: Path) -> None:
    """With the engine's exit code, and where a login may be what is missing, how to have one."""
    engine(tmp_path, code=7)
    assert "exit code 7" in call("build")[2]
    code, _, err = call("push", "ghcr.io/team/node:1")
    assert code == 1
    assert "docker login ghcr.io" in err


def test_an_image_is_pushed_under_its_name(call: Call, tmp_path: Path) -> None:
    """Ours can only be meant by mistake: there is no registry of that name that anybody may push to."""
    noted = engine(tmp_path)
    assert call("push", "ghcr.io/team/node:1")[0] == 0
    assert json.loads(noted.read_text())[0] == ["push", "ghcr.io/team/node:1"]
    for name in ("allpass/node:latest", "node:1"):
        code, _, err = call("push", name)
        assert code == 2
        assert "put a registry and name of yours before it" in " ".join(err.split())
    assert os.environ["PATH"] == str(tmp_path)
