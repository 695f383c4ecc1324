"""Each family of clients has an environment of its own, with what is pinned and the project's torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.environments import REPOSITORY, made_by, python_of

FAMILIES = made_by["families"]()
_LOOKS = """
import importlib.metadata, importlib.util, json, sys
names = json.loads(sys.argv[1])
versions = {name: importlib.metadata.version(name) for name in names}
print(json.dumps([versions, importlib.util.find_spec("torch").origin]))
"""


@pytest.mark.parametrize("family", FAMILIES)
def test_it_has_what_is_pinned_and_shares_torch(family: str) -> None:
    pins = dict(one.split("==") for one in FAMILIES[family])
    command = [python_of(family), "-c", _LOOKS, json.dumps(list(pins))]
    versions, torch = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert versions == pins
    assert Path(torch).is_relative_to(Path(sys.prefix, "lib"))


def test_what_cannot_be_installed_is_named_and_fails(tmp_path: Path) -> None:
    """Nothing is taken for an environment that is none: the next run tries again."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "tests" / "clients").mkdir(parents=True)
    for name in ("constraints.txt", "constraints-clients.txt"):
        (tmp_path / name).write_text("")
    script = tmp_path / "scripts" / "clients.py"
    script.write_text((REPOSITORY / "scripts" / "clients.py").read_text())
    (tmp_path / "tests" / "clients" / "clients.toml").write_text('[nothing]\npins = ["./no-such-package"]\n')
    environ = {**os.environ, "ALLPASS_VENV": str(tmp_path / "venv")}
    for _ in range(2):
        done = subprocess.run([sys.executable, script], env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "error: ./no-such-package could not be installed" in done.stderr
    done = subprocess.run([sys.executable, script, "other"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "error: no client is named other; there are nothing\n")
