"""The guide "write a policy in thirty lines": its blocks run as they stand, and its names work for the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import blocks_of

ROOT = Path(__file__).resolve().parents[1]
GUIDE = ROOT / "docs" / "guides" / "write-a-policy.md"
PACKAGE = '''
from allpass.simulate import PriceCurve, Tier, Trace, TraceJob


def jobs_of_our_cluster(path):
    """A line for each job: when it came, and for how long it ran."""
    lines = [line.split() for line in path.read_text().splitlines()]
    return Trace.of("ours", [
        TraceJob(f"job-{n}", float(at), float(long), gpus=1) for n, (at, long) in enumerate(lines)
    ])


def auction(seed, horizon_s):
    return {Tier.MARKETPLACE: PriceCurve((0.0, horizon_s / 2), (0.50, 0.25 + 0.01 * seed))}


def broken(*given):
    raise RuntimeError("no such table")


class NoPolicy:
    name = "no-policy"


class Failing(ShortOnServerless):
    def decide(self, board, state, config):
        raise KeyError("gpu")


class Empty(ShortOnServerless):
    def decide(self, board, state, config):
        return None, state
'''
BROKEN = """
[project.entry-points."allpass.policies"]
broken-policy = "my_package:broken"
no-policy = "my_package:NoPolicy"
failing = "my_package:Failing"
empty = "my_package:Empty"
missing-module = "not_there:Policy"
allpass = "my_package:broken"
"""


def here(folder: Path) -> dict[str, str]:
    """What is installed in the folder counts, beside what is installed here."""
    return {**os.environ, "PYTHONPATH": str(folder)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package as the guide describes it, as pip leaves it, with some that fail."""
    folder = tmp_path_factory.mktemp("my_package")
    policy = blocks_of(GUIDE, "python")[0].text
    (folder / "my_package.py").write_text(policy + PACKAGE)
    (project,) = blocks_of(GUIDE, "toml")
    points = (project.text + BROKEN).replace('[project.entry-points."', "[").replace('"]', "]").replace('"', "")
    info = folder / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    groups: dict[str, list[str]] = {}
    for line in points.splitlines():
        if line.startswith("["):
            group = groups.setdefault(line, [])
        elif line.strip():
            group.append(line)
    (info / "entry_points.txt").write_text("\n".join(f"{name}\n" + "\n".join(its) for name, its in groups.items()))
    (folder / "log.txt").write_text("0 600\n30 1200\n60 90\n")
    return folder


def simulated(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from allpass.cli.main import main; main()", *words]
    return subprocess.run(command, cwd=folder, env=here(folder), capture_output=True, text=True, check=False)


def test_the_page_is_true(tmp_path: Path) -> None:
    """Its cells, one after the other in one program, as in a notebook."""
    cells = "\n".join(block.text for block in blocks_of(GUIDE, "python"))
    done = subprocess.run(
        [sys.executable, "-c", cells], cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    table, rest = done.stdout.split("allpass ", 1)
    assert table.startswith("POLICY")
    assert "short-on-serverless" in table
    assert "modal-only" in table
    assert "'job_id': 'job-000'" in rest or "'job_id':" in rest
    assert "'p_value':" in rest
    assert rest.rstrip().splitlines()[-1].startswith("short-on-serverless")


def test_a_policy_has_thirty_lines() -> None:
    (policy, *_) = blocks_of(GUIDE, "python")
    assert len([line for line in policy.text.splitlines() if line.strip()]) <= 30


def test_names_of_a_package_work_for_the_command_line(folder: Path) -> None:
    """A policy, a reader of traces and a market."""
    read = simulated(folder, "trace", "import", "our-cluster", "log.txt", "-o", "jobs.csv")
    assert read.returncode == 0, read.stderr
    words = ("simulate", "--trace", "jobs.csv", "--policy", "short-on-serverless", "--policy", "allpass")
    for market in ("flat", "auction"):
        done = simulated(folder, *words, "--market", market)
        assert done.returncode == 0, done.stderr
        assert "short-on-serverless costs $" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (
            ("--policy", "broken-policy"),
            1,
            "broken-policy of the package my-package failed: RuntimeError: no such table (",
        ),
        (
            ("--policy", "no-policy"),
            1,
            "policy no-policy: NoPolicy is no policy, it lacks uses, moves_by_budget, decide",
        ),
        (("--policy", "failing"), 1, "policy failing failed: KeyError: 'gpu' ("),
        (("--policy", "empty"), 1, "policy empty: decide gave no plan with a state"),
        (("--policy", "missing-module"), 1, "of the package my-package failed: ModuleNotFoundError: No module named"),
        (("--policy", "short-on-serverles"), 2, "the nearest is short-on-serverless; there are allpass, "),
    ],
)
def test_what_fails_in_a_package_is_named_with_it(folder: Path, words: tuple[str, ...], code: int, told: str) -> None:
    """1: it could not be simulated; 2: there is no such name."""
    done = simulated(folder, "simulate", "--trace", _small(folder), *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert told in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_what_fails_costs_nothing_else(folder: Path) -> None:
    """Also where it has the name of a policy of ours: that cannot be taken."""
    done = simulated(folder, "simulate", "--trace", _small(folder), "--policy", "allpass")
    assert done.returncode == 0, done.stderr


def test_without_the_server_it_is_said_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['app'] = None\nimport allpass.simulate"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "simulations need pip install allpass-server" in done.stderr


def _small(folder: Path) -> str:
    path = folder / "small.csv"
    path.write_text("job_id,submit_time_s,duration_s,num_gpus\na,0,100,1\n")
    return path.name
