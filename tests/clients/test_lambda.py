"""A client that others have generated from Lambda's OpenAPI document reads all that our emulator answers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.emulators.lambda_cloud.goods import TYPES
from tests.clients.environments import SCRIPTS, python_of
from tests.providers.emulators.process import KEY, EmulatorProcess


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[EmulatorProcess]:
    running = EmulatorProcess.start("lambda", tmp_path / "lambda")
    yield running
    running.clean_up()
    assert running.stop() == 0
    running.kill()


def test_the_generated_client_reads_every_answer(emulator: EmulatorProcess) -> None:
    """Types, images, keys, rulesets; an instance from launch to end; and errors, each of which has its own schema."""
    command = [python_of("lambda"), str(SCRIPTS / "lambda_api.py"), emulator.url, KEY]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "types": sorted(TYPES),
        "tags": [["a", "b"]],
        "rulesets": True,
        "users": True,
        "listed": True,
        "in_use": "firewall-rulesets/firewall-ruleset-in-use",
        "refused": "global/object-does-not-exist",
        "renamed": "renamed",
        "changed": "other",
        "global": "global",
        "kept": ["other"],
        "keys": ["generated", 1],
    }
