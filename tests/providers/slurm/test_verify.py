"""The check for a login node, against a real Slurm: one sentence for each shape, and no job is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ports import NOBODYS_URL
from tests.slurm_cluster import SlurmCluster

ROOT = Path(__file__).resolve().parents[3]
SHAPE = {"name": "good", "partition": "main", "cpus": 1, "memory_gb": 1, "time_limit": "5"}


def verify(cluster: SlurmCluster, *shapes: dict[str, Any], **given: str) -> tuple[int, dict[str, str], str]:
    """Its exit code, what it says of each shape, and its complaints."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("ALLPASS_", "SLURM_", "SBATCH_"))}
    settings = {"SHAPES": json.dumps(shapes), "BIN": str(cluster.bin), "CONF": str(cluster.conf), **given}
    settings = {"SCRATCH": str(cluster.scratch), "LOG_DIR": str(cluster.logs), "CALL_EVERY_S": "0", **settings}
    told = {name if name == "ALLPASS_PUBLIC_URL" else f"ALLPASS_SLURM_{name}": text for name, text in settings.items()}
    environ = {**bare, "PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}", "ALLPASS_VENV": str(Path(sys.prefix)), **told}
    done = subprocess.run(
        ["sh", str(ROOT / "scripts" / "verify-slurm.sh")],
        env=environ,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert cluster.call("squeue", "--noheader").strip() == ""
    return done.returncode, lines, done.stderr


def test_it_says_of_each_shape_whether_it_works(slurm: SlurmCluster) -> None:
    """The good ones are not hidden by the others."""
    code, said, _ = verify(
        slurm,
        {**SHAPE, "name": "none", "partition": "nowhere"},
        SHAPE,
        {**SHAPE, "name": "shut", "partition": "closed"},
    )
    assert (code, said["good"]) == (1, "works")
    assert "partition nowhere is not up" in said["none"]
    assert "partition closed is not up" in said["shut"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"SCRATCH": "/proc/nothing"}, "ALLPASS_SLURM_SCRATCH"),
        ({"SETUP": "PATH=/nowhere"}, "no Python 3.9"),
        ({"ALLPASS_PUBLIC_URL": NOBODYS_URL}, "does not reach ALLPASS_PUBLIC_URL"),
        ({"SETUP": "echo went wrong >&2; exit 9"}, "exit code 9: went wrong"),
        ({"LOG_DIR": "/proc/nothing"}, "ALLPASS_SLURM_LOG_DIR"),
    ],
)
def test_it_says_what_a_node_lacks(slurm: SlurmCluster, given: dict[str, str], told: str) -> None:
    """By the setting that mends it."""
    code, said, _ = verify(slurm, SHAPE, **given)
    assert code == 1
    assert told in said["good"]


def test_a_cluster_that_rewrites_comments_is_told(slurm: SlurmCluster) -> None:
    """Allpass would not know its own jobs there."""
    slurm.strike("sbatch", '{real} "$@" --comment=site; exit\n')
    code, said, _ = verify(slurm, SHAPE)
    assert code == 1
    assert "comment and name" in said["good"]


def test_settings_that_cannot_be_read_are_told(slurm: SlurmCluster) -> None:
    """Before anything is submitted."""
    assert verify(slurm)[::2][0] == 2
    code, _, complaint = verify(slurm, {**SHAPE, "time_limit": "soon"})
    assert (code, "'soon' is no time limit" in complaint) == (2, True)
