"""The server process is killed at a moment drawn by its seed: a crash costs no job anything.

Four of ten moments are tried: one in which the job moves, three in which it stays. `--sweep` tries all.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.service import Service, uninterrupted, until
from tests.sweeps import sample, swept

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

STAYS = {"steps": 75, "step_ms": 20, "seed": 11}  # over before the serverless budget is used up
SEEDS = range(10)
MOVES = {"steps": 300, "step_ms": 20, "seed": 12}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[dict[int, float], bytes]]:
    """Losses and model of runs that nothing disturbed, by the number of their steps."""
    folder = tmp_path_factory.mktemp("alone")
    return {
        parameters["steps"]: uninterrupted(
            folder / str(parameters["steps"]), "plain_loop.py", {**parameters, "step_ms": 0}
        )
        for parameters in (STAYS, MOVES)
    }


@pytest.mark.parametrize("seed", swept(SEEDS, sample(SEEDS, every=3)))
def test_a_job_outlives_the_server(service: Service, seed: int, alone: Any, tmp_path: Path) -> None:
    """SIGKILL while it runs, a new server on the same data: it ends once, exactly, and the ledger equals the bill."""
    parameters, span_s = (MOVES, 6.0) if seed % 4 == 0 else (STAYS, 2.5)
    losses, model = alone[parameters["steps"]]
    job = service.submit("plain_loop.py", parameters)
    moment = time.monotonic() + random.Random(seed).uniform(0, span_s)
    until("the moment of the crash", lambda: time.monotonic() > moment)
    service.crash_server()
    service.restart_server()

    info = service.wait_for_end(job)
    assert (info.status, info.faults, info.step) == ("succeeded", 0, len(losses)), service.story(job)
    assert {point.step: point.values["loss"] for point in job.metrics()} == losses, service.story(job)
    job.download(tmp_path / "artifacts")
    assert (tmp_path / "artifacts" / "model.json").read_bytes() == model
    assert [event.kind for event in job.events()].count("succeeded") == 1
    epochs = service.rows(f"SELECT epoch FROM run_jobs WHERE job_id = '{job.id}' ORDER BY epoch")
    assert len({row["epoch"] for row in epochs}) == len(epochs) == len(job.timeline().stays), service.story(job)
    assert service.settled() > 0
