"""A machine whose service is gone for good ends by itself, with the only key that it has."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import Fault, Plane
from workers.agent.agent import ALONE
from workers.agent.solitude import Solitude, end_machine

Start = Callable[..., AgentProcess]
IDLE_S = 3  # long enough for a busy machine to begin a run
TRAINS = """
import json, os, time
with open(os.environ["ALLPASS_METRICS_FILE"], "a") as metrics:
    metrics.write(json.dumps({"step": 2 if "MY_KEY" in os.environ else 1}) + "\\n")
while not os.path.exists(os.path.join(os.environ["HOME"], "end")):
    time.sleep(0.01)
"""


class Company:
    """Takes one kind of call: a machine that ends itself."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []
        self.answers: list[int] = []
        company = self

        class Handler(BaseHTTPRequestHandler):
            def do_DELETE(self) -> None:
                company.asked.append((self.command, self.path, self.headers["Authorization"]))
                self.send_response(company.answers.pop(0) if company.answers else 200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def variables(self) -> dict[str, str]:
        url = f"http://127.0.0.1:{self.server.server_port}/api/v0/instances/{{CONTAINER_ID}}/"
        return {"ALLPASS_AGENT_ENDS": f"{url} MY_KEY", "CONTAINER_ID": "77", "MY_KEY": "narrow"}


@pytest.fixture
def company() -> Iterator[Company]:
    company = Company()
    yield company
    company.server.shutdown()
    company.server.server_close()


def silent(plane: Plane) -> None:
    """From now on nobody answers, for ever."""
    with plane.changed:
        plane.faults.append(Fault(".*", 0))


def test_an_idle_machine_that_nobody_answers_ends_itself(plane: Plane, start_agent: Start, company: Company) -> None:
    """Its agent leaves, and the company is asked to end the machine."""
    agent = start_agent(ALLPASS_AGENT_ALONE_IDLE_S=str(IDLE_S), **company.variables())
    plane.wait(lambda: plane.syncs, "the first call")
    silent(plane)
    assert agent.wait() == ALONE
    assert company.asked == [("DELETE", "/api/v0/instances/77/", "Bearer narrow")]


def test_a_machine_that_was_never_let_in_ends_itself(plane: Plane, start_agent: Start, company: Company) -> None:
    """The service went while the machine booted."""
    silent(plane)
    agent = start_agent(ALLPASS_AGENT_ALONE_IDLE_S=str(IDLE_S), **company.variables())
    assert agent.wait() == ALONE
    assert len(company.asked) == 1


def test_a_training_goes_on_without_the_service_and_its_machine_ends_after_it(
    plane: Plane, start_agent: Start, company: Company
) -> None:
    """An hour of silence must cost no training; what nobody takes any more is not waited on for ever. The script sees
    nothing of the key."""
    run = desired(plane, TRAINS)
    plane.want(run)
    agent = start_agent(ALLPASS_AGENT_ALONE_IDLE_S=str(IDLE_S), **company.variables())
    plane.wait_step(run.run_id, 1)
    assert plane.told(run.run_id).step == 1, "the script sees the machine's key"
    silent(plane)
    with pytest.raises(subprocess.TimeoutExpired):
        agent.wait(2 * IDLE_S)
    (agent.root / "runs" / run.run_id / "end").touch()
    assert agent.wait() == ALONE
    assert len(company.asked) == 1


def test_no_training_lasts_for_ever_without_the_service(plane: Plane, start_agent: Start, company: Company) -> None:
    """The lease is over, whatever trains."""
    run = desired(plane, TRAINS)
    plane.want(run)
    agent = start_agent(
        ALLPASS_AGENT_ALONE_IDLE_S=str(IDLE_S), ALLPASS_AGENT_ALONE_TRAINING_S="5", **company.variables()
    )
    plane.wait_step(run.run_id, 1)
    silent(plane)
    assert agent.wait() == ALONE
    assert len(company.asked) == 1


def test_an_end_that_is_refused_is_asked_for_again(company: Company, monkeypatch: pytest.MonkeyPatch) -> None:
    """A company limits how often it is asked; one that knows no such machine has ended it."""
    monkeypatch.setattr("time.sleep", lambda _s: None)
    for name, value in company.variables().items():
        monkeypatch.setenv(name, value)
    company.answers = [429, 500, 200]
    assert end_machine()
    company.answers = [404]
    assert end_machine()
    company.answers = [401] * 9
    assert not end_machine()
    assert len(company.asked) == 3 + 1 + 6
    monkeypatch.delenv("MY_KEY")
    assert not end_machine()
    assert len(company.asked) == 10


def test_what_is_too_long_depends_on_whether_anything_trains() -> None:
    """An answer begins it anew, and so does the end of a training for a machine that is then idle."""
    now = [0.0]
    alone = Solitude(60, 600, lambda: now[0])
    now[0] = 59
    assert not alone.is_over(trains=False)
    alone.heard()
    now[0] = 118
    assert not alone.is_over(trains=False)
    now[0] = 500
    assert not alone.is_over(trains=True)
    now[0] = 559
    assert not alone.is_over(trains=False), "its training was there a minute ago"
    now[0] = 561
    assert alone.is_over(trains=False)
    now[0] = 660
    assert alone.is_over(trains=True)
