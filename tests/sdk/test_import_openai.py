"""`allpass import openai`: jobs of an OpenAI account come into a folder, whole and once, whatever the other side is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from allpass.cli import main as cli
from allpass.cli.openai import api as api_module
from allpass.cli.openai import fetch
from allpass.cli.openai.api import OtherSide, read_json
from allpass.cli.openai.fetch import plain_table
from allpass.http import Retries
from tests.sdk.openai_api import KEY, OpenAiApi, Reply, problem, serving

TRAIN, VALID = b'{"messages": []}\n' * 40, b'{"messages": []}\n' * 7


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAiApi]:
    """It waits for nothing between attempts."""
    made = OpenAiApi()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(api_module, "RETRIES", Retries(first_wait_s=0.0, longest_wait_s=0.0))
    monkeypatch.setitem(OtherSide.__init__.__kwdefaults__, "retries", api_module.RETRIES)
    with serving(made) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        yield made


@pytest.fixture
def job(api: OpenAiApi) -> dict[str, Any]:
    return api.add_job(api.add_file(TRAIN), validation_file=api.add_file(VALID))


def call(*words: str, input: str | None = None) -> Result:
    return CliRunner().invoke(cli.app, ["import", "openai", *words], input=input)


def place(job: dict[str, Any]) -> Path:
    return Path("openai-import") / job["id"]


def told(result: Result) -> dict[str, dict[str, Any]]:
    """How each file of the one job was come by."""
    (one,) = json.loads(result.stdout)
    return {file["name"]: file for file in one["files"]}


def test_a_job_is_fetched_with_all_that_belongs_to_it(api: OpenAiApi, job: dict[str, Any]) -> None:
    """Files byte by byte, events oldest first, metrics as a plain table; the next command is printed."""
    result = call("--yes")
    assert result.exit_code == 0, result.output
    assert f"next: allpass import openai --repeat {job['id']}\n" in result.stdout
    folder = place(job)
    assert json.loads((folder / "job.json").read_text()) == job
    assert (folder / "train.jsonl").read_bytes() == TRAIN
    assert (folder / "valid.jsonl").read_bytes() == VALID
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert events == api.events[job["id"]][::-1]
    assert (folder / "metrics.csv").read_text().splitlines()[:2] == [
        "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy",
        "1,2.00000,0.51,,",
    ]
    assert len((folder / "checkpoints.jsonl").read_text().splitlines()) == 2
    assert not list(folder.glob(".*")), "nothing half-written is left"
    assert all(KEY not in path.read_text() for path in folder.iterdir())
    assert KEY not in result.output


def test_nothing_is_sent_before_it_is_asked_for(
    api: OpenAiApi, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would be fetched, from where and into what is shown first; where nobody can be asked, --yes is needed."""
    alone = call()
    assert alone.exit_code == 2 or alone.exception is not None
    assert "nothing was sent" in alone.output
    monkeypatch.setattr("allpass.cli.screen.is_interactive", lambda _stream=None: True)
    refused = call(input="n\n")
    assert refused.exit_code != 0
    for part in (api.url, "at most the 100 newest", "openai-import", "OPENAI_API_KEY"):
        assert part in refused.output
    assert KEY not in refused.output
    assert api.requests == []
    assert not Path("openai-import").exists()
    assert call(input="y\n").exit_code == 0
    assert (place(job) / "job.json").is_file()


def test_without_a_key_nothing_is_sent(api: OpenAiApi, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, words in (("", "OPENAI_API_KEY is not set"), ("sk-ü", "is not an API key"), ("a b", "is not an API key")):
        monkeypatch.setenv("OPENAI_API_KEY", key)
        result = call("--yes")
        assert result.exit_code != 0
        assert words in result.output or words in str(result.exception)
    assert api.requests == []


def test_a_second_time_fetches_what_is_missing_alone(api: OpenAiApi, job: dict[str, Any]) -> None:
    """Content of the right size and what a job that is over has left stay; a file that was cut short is fetched."""
    assert call("--yes").exit_code == 0
    api.requests.clear()
    assert {file["how"] for file in told(call("--yes", "--json")).values()} == {"kept"}
    assert not [path for path in api.paths() if "content" in path or "events" in path]
    (place(job) / "train.jsonl").write_bytes(TRAIN[:-5])
    (place(job) / "events.jsonl").unlink()
    found = {name: file["how"] for name, file in told(call("--yes", "--json")).items()}
    assert found["train.jsonl"] == found["events.jsonl"] == "fetched"
    assert found["valid.jsonl"] == "kept"
    assert (place(job) / "train.jsonl").read_bytes() == TRAIN


def test_a_job_that_goes_on_is_read_anew(api: OpenAiApi, job: dict[str, Any]) -> None:
    job |= {"status": "running", "finished_at": None, "result_files": []}
    assert call("--yes").exit_code == 0
    first = (place(job) / "metrics.csv").read_text()
    assert first.startswith("step,train_loss"), "made of its events"
    assert "6,0.333" in first
    job |= {"status": "succeeded", "finished_at": 1_750_009_999}
    assert told(call("--yes", "--json"))["events.jsonl"]["how"] == "fetched"


def test_jobs_are_paged_through_and_limited(api: OpenAiApi) -> None:
    """One file that many trained on is fetched once."""
    train = api.add_file(TRAIN)
    made = [api.add_job(train, steps=2)["id"] for _ in range(103)][::-1]
    result = call("--yes", "--json", "--limit", "102")
    assert [one["id"] for one in json.loads(result.stdout)] == made[:102]
    assert api.paths().count("/fine_tuning/jobs") == 2
    assert api.paths().count(f"/files/{train}/content") == 1
    chosen = call("--yes", "--json", "--job", made[-1], "--job", made[5], "--into", "elsewhere")
    assert [one["id"] for one in json.loads(chosen.stdout)] == [made[-1], made[5]]
    assert (Path("elsewhere") / made[-1] / "train.jsonl").read_bytes() == TRAIN


def test_what_was_deleted_there_is_told_and_left_out(api: OpenAiApi, job: dict[str, Any]) -> None:
    """It is no failure; metrics come from the events then; what was fetched before stays."""
    del api.files[job["validation_file"]]
    del api.files[job["result_files"][0]]
    result = call("--yes", "--json")
    assert result.exit_code == 0, result.output
    found = told(result)
    assert found["valid.jsonl"]["how"] == "deleted"
    assert not (place(job) / "valid.jsonl").exists()
    assert "made of the events" in found["metrics.csv"]["why"]
    del api.files[job["training_file"]]
    assert told(call("--yes", "--json"))["train.jsonl"]["how"] == "kept"
    assert (place(job) / "train.jsonl").read_bytes() == TRAIN


def test_one_job_that_fails_stops_no_other(api: OpenAiApi) -> None:
    """Each is told with the reason; the command fails in the end, and goes on when it is called again."""
    good = api.add_job(api.add_file(TRAIN))
    bad = api.add_job(api.add_file(b"x" * 10))
    api.instead[f"/files/{bad['training_file']}/content"] = problem(
        400, "Not allowed to download files of free accounts"
    )
    api.jobs.insert(0, {"id": "../../etc/cron.d/x", "object": "fine_tuning.job"})
    api.jobs.insert(0, {**good, "id": "ftjob-badfile", "training_file": "../../v1/secret"})
    result = call("--yes", "--json")
    assert "not whole: ftjob-badfile" in result.output or "not whole" in str(result.exception)
    shown = {one["id"]: one for one in json.loads(result.stdout.partition("error:")[0])}
    assert "is not the id of a fine-tuning job" in shown["../../etc/cron.d/x"]["error"]
    assert "training_file: '../../v1/secret' is not the id of a file" in shown["ftjob-badfile"]["error"]
    assert "free accounts" in shown[bad["id"]]["files"][0]["why"]
    assert (place(bad) / "metrics.csv").is_file(), "the rest of it is there"
    assert (place(good) / "train.jsonl").read_bytes() == TRAIN
    assert sorted(path.name for path in Path("openai-import").iterdir()) == sorted([good["id"], bad["id"]])


def test_passing_faults_are_waited_out(api: OpenAiApi, job: dict[str, Any]) -> None:
    """Too many requests, errors of the server, answers that break off."""
    busy = problem(429, "Rate limit reached", "rate_limit_exceeded", retry_after="1")
    api.faults = [busy, Reply(500), None, Reply(503), None, Reply(200, TRAIN, cut=20), Reply(200, b"{}", cut=1)]
    assert call("--yes").exit_code == 0
    assert (place(job) / "train.jsonl").read_bytes() == TRAIN


def test_what_is_asked_to_be_waited_is_waited(api: OpenAiApi) -> None:
    waited: list[float] = []
    api.faults = [problem(429, "busy", retry_after="7"), problem(429, "busy", retry_after_ms="1500")]
    side = OtherSide(api.url, KEY, retries=Retries(longest_wait_s=60.0, chance=lambda: 0.0), sleep=waited.append)
    assert list(side.list("/fine_tuning/jobs", most=5)) == []
    assert waited == [7.0, 1.5]
    api.faults = [problem(429, "You exceeded your current quota", "insufficient_quota", x_should_retry="false")]
    with pytest.raises(api_module.Refused, match="quota"):
        side.get("/fine_tuning/jobs")


def test_a_key_that_is_not_known_ends_it_at_once(api: OpenAiApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to do, and without the key."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-another-key")
    result = call("--yes", "--job", "ftjob-1", "--job", "ftjob-2")
    assert isinstance(result.exception, SystemExit)
    assert "HTTP 401: Incorrect API key provided" in result.output
    assert "export OPENAI_API_KEY" in result.output
    assert len(api.requests) == 1
    api.faults = [problem(401, "who is sk-another-key?")]
    assert "sk-another-key" not in call("--yes").output


def test_the_key_goes_to_no_other_host(api: OpenAiApi, job: dict[str, Any]) -> None:
    """A redirect to one is not followed; one within the host is."""
    other = OpenAiApi()
    with serving(other) as url:
        elsewhere = Reply(302, headers={"location": f"{url}/files/x/content"})
        api.instead[f"/files/{job['training_file']}/content"] = elsewhere
        result = call("--yes", "--json")
        assert "redirects to another host" in result.output
        assert other.requests == []
    content = api.files[job["training_file"]][1]
    api.files["file-moved"] = ({}, content)
    api.instead[f"/files/{job['training_file']}/content"] = Reply(
        307, headers={"location": "/v1/files/file-moved/content"}
    )
    assert call("--yes").exit_code == 0
    assert (place(job) / "train.jsonl").read_bytes() == TRAIN
    round_and_round = Reply(302, headers={"location": "/v1/fine_tuning/jobs"})
    api.instead["/fine_tuning/jobs"] = round_and_round
    assert "redirects again and again" in call("--yes").output


@pytest.mark.parametrize(
    "body",
    [b"<html>", b"[]", b'"text"', b"[" * 100_000, b'{"data": {}}', b'{"data": "x"}', b"{}", b"\xff\xfe", b"1" * 10_000],
)
def test_what_is_no_list_of_jobs_is_told(api: OpenAiApi, body: bytes) -> None:
    api.instead["/fine_tuning/jobs"] = Reply(200, body)
    result = call("--yes")
    assert isinstance(result.exception, SystemExit)
    assert "/fine_tuning/jobs: " in result.output
    assert "--from URL, or OPENAI_BASE_URL" in result.output


def test_pages_that_never_end_do(api: OpenAiApi, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same page again and again, pages of new events without an end, items that are none."""
    events = f"/fine_tuning/jobs/{job['id']}/events"
    same = api.events[job["id"]]
    api.instead[events] = Reply(200, {"data": [*same, 1, None, {"id": 5}, "x"], "has_more": True})
    assert call("--yes").exit_code == 0
    assert api.paths().count(events) == 2
    lines = (place(job) / "events.jsonl").read_text().splitlines()
    assert len(lines) == len(same) + 1 + 1, "those without an id cannot be told from each other"
    monkeypatch.setattr(fetch, "MOST_EVENTS", 3)
    (place(job) / "events.jsonl").unlink()
    cut = told(call("--yes", "--json"))["events.jsonl"]
    assert (cut["how"], cut["why"]) == ("cut", "the newest 3 alone")


def test_answers_that_are_too_large_are_left(
    api: OpenAiApi, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    api.files[job["training_file"]][0]["bytes"] = 10
    monkeypatch.setattr(api_module, "MOST_JSON_BYTES", 5000)
    api.instead[f"/fine_tuning/jobs/{job['id']}/events"] = Reply(200, {"data": ["x" * 6000]})
    result = call("--yes", "--json")
    assert "the answer is larger than 10 bytes" in result.output
    assert "the answer is larger than 5,000 bytes" in result.output
    assert not (place(job) / "train.jsonl").exists()
    assert not list(place(job).glob(".*"))


def test_an_answer_that_trickles_in_is_given_up(api: OpenAiApi) -> None:
    api.add_job(api.add_file(TRAIN))
    at = iter(range(0, 10_000, 200))
    side = OtherSide(api.url, KEY, clock=lambda: float(next(at)), sleep=lambda _: None)
    with pytest.raises(api_module.UnexpectedReply, match="takes longer than 120 s"):
        side.get("/fine_tuning/jobs")


def test_values_of_a_wrong_kind_do_no_harm(api: OpenAiApi, job: dict[str, Any]) -> None:
    job |= {"hyperparameters": [], "method": "x", "seed": "7", "result_files": {"a": 1}, "model": 5, "status": None}
    job |= {"created_at": -1, "trained_tokens": True, "metadata": {"key": f"it is {KEY}"}}
    api.files[job["training_file"]][0]["bytes"] = "many"
    api.events[job["id"]][0]["data"] = {"step": "1", "train_loss": []}
    assert call("--yes").exit_code == 0
    assert (place(job) / "train.jsonl").read_bytes() == TRAIN
    assert KEY not in (place(job) / "job.json").read_text()


def test_what_cannot_be_meant_is_refused_before_anything_is_sent(api: OpenAiApi) -> None:
    for words, said in (
        (["--job", "../x"], "--job: '../x' is not the id of a fine-tuning job"),
        (["--repeat", "x", "--job", "ftjob-1"], "--repeat: 'x' is not"),
        (["--repeat", "ftjob-1", "--job", "ftjob-1"], "three things"),
        (["--compare", "ftjob-1"], "the new job is missing"),
        (["ftjob-1"], "what is to be done with it?"),
        (["--model", "x"], "are for --repeat"),
        (["--from", "ftp://x"], "--from: 'ftp://x' is not the address of a server"),
    ):
        result = call("--yes", *words)
        assert said in result.output, result.output
        assert result.exit_code != 0
    assert api.requests == []


def test_a_plain_address_is_warned_of(api: OpenAiApi) -> None:
    assert api_module.is_open_to_all("http://example.com/v1")
    assert not api_module.is_open_to_all("https://example.com/v1")
    assert not api_module.is_open_to_all(api.url)


def test_numbers_that_are_none_are_null() -> None:
    assert read_json(b'{"a": NaN, "b": 1e999, "c": -Infinity, "d": 1.5}') == {"a": None, "b": None, "c": None, "d": 1.5}


def test_a_table_is_read_in_either_form() -> None:
    assert plain_table(b"c3RlcCx0cmFpbl9sb3NzCg==\n") == b"step,train_loss\n"
    assert plain_table(b"step,train_loss\n") == b"step,train_loss\n"
    assert plain_table(b"anything") == b"anything"
