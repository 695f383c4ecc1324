"""The repository keeps its own promises: settings are listed, the entry script is POSIX, nothing names a registry."""

from __future__ import annotations

import runpy
import shutil
import subprocess
from pathlib import Path

import pytest


def test_env_example_lists_every_setting_with_its_default(repository_root: Path) -> None:
    """`.env.example` is what scripts/env_example.py prints from the settings."""
    made = runpy.run_path(str(repository_root / "scripts" / "env_example.py"))["render"]()
    assert (repository_root / ".env.example").read_text() == made


@pytest.mark.parametrize("script", ["allpass", ".ci/run", "scripts/pin.sh"])
def test_shell_scripts_parse_as_posix_sh(repository_root: Path, script: str) -> None:
    """Every shell script is valid for a plain POSIX shell."""
    shell = shutil.which("dash") or "/bin/sh"
    done = subprocess.run([shell, "-n", str(repository_root / script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_module_has_a_docstring_and_a_sane_length(repository_root: Path) -> None:
    """A file says what it is for, and stays short enough to be read at once."""
    for folder in ("app", "providers", "workers", "sdk/allpass"):
        for path in (repository_root / folder).rglob("*.py"):
            text = path.read_text()
            assert not text.strip() or text.lstrip().startswith(('"""', "#!")), f"{path} has no docstring"
            assert text.count("\n") <= 600, f"{path} is too long"


def test_no_file_has_two_sides_of_a_merge(repository_root: Path) -> None:
    """What was left undecided when branches came together stands in none."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=repository_root, capture_output=True, check=True).stdout
    marks = (b"<" * 7 + b" ", b">" * 7 + b" ")
    found = []
    for name in filter(None, listed.decode().split("\0")):
        path = repository_root / name
        lines = path.read_bytes().splitlines() if path.is_file() else []
        found += [f"{name}:{number}" for number, line in enumerate(lines, 1) if line.startswith(marks)]
    assert found == []
