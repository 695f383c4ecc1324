"""Pausing, resuming, changing and explaining: handles, both clients, and the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from allpass import errors
from allpass.changes import job_update
from allpass.cli import main as cli
from allpass.cli import words
from allpass.client import AsyncClient, Client
from allpass.wire.controls import JobUpdate
from allpass.wire.jobs import Job
from tests.sdk.fake_service import KEY, FakeService, json_of, served


@pytest.fixture
def live(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeService]:
    with served(service) as url:
        monkeypatch.setenv("ALLPASS_URL", url)
        monkeypatch.setenv("ALLPASS_API_KEY", KEY)
        yield service


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments))


def finished(*arguments: str) -> str:
    result = call(*arguments)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def test_a_handle_pauses_and_resumes(service: FakeService, client: Client) -> None:
    """Each is one write with a key of its own, and answers with the job."""
    job = client.job(service.add_job(status="running")["id"])
    assert (job.pause().status, job.resume().status) == ("paused", "waiting")
    assert service.paths() == [f"POST /v1/jobs/{job.id}/pause", f"POST /v1/jobs/{job.id}/resume"]
    keys = {one.headers["idempotency-key"] for one in service.requests}
    assert len(keys) == 2


def test_a_handle_changes_the_number_of_gpus(service: FakeService, client: Client) -> None:
    """Each is a write with a key of its own: sent twice by an unsure network, it is one."""
    job = client.job(service.add_job(status="running")["id"])
    assert job.resize(3).message == job.resize(3).message == "its owner wants it on 3 GPUs"
    assert service.paths() == [f"POST /v1/jobs/{job.id}/resize"] * 2
    assert len({one.headers["idempotency-key"] for one in service.requests}) == 2
    assert job.resize(nodes=4).message == "its owner wants it on 4 machines"


@pytest.mark.parametrize("gpus", [0, -1, 65, 2**40])
def test_a_number_that_no_machine_has_is_refused_before_it_is_sent(
    service: FakeService, client: Client, gpus: int
) -> None:
    job = client.job(service.add_job(status="running")["id"])
    with pytest.raises(ValueError, match="gpus"):
        job.resize(gpus)
    assert service.paths() == []


@pytest.mark.parametrize("code", ["not_elastic", "no_room", "conflict"])
def test_the_command_line_says_what_can_be_done_instead(live: FakeService, code: str) -> None:
    """Where it cannot be changed as it runs; not where the job is over."""
    job_id = live.add_job(status="running", refuses=code)["id"]
    result = call("resize", job_id, "8")
    assert result.exit_code != 0
    assert f"it cannot have so many: {code}" in result.stderr
    assert (f"allpass pause {job_id}" in result.stderr) == (code != "conflict")


def test_the_command_line_resizes(live: FakeService) -> None:
    job_id = live.add_job(status="running")["id"]
    assert f"follow it: allpass events {job_id}" in finished("resize", job_id, "2")
    assert json.loads(finished("resize", job_id, "2", "--json"))["id"] == job_id
    assert json.loads(live.requests[-1].content) == {"gpus": 2}


def test_the_command_line_changes_the_number_of_machines(live: FakeService) -> None:
    job_id = live.add_job(status="running")["id"]
    assert f"follow it: allpass events {job_id}" in finished("resize", job_id, "--nodes", "2")
    assert json.loads(live.requests[-1].content) == {"nodes": 2}


@pytest.mark.parametrize("words", [["x"], ["0"], ["65"], ["1.5"], [], ["--nodes", "0"], ["2", "--nodes", "2"]])
def test_what_is_no_number_of_gpus_is_wrong_usage(live: FakeService, words: list[str]) -> None:
    assert call("resize", live.add_job()["id"], *words).exit_code == 2
    assert not [path for path in live.paths() if path.endswith("resize")]


async def test_the_asynchronous_client_resizes(service: FakeService) -> None:
    with served(service) as url:
        async with AsyncClient(url, KEY) as client:
            job_id = service.add_job(status="running")["id"]
            assert "on 5 GPUs" in ((await client.resize_job(job_id, 5)).message or "")
            assert "on 2 machines" in ((await client.resize_job(job_id, nodes=2)).message or "")


def test_a_refused_resume_is_a_conflict_that_names_the_limit(service: FakeService, client: Client) -> None:
    """The program can raise it and try again."""
    job = client.job(service.add_job(status="paused", cost=2_000_000, max_cost=1_000_000)["id"])
    with pytest.raises(errors.Conflict) as refused:
        job.resume()
    assert refused.value.param == "max_cost_usd"
    job.update(max_cost_usd=None)
    assert job.resume().status == "waiting"


def test_only_what_is_given_is_sent(service: FakeService, client: Client) -> None:
    """What is left out stays as it is; None travels, since it takes a limit away."""
    job = client.job(service.add_job(labels={"team": "nlp", "old": "x"})["id"])
    job.update(max_cost_usd=12.5)
    job.update(soft_deadline=timedelta(hours=6), max_duration=None)
    changed = job.update(max_duration=timedelta(seconds=90.2), labels={"old": None, "new": "1"})
    assert [json_of(one) for one in service.requests] == [
        {"max_cost_usd": 12.5},
        {"soft_deadline": "P0DT21600.000000S", "max_duration_s": None},
        {"max_duration_s": 91, "labels": {"old": None, "new": "1"}},
    ]
    assert (changed.max_cost, changed.max_duration_s) == (12_500_000, 91)
    assert changed.labels == {"team": "nlp", "new": "1"}


@pytest.mark.parametrize(
    ("fields", "argument"),
    [
        ({}, "nothing is to be changed"),
        ({"soft_deadline": "soon"}, "soft_deadline: "),
        ({"max_cost_usd": -1}, "max_cost_usd: -1"),
        ({"max_cost_usd": float("nan")}, "max_cost_usd: nan"),
        ({"max_duration": 0}, "max_duration: 0"),
        ({"max_duration": float("inf")}, "max_duration: inf"),
        ({"labels": {"": "x"}}, "labels: "),
    ],
)
def test_wrong_changes_never_travel(fields: dict[str, Any], argument: str) -> None:
    """The argument is named, and what would be accepted."""
    with pytest.raises(errors.InvalidInput) as refused:
        job_update(**fields)
    assert refused.value.message.startswith(argument)
    assert refused.value.hint


def test_a_handle_explains(service: FakeService, client: Client) -> None:
    """Sentences with their facts beside them."""
    told = client.job(service.add_job()["id"]).explain()
    assert (told.headline, told.because[0].data) == ("waiting for 41 s", {"nodes": 2})


async def test_the_async_client_does_the_same(service: FakeService) -> None:
    """The same four calls, awaited."""
    job_id = service.add_job()["id"]
    async with AsyncClient(service.base, KEY, transport=httpx.MockTransport(service)) as client:
        assert (await client.pause_job(job_id)).status == "paused"
        assert (await client.update_job(job_id, JobUpdate(max_cost_usd=2))).max_cost == 2_000_000
        assert (await client.resume_job(job_id)).status == "waiting"
        assert (await client.explain_job(job_id)).job_id == job_id


def test_pause_and_resume_take_several_jobs(live: FakeService) -> None:
    """One line for each, or an array with --json."""
    first, second = (live.add_job(status="running")["id"] for _ in range(2))
    assert finished("pause", first, second) == f"{first}   paused\n{second}   paused\n"
    assert [one["status"] for one in json.loads(finished("resume", first, second, "--json"))] == ["waiting"] * 2


def test_a_refused_resume_is_told_with_its_figures(live: FakeService) -> None:
    """Exit code 1 and the message of the service."""
    job_id = live.add_job(status="paused", cost=2_000_000, max_cost=1_000_000)["id"]
    result = call("resume", job_id)
    assert result.exit_code == 1
    assert "has cost $2.00 of at most $1.00: raise max_cost_usd" in result.stderr


def test_set_changes_what_is_named(live: FakeService) -> None:
    """And shows the limits that hold now."""
    job_id = live.add_job(labels={"old": "x"}, max_duration_s=60)["id"]
    options = [
        "--deadline",
        "8h",
        "--max-cost",
        "20",
        "--max-duration",
        "90m",
        "--max-hourly",
        "2.50",
        "--max-wait",
        "2h",
        "--retries",
        "3",
        "--label",
        "team=nlp",
        "--unlabel",
        "old",
    ]
    printed = finished("set", job_id, *options)
    assert json_of(live.requests[0]) == {
        "soft_deadline": "8h",
        "max_cost_usd": 20.0,
        "max_duration_s": 5400,
        "max_hourly_usd": 2.5,
        "max_wait_s": 7200,
        "retries": 3,
        "labels": {"team": "nlp", "old": None},
    }
    assert "$0.00, at most $20.00" in printed
    assert "1h 30m" in printed
    assert "$2.50/h" in printed
    assert "0 of 3 used" in printed
    assert "team=nlp" in printed
    fields = ["max_cost_usd", "max_duration_s", "max_hourly_usd", "max_wait_s", "retries"]
    names = ["--max-cost", "--max-duration", "--max-hourly", "--max-wait", "--retries"]
    finished("set", job_id, *(word for name in names for word in (name, "none")), "--json")
    assert json_of(live.requests[1]) == dict.fromkeys(fields)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "error: nothing is to be changed\n  try: --deadline 8h"),
        (["--max-hourly", "0"], "error: --max-hourly: '0' is not more than nothing\n  try: --max-hourly 12.50"),
        (["--max-cost", "much"], "error: --max-cost: 'much' is not an amount in dollars\n  try: --max-cost 12.5"),
        (["--max-cost", "-1"], "error: --max-cost: '-1' is not more than nothing"),
        (["--max-duration", "long"], "error: --max-duration: 'long' is not a duration\n  try: --max-duration 8h"),
        (["--max-wait", "a while"], "error: --max-wait: 'a while' is not a duration\n  try: --max-wait 8h"),
        (["--retries", "-1"], "error: --retries: '-1' is not a number from 0 to 100\n  try: --retries 2"),
        (["--label", "team"], "error: --label: 'team' is not key=value\n  try: --label team=nlp"),
        (["--deadline", "soon"], "error: --deadline: 'soon' is not a deadline"),
    ],
)
def test_wrong_settings_are_told_and_not_sent(live: FakeService, options: list[str], message: str) -> None:
    """Exit code 2, with what to try."""
    result = call("set", "job_1", *options)
    assert result.stderr.startswith(message)
    assert (result.exit_code, result.stdout, live.requests) == (2, "", [])


def test_explain_reads_like_an_answer(live: FakeService) -> None:
    """The headline, its reasons, what comes next, the deadline, and where the history is; nothing unprintable."""
    job_id = live.add_job()["id"]
    assert finished("explain", job_id) == (
        "waiting for 41 s, because\n"
        "  no node has room\n"
        "  it left [31m\n"
        "next: starts\n"
        "      or not\n"
        "deadline: in 6 h\n"
        f"history: allpass events {job_id}\n"
    )
    assert json.loads(finished("explain", job_id, "--json"))["because"][0]["data"] == {"nodes": 2}


def test_ps_shows_the_measured_estimate(service: FakeService) -> None:
    """What the service measured comes before what the client could guess."""
    now = datetime.now(UTC)
    facts = {"status": "running", "step": 10, "total_steps": 20, "started_at": (now - timedelta(hours=1)).isoformat()}
    guessed = Job.model_validate(service.add_job(**facts))
    measured = Job.model_validate(
        service.add_job(**facts, estimated_finish_at=(now + timedelta(minutes=5, seconds=1)).isoformat())
    )
    late = measured.model_copy(update={"estimated_finish_at": now - timedelta(seconds=3)})
    assert [words.remaining(one, now) for one in (guessed, measured, late)] == ["1h 00m", "5m 01s", "0s"]


@pytest.mark.parametrize(
    ("steps", "ends_s", "words_"),
    [
        ((55, 40, 160), (129, 521), "about 55 more steps (40 to 160), done in 2m 0"),
        ((55, 0, 55), (-9, 69), "about 55 more steps (0 to 55), done in 0s to 1m 0"),
        ((55, 55, 55), (69, 69), "55 more steps, done in 1m 0"),
    ],
    ids=["bounds", "it may be done", "exact"],
)
def test_show_says_between_which_bounds_a_job_ends(
    live: FakeService, steps: tuple[int, ...], ends_s: tuple[int, ...], words_: str
) -> None:
    """In steps and in time; one number where it is exact, and nothing where nobody knows. Ten seconds may pass until
    it is shown."""
    now = datetime.now(UTC)
    earliest, latest = ((now + timedelta(seconds=one + 0.9)).isoformat() for one in ends_s)
    numbers = dict(zip(("likely", "least", "most"), steps, strict=True))
    expected = {**numbers, "by": "target", "earliest_at": earliest, "latest_at": latest}
    assert words_ in finished("show", live.add_job(status="running", expected=expected)["id"])
    assert "more steps" not in finished("show", live.add_job(status="running")["id"])


def test_a_pause_that_would_lose_steps_is_asked_about(live: FakeService) -> None:
    """The error names the number and the command that goes on; with the option the server is told so."""
    job_id = live.add_job(status="running", step=412, checkpoint_step=400, unsaved="pipe is not a regular file")["id"]
    refused = call("pause", job_id)
    assert refused.exit_code == 1
    assert "12 steps" in refused.stderr
    assert f"try: allpass pause {job_id} --lose-steps" in refused.stderr
    assert "paused" in finished("pause", job_id, "--lose-steps")
    assert json.loads(live.requests[-1].content) == {"lose_steps": True}


def test_show_says_that_checkpoints_are_not_kept(live: FakeService) -> None:
    """With how much is at stake, and why."""
    job_id = live.add_job(status="running", step=412, checkpoint_step=400, unsaved="pipe is not a regular file")["id"]
    assert "12 steps would be lost: pipe is not a regular file" in finished("show", job_id)


def test_show_says_how_far_an_upload_is(live: FakeService) -> None:
    """With its rate and what is left of it."""
    transfer = {"kind": "send", "done_bytes": 4 * 10**10, "total_bytes": 10**11, "bytes_per_s": 2 * 10**8}
    job_id = live.add_job(status="checkpointing", transfer={**transfer, "left_ms": 300_000})["id"]
    shown = finished("show", job_id)
    assert "sending what it saved: 40.0 of 100.0 GB, 200.0 MB/s, about 5m 00s left" in shown


def test_show_has_the_links_that_the_code_told_of(live: FakeService) -> None:
    links = {"wandb": "https://wandb.ai/ada/runs/1", "mlflow": "http://mlflow.example/#/runs/2"}
    shown = finished("show", live.add_job(status="running", links=links)["id"])
    assert [line.split(maxsplit=1)[1] for line in shown.splitlines() if line.strip().startswith("link")] == [
        "mlflow: http://mlflow.example/#/runs/2",
        "wandb: https://wandb.ai/ada/runs/1",
    ]


def test_ps_and_show_say_what_is_not_movable_and_what_to_add(live: FakeService) -> None:
    """In the list briefly, beside the place; of one job with the line that mends it."""
    why = "has never saved: a Trainer saves with callbacks=[AllpassCallback()]"
    where = {
        "provider": "local",
        "tier": "serverless",
        "gpu_type": "A100",
        "gpu_count": 1,
        "node_id": "node_a",
        "price_per_hour": 1,
    }
    job_id = live.add_job(status="running", where=where, not_movable=why)["id"]
    shown = " ".join(finished("show", job_id).split())
    assert "not movable" in shown
    assert "callbacks=[AllpassCallback()]" in shown
    assert "not movable" in " ".join(finished("ps").split())
