"""`./allpass`: what it says when the machine lacks something, and that it does nothing twice."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

_TOOLS = ("sh", "dirname", "cat", "cksum", "tr", "rm", "env")


@pytest.fixture
def machine(tmp_path: Path, repository_root: Path) -> Path:
    """A checkout on a machine that has the basic tools of POSIX, is not root, and nothing else."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in _TOOLS:
        found = shutil.which(name)
        assert found is not None, name
        (tools / name).symlink_to(found)
    _script(tools / "id", "echo 1000")
    checkout = tmp_path / "checkout"
    (checkout / "sdk").mkdir(parents=True)
    for name in ("allpass", "pyproject.toml", "constraints.txt", "sdk/pyproject.toml"):
        shutil.copy2(repository_root / name, checkout / name)
    return checkout


def _script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def _run(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(checkout.parent / "bin"), "HOME": str(checkout.parent)}
    command = [str(checkout / "allpass"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=30)


def test_without_python_it_says_what_to_install(machine: Path) -> None:
    """No Python at all: exit 1, the needed version, and the command for each system."""
    done = _run(machine, "demo")
    assert done.returncode == 1
    assert "Python 3.11 or newer is needed" in done.stderr
    assert "apt-get install python3" in done.stderr
    assert "brew install" in done.stderr
    assert not (machine / ".venv").exists()


def test_an_old_python_is_passed_over(machine: Path) -> None:
    """A Python that is too old counts as none."""
    _script(machine.parent / "bin" / "python3", 'case "$2" in *version_info*) exit 1;; esac; exit 0')
    done = _run(machine, "--help")
    assert (done.returncode, "Python 3.11 or newer is needed" in done.stderr) == (1, True)


def test_without_ensurepip_it_names_the_package_of_this_version(machine: Path) -> None:
    """A Debian Python without venv: exit 1 and the exact package name."""
    body = 'case "$2" in *ensurepip*) exit 1;; *"%d.%d"*) echo 3.12;; esac; exit 0'
    _script(machine.parent / "bin" / "python3", body)
    done = _run(machine, "up")
    assert done.returncode == 1
    assert "python3.12-venv" in done.stderr


def test_a_set_up_checkout_runs_the_command_line_at_once(machine: Path) -> None:
    """With the stamp of this very content nothing is installed: the real command line is executed."""
    venv = machine / ".venv" / "bin"
    venv.mkdir(parents=True)
    _script(venv / "python", "exit 0")
    _script(venv / "allpass", 'echo "real: $*"')
    counted = ("pyproject.toml", "sdk/pyproject.toml", "constraints.txt")
    content = b"".join((machine / name).read_bytes() for name in counted)
    stamp = subprocess.run(["cksum"], input=content, capture_output=True, check=True).stdout.decode().strip()
    (machine / ".venv" / ".installed-").write_text(stamp)
    done = _run(machine, "ps", "--json")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "real: ps --json", "")


def test_the_second_run_here_needs_no_installation(repository_root: Path) -> None:
    """In the checkout these tests run in, `./allpass --help` only starts the command line."""
    if not (repository_root / ".venv" / ".installed-devtraining").exists() and "CI" not in os.environ:
        pytest.skip("these tests were not started by ./allpass test")
    subprocess.run([repository_root / "allpass", "--help"], capture_output=True, check=True, timeout=300)
    done = subprocess.run(
        [repository_root / "allpass", "--help"], capture_output=True, text=True, check=True, timeout=60
    )
    assert "Installing" not in done.stderr
    assert "demo" in done.stdout
