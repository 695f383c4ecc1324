"""One job, one log, one bill: what a user sees while the machinery moves the job about and parts of it die."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import allpass
from tests.e2e.service import Service, uninterrupted, until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

SHORT = {"steps": 20, "step_ms": 5, "seed": 3}
LONG = {"steps": 450, "step_ms": 25, "seed": 7}
Reference = tuple[dict[int, float], bytes]


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, int]], Reference]:
    """What a run that was never interrupted says and leaves; how long its steps take makes no difference."""
    known: dict[str, Reference] = {}

    def of(parameters: dict[str, int]) -> Reference:
        if str(parameters) not in known:
            folder = tmp_path_factory.mktemp("reference") / "run"
            known[str(parameters)] = uninterrupted(folder, "plain_loop.py", {**parameters, "step_ms": 0})
        return known[str(parameters)]

    return of


def assert_exact(service: Service, job: allpass.Job, expected: Reference, folder: Path) -> None:
    """Every loss and the model are those of the uninterrupted run, and the job ended once."""
    info = service.wait_for_end(job)
    assert info.status == "succeeded", service.story(job)
    losses, model = expected
    assert {point.step: point.values["loss"] for point in job.metrics()} == losses
    (downloaded,) = job.download(folder / "artifacts")
    assert (folder / "artifacts" / "model.json").read_bytes() == model, downloaded
    kinds = [event.kind for event in job.events()]
    assert kinds.count("succeeded") == 1
    assert info.step == len(losses)


def stays(job: allpass.Job) -> list[Any]:
    return job.timeline().stays


def test_a_short_job_starts_and_ends_serverless(service: Service, reference: Any, tmp_path: Path) -> None:
    """One stay, the exact result, one log, and a ledger that equals the bill."""
    job = service.submit("plain_loop.py", SHORT)
    assert_exact(service, job, reference(SHORT), tmp_path)
    assert [(stay.tier, stay.end_reason) for stay in stays(job)] == [("serverless", "finished")]
    log = list(job.logs())
    assert log[0] == "plain_loop: from step 0 to 20"
    assert log[1].startswith("plain_loop: done")
    assert service.settled() > 0
    assert job.info().cost > 0


def test_a_long_job_moves_itself_to_a_cheaper_node(service: Service, reference: Any, tmp_path: Path) -> None:
    """Serverless until the budget is used up, then the marketplace, from exactly the step it left at."""
    job = service.submit("plain_loop.py", LONG)
    assert_exact(service, job, reference(LONG), tmp_path)
    first, second = stays(job)
    assert (first.tier, first.end_reason) == ("serverless", "demoted")
    assert (second.tier, second.end_reason) == ("marketplace", "finished")
    assert second.price_per_hour < first.price_per_hour
    assert 0 < second.resumed_from_step < LONG["steps"]
    log = list(job.logs())
    left, resumed = f"plain_loop: saved step {second.resumed_from_step}, leaving", second.resumed_from_step
    assert log.index(left) < log.index(f"plain_loop: from step {resumed} to {LONG['steps']}")
    assert (job.info().moves, job.info().faults) == (1, 0)
    service.settled()
    assert first.node_id != second.node_id
    assert job.info().cost == sum(stay.cost for stay in stays(job))


def test_a_failing_job_fails_with_its_own_traceback(service: Service) -> None:
    """The user's fault, in the user's words: in the job's message and in its log; it is not tried again."""
    job = service.submit("fails.py", {})
    info = service.wait_for_end(job)
    assert (info.status, info.reason) == ("failed", "user_code_failed"), service.story(job)
    assert "ValueError: no learning rate for step 3" in (info.message or "")
    log = "\n".join(job.logs())
    assert "Traceback (most recent call last)" in log
    assert "step 2 done" in log
    assert len(stays(job)) == 1
    service.settled()


def test_the_server_may_die_while_a_job_runs_serverless(service: Service, reference: Any, tmp_path: Path) -> None:
    """The machine goes on training; the server comes back and takes up where it was: no fault, nothing twice."""
    job = service.submit("plain_loop.py", LONG)
    service.wait_for(job, "the job runs", lambda info: info.status == "running" and info.step > 5)
    pid = service.training_process(job)
    service.crash_server()
    assert service.training_process(job) == pid
    service.restart_server()
    assert_exact(service, job, reference(LONG), tmp_path)
    assert job.info().faults == 0
    assert stays(job)[0].tier == "serverless"
    assert job.info().epoch <= 4  # at most one move: nothing was started twice
    service.settled()


def test_the_server_may_die_between_checkpoint_and_restore(service: Service, reference: Any, tmp_path: Path) -> None:
    """The job has left one place and not reached the next: after the restart it goes on from its checkpoint."""
    job = service.submit("plain_loop.py", LONG)
    service.wait_for(job, "the job waits", lambda info: info.moves == 1 and info.status in ("waiting", "starting"))
    service.crash_server()
    service.restart_server()
    assert_exact(service, job, reference(LONG), tmp_path)
    assert [stay.resumed_from_step or 0 for stay in stays(job)] == sorted(
        stay.resumed_from_step or 0 for stay in stays(job)
    )
    assert (stays(job)[-1].resumed_from_step or 0) > 0
    service.settled()


def test_the_server_may_die_while_a_job_runs_serverful(service: Service, reference: Any, tmp_path: Path) -> None:
    """As on serverless: the rented machine never notices."""
    job = service.submit("plain_loop.py", LONG)
    service.wait_for(
        job,
        "the job runs on the marketplace",
        lambda info: info.status == "running" and info.where is not None and info.where.tier == "marketplace",
    )
    service.crash_server()
    service.restart_server()
    assert_exact(service, job, reference(LONG), tmp_path)
    assert (job.info().faults, len(stays(job))) == (0, 2)
    service.settled()


def test_a_server_that_dies_again_and_again_loses_nothing(service: Service, reference: Any, tmp_path: Path) -> None:
    """Whatever it was doing, five times over: the job ends once, exactly, with no fault and no machine left."""
    job = service.submit("plain_loop.py", LONG)
    chance = random.Random(20261120)
    for _ in range(5):
        moment = time.monotonic() + chance.uniform(0.1, 2.5)
        until("the moment of the crash", lambda: time.monotonic() > moment)  # noqa: B023 - used at once
        service.crash_server()
        service.restart_server()
    assert_exact(service, job, reference(LONG), tmp_path)
    assert job.info().faults == 0
    service.settled()


def test_a_machine_that_dies_costs_a_fault_and_no_work(service: Service, reference: Any, tmp_path: Path) -> None:
    """Its agent is killed: the user's process goes with it, and the job goes on elsewhere from its checkpoint."""
    job = service.submit("plain_loop.py", LONG, checkpoint_interval_s=1)
    service.wait_for(job, "a checkpoint", lambda info: (info.checkpoint_step or 0) > 0)
    pid = service.training_process(job)
    service.kill(service.agent_process(job))
    until("the end of the user's process", lambda: not Path(f"/proc/{pid}").exists())
    assert_exact(service, job, reference(LONG), tmp_path)
    assert job.info().faults == 1
    assert "node_lost" in [stay.end_reason for stay in stays(job)]
    assert (stays(job)[1].resumed_from_step or 0) > 0
    service.settled()


def test_a_killed_process_costs_a_fault_and_no_work(service: Service, reference: Any, tmp_path: Path) -> None:
    """Killed from outside (out of memory, say): not the user's fault; the job goes on from its checkpoint."""
    job = service.submit("plain_loop.py", LONG, checkpoint_interval_s=1)
    service.wait_for(job, "a checkpoint", lambda info: (info.checkpoint_step or 0) > 0)
    service.kill_code(job)
    assert_exact(service, job, reference(LONG), tmp_path)
    assert job.info().faults == 1
    assert (stays(job)[1].resumed_from_step or 0) > 0
    service.settled()


def test_a_job_is_paused_at_some_step_and_goes_on_at_exactly_that_step(
    service: Service, reference: Any, tmp_path: Path
) -> None:
    """While it is paused no machine is paid for; resumed, it ends with the numbers of a run without a pause."""
    job = service.submit("plain_loop.py", LONG)
    service.wait_for(job, "the job runs", lambda info: info.status == "running" and info.step > 20)
    assert job.pause().status == "checkpointing"
    paused = service.wait_for(job, "the pause", lambda info: info.status == "paused")
    assert (paused.reason, paused.moves, paused.faults) == ("user", 0, 0)
    assert 20 < (paused.checkpoint_step or 0) < LONG["steps"]
    assert job.explain().next[0].text == f"goes on at step {paused.checkpoint_step} when it is resumed"
    spent = service.settled()
    assert job.info().status == "paused"
    assert job.resume().status == "waiting"
    assert_exact(service, job, reference(LONG), tmp_path)
    first, second = stays(job)[:2]
    assert (first.end_reason, second.resumed_from_step) == ("paused", paused.checkpoint_step)
    assert service.settled() > spent
