"""A job moves while it trains: real machines, real processes, and what dies on the way."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import allpass
from app.stack.supervisor import Stack, StackOptions
from tests.e2e.conftest import SETTINGS, client_of
from tests.e2e.service import EXAMPLES, Service, environment, processes, uninterrupted, until
from tests.folders import open_to_all
from tests.sweeps import swept

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

# Its steps take a while until it has moved, and no time after that: however slow this machine is, it moves.
LONG = {"steps": 1500, "step_ms": 40, "seed": 21}
SCRIPT = """
import json, os, runpy
with open(os.environ["ALLPASS_PARAMETERS_FILE"]) as file:
    given = json.load(file)
if "save_every_s" in given:
    os.environ["ALLPASS_CHECKPOINT_INTERVAL_S"] = str(given["save_every_s"])
if os.environ.get("ALLPASS_RESUME_DIR"):
    with open(os.environ["ALLPASS_PARAMETERS_FILE"], "w") as file:
        json.dump({**given, "step_ms": 0}, file)
runpy.run_path("plain_loop.py", run_name="__main__")
"""
# Who dies at which state of a move. The source dies while it is asked, the server while nobody trains; the others take
# longer, and are played with `--sweep`.
DEATHS = tuple(itertools.product(("preparing", "saving", "promoting"), ("source", "target", "server")))
A_FEW = (("saving", "source"), ("promoting", "server"))
# The policy's durations, for jobs of ten seconds.
RULES = {"least_run_ms": 2_000, "move_pause_share": 0.5, "patience_ms": 0, "ahead_gain": 1e9}
MOVES = {
    **SETTINGS,
    "ALLPASS_POLICY": "allpass",
    "ALLPASS_POLICY_RULES": json.dumps(RULES),
    "ALLPASS_MOVE_SAVE_S": "0.1",
    "ALLPASS_MOVE_LOAD_S": "0.1",
    "ALLPASS_MOVE_PREPARE_S": "0.5",
}


@pytest.fixture(scope="module")
def moving() -> Iterator[Service]:
    """A stack whose policy moves jobs that have run for two seconds."""
    with open_to_all() as folder:
        stack = Stack(StackOptions(data_dir=folder / "data", port=0, cloud_speed=0.02, settings=MOVES), tell=print)
        stack.start()
        try:
            with client_of(stack.layout.client_file) as client:
                yield Service(stack, client)
        finally:
            stack.stop()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, float], bytes]:
    """Losses and model of a run that nothing disturbed."""
    return uninterrupted(tmp_path_factory.mktemp("alone") / "run", "plain_loop.py", {**LONG, "step_ms": 0})


@pytest.fixture(scope="module")
def app(moving: Service, tmp_path_factory: pytest.TempPathFactory) -> allpass.App:
    folder = tmp_path_factory.mktemp("code")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "plain_loop.py").write_bytes((EXAMPLES / "plain_loop.py").read_bytes())
    return allpass.build("moves", "ada", code=folder, client=moving.client)


def began(app: allpass.App, **parameters: float) -> allpass.Job:
    """A job that starts on serverless at once. Left to itself it would wait for its cheaper place, as soon as an
    arrival on serverless is known to take time, which it does where this machine is busy."""
    return app.run(template={"start": "now"}, parameters={**LONG, **parameters}, soft_deadline="6hr")


def kinds(job: allpass.Job) -> list[str]:
    return [event.kind for event in job.events()]


def assert_moved_exactly(service: Service, job: allpass.Job, alone: Any, folder: Path, *, most_faults: int = 0) -> None:
    """One job, one log, one bill; each step's loss and the model are those of the undisturbed run."""
    info = service.wait_for_end(job)
    assert (info.status, info.faults <= most_faults) == ("succeeded", True), service.story(job)
    losses, model = alone
    assert {point.step: point.values["loss"] for point in job.metrics()} == losses
    job.download(folder / "artifacts")
    assert (folder / "artifacts" / "model.json").read_bytes() == model
    assert kinds(job).count("succeeded") == 1
    service.settled()


def test_a_job_moves_without_a_wait_at_exactly_the_step_it_left_at(
    moving: Service, app: allpass.App, alone: Any, tmp_path: Path
) -> None:
    """It is running from its first step to its last, on two machines in turn, and says for how long it paused."""
    job = began(app)
    assert_moved_exactly(moving, job, alone, tmp_path)
    first, second = job.timeline().stays
    assert (first.tier, first.end_reason) == ("serverless", "demoted"), moving.story(job)
    assert (second.tier, second.end_reason) == ("marketplace", "finished")
    told = kinds(job)
    assert not {"checkpointing", "waiting"} & set(told)
    order = ["move_begun", "run_stopping", "run_promoting", "move_measured"]
    assert [kind for kind in told if kind in order] == order
    (measured,) = [event for event in job.events() if event.kind == "move_measured"]
    assert measured.message.startswith(f"moved at step {second.resumed_from_step}, ")
    assert (job.info().moves, second.resumed_from_step) == (1, measured.data["step"])
    log = list(job.logs())
    left = f"plain_loop: saved step {second.resumed_from_step}, leaving"
    assert log.index(left) < log.index(f"plain_loop: from step {second.resumed_from_step} to {LONG['steps']}")
    assert job.info().cost == sum(stay.cost for stay in job.timeline().stays)


def test_a_server_that_dies_as_the_move_begins_changes_nothing(
    moving: Service, app: allpass.App, alone: Any, tmp_path: Path
) -> None:
    """Both agents go on with what they were told, and the next server with what is written down."""
    job = began(app)
    until("the move", lambda: "move_begun" in kinds(job))
    moving.crash_server()
    moving.restart_server()
    assert_moved_exactly(moving, job, alone, tmp_path)
    assert job.info().moves == 1, moving.story(job)


@pytest.mark.parametrize(("state", "victim"), swept(DEATHS, A_FEW))
def test_a_process_that_dies_at_a_state_of_a_move_costs_no_step(
    moving: Service, app: allpass.App, alone: Any, tmp_path: Path, state: str, victim: str
) -> None:
    """SIGKILL to an agent or to the server, while the move is held where it is: the job ends once, exactly, and no
    process of it is left."""
    job = began(app, save_every_s=0.5)
    held = Held(moving, job)
    held.until_it(state)
    if victim == "server":
        moving.crash_server()
        held.let_go()
        moving.restart_server()
    else:
        held.kill(victim)
        held.let_go()
    assert_moved_exactly(moving, job, alone, tmp_path, most_faults=1)
    assert [pid for pid in processes() if environment(pid).get("ALLPASS_JOB_ID") == job.id] == []


class Held:
    """A move that stays in the state it is in, because the agent that would take it further is stopped: the target's,
    until it is prepared and again when it is to begin; the source's, when it is asked to save."""

    def __init__(self, service: Service, job: allpass.Job) -> None:
        self._service = service
        self._job = job
        self._stopped: set[int] = set()

    def until_it(self, state: str) -> None:
        """Or a later state, where this process was too slow to stop it in time."""
        self._service.wait_for(self._job, "its code", lambda info: info.status == "running")
        self._agents = {"source": self._service.agent_process(self._job)}
        until("the move", lambda: self._reached("preparing"))
        self._stop("target" if state == "preparing" else "source")
        if state == "promoting":
            until("the question", lambda: self._reached("saving"))
            self._stop("target")
            self._let_go_of(self._agents["source"])
        until(state, lambda: self._reached(state))

    def kill(self, name: str) -> None:
        pid = self._agent(name)
        self._stopped.discard(pid)
        self._service.kill(pid)

    def let_go(self) -> None:
        for pid in tuple(self._stopped):
            self._let_go_of(pid)

    def _let_go_of(self, pid: int) -> None:
        """Who was held for too long may be gone: its machine was given up. What that costs is seen at the end."""
        self._stopped.discard(pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def _stop(self, name: str) -> None:
        pid = self._agent(name)
        os.kill(pid, signal.SIGSTOP)
        self._stopped.add(pid)

    def _agent(self, name: str) -> int:
        if name not in self._agents:
            (row,) = self._service.rows(
                "SELECT a.node_id FROM moves m JOIN allocations a ON a.run_id = m.target_run_id "
                f"WHERE m.job_id = '{self._job.id}'"
            )
            self._agents[name] = self._service.agent_of(row["node_id"])
        return self._agents[name]

    def _reached(self, state: str) -> bool:
        order = ["preparing", "saving", "promoting", "done"]
        rows = self._service.rows(f"SELECT state FROM moves WHERE job_id = '{self._job.id}'")
        return bool(rows) and order.index(rows[0]["state"]) >= order.index(state)
