"""`allpass demo`, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stack.alone import alone
from tests.stack.hostile_folder import lay_traps

pytestmark = [pytest.mark.stack, pytest.mark.training, pytest.mark.timeout(400)]


def test_the_demo_keeps_every_promise(tmp_path: Path, repository_root: Path) -> None:
    """Exit 0, and a last line that says so: moved at an exact step, same bytes, no orphan, the bill right. Nothing that
    lies in the folder in which it is started gets in its way. The accounts of its shell are left alone, and it needs no
    network."""
    marker, called = lay_traps(tmp_path / "here"), tmp_path / "called"
    command = alone(called, str(Path(sys.executable).parent / "allpass"), "demo")
    environ = {**os.environ, "PYTHONPATH": str(repository_root)}
    done = subprocess.run(
        command, cwd=tmp_path / "here", env=environ, capture_output=True, text=True, check=False, timeout=380
    )
    assert called.read_bytes() == b"", done.stderr
    assert "ALLPASS_VAST_API_KEY" in done.stderr, "that the key is not used is told"
    assert not marker.exists(), marker.read_text()
    assert done.stdout.strip(), done.stderr
    verdict = json.loads(done.stdout.strip().splitlines()[-1])
    assert (done.returncode, verdict["demo"]) == (0, "ok"), (verdict, done.stderr)
    assert verdict["losses_identical"] is True
    assert verdict["adapter_identical"] is True
    assert verdict["bill_matches"] is True
    assert verdict["orphan_nodes"] == 0
    short, long, failing = verdict["jobs"]
    assert short["tiers"] == ["serverless"]
    assert long["tiers"][0] == "serverless"
    assert long["tiers"][-1] in ("marketplace", "conventional")
    assert 0 < long["moved_at_step"] < long["steps"]
    assert (failing["status"], failing["reason"]) == ("failed", "user_code_failed")
