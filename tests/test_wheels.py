"""What `pip install` of the two wheels gives: all that they need is in them or declared, and the commands work.

The libraries are those of this environment, linked by what the wheels declare, so that nothing is downloaded.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import tomllib
import venv
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

import allpass

ROOT = Path(__file__).resolve().parents[1]
_PACKED = {"sdk": ("allpass",), ".": ("app", "providers", "workers", "migrations")}
_START_S = 120


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the checklist of a release builds them, but with the build backend that is installed here."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-P", "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder]
    subprocess.run([*build, "./sdk", "."], cwd=ROOT, check=True, timeout=120)
    return folder


def wheel_of(dist: Path, name: str) -> Path:
    (found,) = dist.glob(f"{name}-*.whl")
    return found


def needs(name: str, extra: str = "") -> set[str]:
    """The names of all that a distribution needs, and what these need."""
    found: set[str] = set()
    waiting = [(name, frozenset({extra}))]
    while waiting:
        wanted, extras = waiting.pop()
        for line in distribution(wanted).requires or ():
            one = Requirement(line)
            if one.name in found or not any(one.marker is None or one.marker.evaluate({"extra": e}) for e in extras):
                continue
            found.add(one.name)
            waiting.append((one.name, frozenset({"", *one.extras})))
    return found


def installed(folder: Path, wheels: list[Path], libraries: set[str]) -> Path:
    """The folder of the commands of an environment that has these wheels and libraries and nothing else."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    install = [sys.executable, "-P", "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, *wheels], check=True, timeout=120)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in libraries:
        found = distribution(name)
        tops = {path.parts[0] for path in found.files or () if path.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            if not (packages / top).exists():
                (packages / top).symlink_to(str(found.locate_file(top)))
    return folder / "bin"


def run(commands: Path, *words: str, cwd: Path, timeout_s: int = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [commands / words[0], *words[1:]],
        cwd=cwd,
        env=environ(cwd),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )


def environ(home: Path) -> dict[str, str]:
    """Of somebody who has no checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ALLPASS", "PYTHON"))}
    return kept | {"HOME": str(home), "NO_COLOR": "1"}


def test_their_versions_are_one() -> None:
    """The server asks for the client of its own release."""
    client, server = (tomllib.loads((ROOT / path / "pyproject.toml").read_text())["project"] for path in ("sdk", "."))
    assert client["version"] == server["version"] == allpass.__version__
    assert f"allpass=={allpass.__version__}" in server["dependencies"]


@pytest.mark.parametrize(("folder", "name"), [("sdk", "allpass"), (".", "allpass_server")])
def test_every_file_is_in_them(dist: Path, folder: str, name: str) -> None:
    """Scripts of machines, pages, prices and templates too, and nothing else: no test, no cache."""
    here = {
        path.relative_to(ROOT / folder).as_posix()
        for package in _PACKED[folder]
        for path in (ROOT / folder / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with ZipFile(wheel_of(dist, name)) as wheel:
        packed = {one for one in wheel.namelist() if ".dist-info/" not in one}
    examples = {f"allpass/examples/{path.name}" for path in (ROOT / "examples").iterdir() if path.is_file()}
    added = examples if folder == "sdk" else {"app/registry/node.Dockerfile"}  # what `allpass images build` reads
    assert packed == here | added


def test_the_client_alone_needs_little(dist: Path, tmp_path: Path) -> None:
    """No database, no web framework, no torch; and it says in a line what it is not."""
    commands = installed(tmp_path / "client", [wheel_of(dist, "allpass")], needs("allpass"))
    assert not needs("allpass") & {"sqlalchemy", "fastapi", "boto3", "modal", "torch", "numpy"}
    assert run(commands, "allpass", "--version", cwd=tmp_path).stdout == f"allpass {allpass.__version__}\n"
    assert run(commands, "allpass", "example", "three_lines.py", cwd=tmp_path).returncode == 0
    assert (tmp_path / "three_lines.py").read_text() == (ROOT / "examples" / "three_lines.py").read_text()
    refused = run(commands, "allpass", "up", cwd=tmp_path)
    assert (refused.returncode, "pip install allpass-server" in refused.stderr) == (2, True)
    assert run(commands, "python", "-c", "import app", cwd=tmp_path).returncode == 1
    exam = run(commands, "python", "-c", "import allpass.testing.providers", cwd=tmp_path)
    assert "pip install allpass-server pytest" in exam.stderr
    loaded = "import allpass; allpass.build, allpass.finetune, allpass.Client, allpass.AsyncClient"
    assert run(commands, "python", "-c", loaded, cwd=tmp_path).stderr == ""


def test_the_server_finds_its_providers_and_the_exam_by_what_is_installed(dist: Path, tmp_path: Path) -> None:
    """Without a checkout: by the entry points of the wheel. The exam needs pytest beside it, and nothing else."""
    wheels = [wheel_of(dist, "allpass"), wheel_of(dist, "allpass_server")]
    libraries = (needs("allpass-server") - {"allpass"}) | {"pytest"} | needs("pytest")
    commands = installed(tmp_path / "server", wheels, libraries)
    program = (
        "from app.plugins import found_providers; from allpass.testing.providers import ProviderExam;"
        "print([one.name for one in found_providers() if one.is_own], hasattr(ProviderExam, 'harness'))"
    )
    done = run(commands, "python", "-c", program, cwd=tmp_path)
    assert done.stdout == "['joined', 'kubernetes', 'lambda', 'local', 'modal', 'runpod', 'slurm', 'vast'] True\n", (
        done.stderr
    )


@pytest.fixture
def served(dist: Path, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """The commands of an environment with both wheels, and what `allpass up` said in an empty folder."""
    wheels = [wheel_of(dist, "allpass"), wheel_of(dist, "allpass_server")]
    commands = installed(tmp_path / "server", wheels, needs("allpass-server") - {"allpass"})
    heard = tmp_path / "heard"
    with heard.open("w") as file:
        up = subprocess.Popen(
            [commands / "allpass", "up", "--port", "0", "--data-dir", str(tmp_path / "data")],
            cwd=tmp_path, env=environ(tmp_path), stdout=file, stderr=file)  # fmt: skip
        try:
            until = time.monotonic() + _START_S
            while "  try " not in heard.read_text() and up.poll() is None and time.monotonic() < until:
                time.sleep(0.2)
            yield commands, heard.read_text()
        finally:
            up.send_signal(signal.SIGTERM)
            up.wait(60)


@pytest.mark.stack
def test_the_server_runs_a_first_job_from_its_wheel(served: tuple[Path, str], tmp_path: Path) -> None:
    """The command that `up` names works as it is, in the folder where that was typed."""
    commands, said = served
    assert "Allpass serves on" in said, said
    named = re.search(r"  try +allpass (example \S+) && allpass (run \S+) --follow", said)
    assert named is not None, said
    assert run(commands, "allpass", *named[1].split(), cwd=tmp_path).returncode == 0
    done = run(commands, "allpass", *named[2].split(), "--follow", cwd=tmp_path)
    assert (done.returncode, "plain_loop: done" in done.stdout) == (0, True), done.stderr
