"""Waiting for a job: for its end, a state or a step, from Python and from the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from typer.testing import CliRunner, Result

from allpass.cli import main as cli
from allpass.client import Client
from tests.sdk.conftest import Waits
from tests.sdk.fake_service import KEY, FakeService, served


@pytest.fixture
def live(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeService]:
    with served(service) as url:
        monkeypatch.setenv("ALLPASS_URL", url)
        monkeypatch.setenv("ALLPASS_API_KEY", KEY)
        yield service


def wait(*words: str) -> Result:
    return CliRunner().invoke(cli.app, ["wait", *words])


def test_a_state_and_a_step_are_waited_for(service: FakeService, waits: Waits) -> None:
    """A step is no event of the job: it is asked about every second all the same, and long before the job's end."""
    told = service.add_job(status="running", step=0)

    def sleep(seconds: float) -> None:
        waits.sleep(seconds)
        told.update(step=told["step"] + 10, status="paused" if told["step"] >= 50 else "running")

    with Client(service.base, KEY, transport=httpx.MockTransport(service), sleep=sleep, clock=waits.clock) as client:
        assert client.wait(told["id"], poll_s=0.5, until=lambda job: job.step >= 20).step == 20
        assert client.wait(told["id"], poll_s=0.5, until=lambda job: job.status == "paused").step == 60
    asked = [one.url.params.get("wait_s") for one in service.requests if one.url.path.endswith("/events")]
    assert asked and set(asked) == {"1"}


def test_a_job_that_ends_first_is_given_as_it_is(service: FakeService, client: Client) -> None:
    """Nobody waits for ever for what cannot come any more."""
    job = service.add_job(status="failed")
    assert client.wait(job["id"], until=lambda one: one.status == "paused").status == "failed"


@pytest.mark.parametrize(
    ("job", "words", "code"),
    [
        ({"status": "succeeded"}, [], 0),
        ({"status": "succeeded"}, ["--until", "succeeded"], 0),
        ({"status": "succeeded"}, ["--until", "paused"], 1),
        ({"status": "failed", "message": "exit code 1"}, [], 1),
        ({"status": "failed", "message": "exit code 1"}, ["--until", "failed"], 0),
        ({"status": "paused", "step": 3}, ["--until", "paused"], 0),
        ({"status": "running", "step": 40}, ["--step", "40"], 0),
        ({"status": "succeeded", "step": 39}, ["--step", "40"], 1),
        ({"status": "running"}, ["--timeout", "1"], 1),
    ],
)
def test_the_command_says_by_its_exit_code_whether_it_came(
    live: FakeService, job: dict[str, object], words: list[str], code: int
) -> None:
    """0 if what was waited for is there; piped, it prints nothing."""
    done = wait(live.add_job(**job)["id"], *words)
    assert (done.exit_code, done.stdout) == (code, "")


def test_json_is_the_job(live: FakeService) -> None:
    """As in the other commands."""
    job = live.add_job(status="paused")
    assert json.loads(wait(job["id"], "--until", "paused", "--json").stdout)["id"] == job["id"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--until", "done"), "--until: 'done' is none of queued"),
        (("--until", "paused", "--step", "3"), "two things to wait for"),
        (("--timeout", "soon"), "soon"),
    ],
)
def test_what_cannot_be_waited_for_is_refused(live: FakeService, words: tuple[str, ...], message: str) -> None:
    """Before anybody waits."""
    done = wait(live.add_job()["id"], *words)
    assert done.exit_code == 2
    assert message in done.stderr
