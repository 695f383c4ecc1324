"""The guides, followed to the letter: every command and every script of them is run against the real stack."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import blocks_of
from tests.e2e.service import EXAMPLES, Service

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
GUIDES = EXAMPLES.parent / "docs" / "guides"


class Reader:
    """Somebody with a shell, the examples, and a server that is configured."""

    def __init__(self, service: Service, folder: Path) -> None:
        for script in EXAMPLES.glob("*.py"):
            shutil.copy(script, folder)
        known = json.loads(service.stack.layout.client_file.read_text())
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._folder = folder
        self._environment = {
            **os.environ, "PATH": path, "ALLPASS_URL": known["url"], "ALLPASS_API_KEY": known["api_key"],
        }  # fmt: skip

    def shell(self, guide: str) -> str:
        """Run its shell blocks, one after the other in one shell; what they print."""
        blocks = [one.text for one in blocks_of(GUIDES / guide, "sh") if one.is_run]
        assert blocks
        return self._run(["sh", "-euc", "".join(blocks)])

    def python(self, text: str) -> str:
        return self._run([sys.executable, "-c", text])

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(
            command, cwd=self._folder, env=self._environment, capture_output=True, text=True, check=False, timeout=240
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture
def reader(service: Service, tmp_path: Path) -> Reader:
    return Reader(service, tmp_path)


def test_the_first_job(reader: Reader, tmp_path: Path) -> None:
    """It succeeds and leaves its file; the broken one shows its own traceback; Python does the same."""
    printed = reader.shell("first-job.md")
    assert "succeeded: exit code 0" in printed
    assert (tmp_path / "results" / "model.txt").read_text() == "trained\n"
    assert "KeyError: 2\n\njob_" in printed
    (text,) = [one.text for one in blocks_of(GUIDES / "first-job.md", "python")]
    assert reader.python(text).splitlines() == [
        "done",
        "allpass: 1 output file is stored",
        "succeeded",
        "['model.txt']",
    ]


def test_a_script_of_ones_own(reader: Reader) -> None:
    """Paused at any moment and resumed, the script ends; the one with three lines does as well."""
    printed = reader.shell("your-own-script.md")
    assert printed.count("done\n") == 2


def test_what_is_kept(reader: Reader, tmp_path: Path) -> None:
    """An ordinary script's files come back with their paths; some of them alone; and it is shown how many there are."""
    printed = reader.shell("results.md")
    assert "results     3 files, " in printed
    assert json.loads((tmp_path / "results/out/final/model.json").read_text())["weight"] == pytest.approx(3.0, abs=1e-3)
    assert len((tmp_path / "results/runs/loss.csv").read_text().splitlines()) == 100
    assert sorted(path.name for path in (tmp_path / "model").rglob("*") if path.is_file()) == [
        "config.json",
        "model.json",
    ]


def test_a_sweep(reader: Reader, tmp_path: Path) -> None:
    """The best of three is the one with the largest learning rate; Python finds it as well."""
    printed = reader.shell("sweeps.md")
    assert "total $" in printed
    assert json.loads((tmp_path / "best" / "model.json").read_text())["weight"] == pytest.approx(3.0, abs=1e-4)
    (text,) = [one.text for one in blocks_of(GUIDES / "sweeps.md", "python")]
    first, second, best = reader.python(text).splitlines()
    assert (first.split()[:2], second.split()[:2]) == (["0.05", "succeeded"], ["0.2", "succeeded"])
    assert best.endswith("['model.json']")


def test_asking_what_a_job_needs(reader: Reader) -> None:
    """Each question is answered from the local cloud's offers; Python is told the same reason."""
    printed = reader.shell("plan.md")
    assert printed.count("would take: ") == 2
    assert "it would fit on " in printed
    (text,) = [one.text for one in blocks_of(GUIDES / "plan.md", "python") if one.is_run]
    assert reader.python(text).startswith("the least for 3000 steps of ")
