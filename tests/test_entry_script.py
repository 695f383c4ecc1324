"""`./allpass`: what it says when the machine lacks something, and that it does nothing twice."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

_TOOLS = ("sh", "dirname", "cat", "cksum", "tr", "rm", "env", "sed", "mkdir", "ln", "ls", "tail")


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


# Notes how it is called, and makes environments as uv does.
_UV = """
echo "$*" >>"$HOME/called"
case "$3 $4" in
"uv venv") for folder; do :; done; mkdir -p "$folder/bin"; ln -s "$0" "$folder/bin/python" ;;
"uv pip") ;;
esac
"""


def _set_up(checkout: Path, *, extras: str, python: str = "exit 0") -> Path:
    """The environment of a checkout that was set up with these extras; its interpreter does as it is told."""
    venv = checkout / ".venv"
    (venv / "bin").mkdir(parents=True)
    _script(venv / "bin" / "python", python)
    counted = ("pyproject.toml", "sdk/pyproject.toml", "constraints.txt")
    content = b"".join((checkout / name).read_bytes() for name in counted)
    stamp = subprocess.run(["cksum"], input=content, capture_output=True, check=True).stdout.decode().strip()
    (venv / f".installed-{extras}").write_text(stamp)
    return venv


def _run(checkout: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(checkout.parent / "bin"), "HOME": str(checkout.parent), **variables}
    command = [str(checkout / "allpass"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


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


@pytest.mark.parametrize(
    ("named", "why"), [("/gone/python3.12", "is not there"), ("old", "is not Python 3.11 or newer")]
)
def test_a_python_that_was_named_is_used_or_refused(machine: Path, named: str, why: str) -> None:
    """Never another one in its place: it would not have what was prepared for this one."""
    _script(machine.parent / "bin" / "python3.12", "exit 0")
    _script(machine.parent / "bin" / "old", "exit 1")
    done = _run(machine, "--version", ALLPASS_PYTHON=named)
    assert done.returncode != 0
    assert f"ALLPASS_PYTHON={named} {why}" in done.stderr
    assert not (machine / ".venv").exists()


def test_without_ensurepip_it_names_the_package_of_this_version(machine: Path) -> None:
    """A Debian Python without venv: exit 1 and the exact package name."""
    body = 'case "$*" in *ensurepip*) exit 1;; *"%d.%d"*) echo 3.12;; esac; exit 0'
    _script(machine.parent / "bin" / "python3", body)
    done = _run(machine, "up")
    assert done.returncode == 1
    assert "python3.12-venv" in done.stderr


def test_a_checkout_that_cannot_be_written_to_names_another_place(machine: Path) -> None:
    """Before anything is downloaded; the place that is named is used, and what is no environment is never removed."""
    _script(machine.parent / "bin" / "python3", "exit 0")
    (machine / ".venv").write_text("where a folder cannot be made")
    done = _run(machine, "--version")
    assert (done.returncode, "cannot be written to" in done.stderr, "ALLPASS_VENV=" in done.stderr) == (1, True, True)
    letters = machine.parent / "letters"
    letters.mkdir()
    (letters / "dear").write_text("all that is left of her")
    done = _run(machine, "--version", ALLPASS_VENV=str(letters))
    assert (done.returncode, "holds other things" in done.stderr) == (1, True)
    assert (letters / "dear").read_text() == "all that is left of her"


def test_the_environment_is_where_it_is_asked_for(machine: Path) -> None:
    """Also from a folder below, by a relative name."""
    venv = _set_up(machine, extras="")
    _script(venv / "bin" / "allpass", 'echo "real: $ALLPASS_VENV"')
    venv.rename(machine.parent / "elsewhere")
    command = [str(machine / "allpass"), "ps"]
    environ = {"PATH": str(machine.parent / "bin"), "HOME": "/", "ALLPASS_VENV": "../elsewhere"}
    done = subprocess.run(command, env=environ, cwd=machine, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.strip() == f"real: {machine}/../elsewhere"


def test_what_cannot_be_installed_is_said_in_a_few_lines(machine: Path) -> None:
    """Offline, after an upgrade: pip's last line says it, and the others are kept where one can read them."""
    offline = 'case $* in *install*) for n in 1 2 3 4 5; do echo "retry $n"; done; echo "no index" >&2; exit 1 ;; esac'
    venv = _set_up(machine, extras="", python=offline)
    (venv / ".installed-").write_text("of an older release")
    done = _run(machine, "ps")
    assert done.returncode == 1
    assert "error: the installation failed: no index\n" in done.stderr
    assert "retry" not in done.stderr
    assert (venv / "install.log").read_text().count("retry 5") == 2


def test_a_set_up_checkout_runs_the_command_line_at_once(machine: Path) -> None:
    """With the stamp of this very content nothing is installed: the real command line is executed."""
    venv = _set_up(machine, extras="")
    _script(venv / "bin" / "allpass", 'echo "real: $*"')
    done = _run(machine, "ps", "--json")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "real: ps --json", "")


def test_the_sdk_of_vast_gets_an_environment_of_its_own_once(machine: Path) -> None:
    """The first run of the tests makes it, with the version that is pinned; the second finds it there."""
    python = _set_up(machine, extras="dev,training", python=_UV) / "bin" / "python"
    first, second = _run(machine, "test", "tests/core"), _run(machine, "test")
    assert (first.returncode, second.returncode) == (0, 0)
    sdk = machine / ".venv" / "vast-sdk"
    assert (machine.parent / "called").read_text().splitlines() == [
        f"-P -m uv venv --quiet --clear --python {python} {sdk}",
        f"-P -m uv pip install --quiet --python {sdk}/bin/python vastai-sdk==1.9.1",
        "-m pytest -n 4 --dist loadgroup tests/core",
        "-m pytest -n 4 --dist loadgroup",
    ]


def test_without_the_sdk_of_vast_all_other_tests_run(machine: Path) -> None:
    """What cannot be installed is said, with the place of the reason; nothing half made is left to be taken for it."""
    _set_up(machine, extras="dev,training", python=_UV.replace('pip") ;;', 'pip") echo none >&2; exit 1 ;;'))
    done = _run(machine, "test")
    assert done.returncode == 0
    assert (machine.parent / "called").read_text().endswith("-m pytest -n 4 --dist loadgroup\n")
    assert "the tests that drive it are skipped" in done.stderr
    assert not (machine / ".venv" / "vast-sdk").exists()
    assert (machine / ".venv" / "vast-sdk.log").read_text() == "none\n"


def test_clients_are_tested_in_environments_that_were_made_for_them(machine: Path) -> None:
    """Where one of them cannot be made it fails, and nothing is tested."""
    _set_up(machine, extras="dev,training", python=_UV)
    assert _run(machine, "test", "clients", "-k", "wandb").returncode == 0
    assert (machine.parent / "called").read_text().splitlines() == [
        "-P scripts/clients.py",
        "-m pytest -n 4 --dist loadgroup tests/clients -k wandb",
    ]
    _script(machine / ".venv" / "bin" / "python", _UV + "case $* in *clients.py) exit 1 ;; esac")
    assert _run(machine, "test", "clients").returncode == 1
    assert (machine.parent / "called").read_text().splitlines()[2:] == ["-P scripts/clients.py"]


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
