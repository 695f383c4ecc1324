"""The emulator of OpenAI's API is one to OpenAI's own client: so the import is tried against its wire and not ours."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI

from tests.api.openai.conftest import chats, strictly
from tests.sdk.openai_api import KEY, OpenAiApi, Reply, problem, serving


@pytest.fixture
def api() -> Iterator[OpenAiApi]:
    made = OpenAiApi()
    with serving(made):
        yield made


@pytest.fixture
def client(api: OpenAiApi) -> Iterator[OpenAI]:
    with OpenAI(api_key=KEY, base_url=api.url, max_retries=2) as made:
        yield made


def test_jobs_files_events_and_checkpoints_are_read(api: OpenAiApi, client: OpenAI) -> None:
    """Page by page, each value of the kind that the client's types say."""
    train = api.add_file(chats())
    made = [api.add_job(train, steps=30)["id"] for _ in range(5)][::-1]
    assert [one.id for one in client.fine_tuning.jobs.list(limit=2)] == made
    strictly(job := client.fine_tuning.jobs.retrieve(made[0]))
    assert (job.status, job.seed, job.hyperparameters.n_epochs) == ("succeeded", 683058546, 3)
    events = list(client.fine_tuning.jobs.list_events(job.id, limit=7))
    for event in events:
        strictly(event)
    assert [one.data["step"] for one in events if one.type == "metrics"] == list(range(30, 0, -1))  # type: ignore[index]  # typed as object
    checkpoints = list(client.fine_tuning.jobs.checkpoints.list(job.id, limit=1))
    for checkpoint in checkpoints:
        strictly(checkpoint)
    assert [one.step_number for one in checkpoints] == [30, 15]
    strictly(file := client.files.retrieve(job.training_file))
    assert client.files.content(file.id).read() == chats()
    assert len(chats()) == file.bytes


def test_errors_are_those_that_the_client_knows(api: OpenAiApi, client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="No such File object"):
        client.files.retrieve("file-nothing")
    with pytest.raises(openai.NotFoundError) as missing:
        client.fine_tuning.jobs.retrieve("ftjob-nothing")
    assert missing.value.code == "fine_tune_not_found"
    with OpenAI(api_key="sk-wrong", base_url=api.url) as stranger, pytest.raises(openai.AuthenticationError) as refused:
        stranger.fine_tuning.jobs.list()
    assert refused.value.code == "invalid_api_key"


def test_the_client_tries_again_what_the_emulator_refuses_for_now(api: OpenAiApi, client: OpenAI) -> None:
    api.faults = [problem(429, "Rate limit reached", "rate_limit_exceeded", retry_after="0.01"), Reply(500)]
    assert list(client.fine_tuning.jobs.list()) == []
    assert len(api.requests) == 3
    api.faults = [problem(429, "Rate limit reached", "rate_limit_exceeded", retry_after="0.01")] * 3
    with pytest.raises(openai.RateLimitError):
        client.fine_tuning.jobs.list()
