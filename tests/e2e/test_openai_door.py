"""A script as people have it, with two strings changed: upload, create, poll, use. Real machines train and answer."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.e2e.service import Service, until
from tests.training.test_serving_engine import TEMPLATE

pytestmark = [
    pytest.mark.stack,
    pytest.mark.training,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
ROWS = 24


def chatting_llama(folder: Path) -> str:
    """A tiny model that other users may read, with a chat template."""
    from transformers import AutoTokenizer

    from tests.training import tiny

    model = tiny.llama(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(model)
    for file in folder.iterdir():
        file.chmod(0o644)
    return model


def openai_client(service: Service) -> OpenAI:
    known = json.loads(service.stack.layout.client_file.read_text())
    return OpenAI(base_url=f"{known['url']}/openai/v1", api_key=known["api_key"])


def test_upload_create_poll_use(service: Service, open_folder: Path, tmp_path: Path) -> None:
    model = chatting_llama(open_folder / "chatting-llama")
    rows = tmp_path / "sums.jsonl"
    with rows.open("w") as out:
        for number in range(ROWS):
            talk = [{"role": "user", "content": f"{number}+1="}, {"role": "assistant", "content": str(number + 1)}]
            out.write(json.dumps({"messages": talk}) + "\n")
    client = openai_client(service)

    with rows.open("rb") as sent:
        file = client.files.create(file=sent, purpose="fine-tune")
    assert file.status == "processed", file.status_details
    job = client.fine_tuning.jobs.create(
        model=model,
        training_file=file.id,
        suffix="sums",
        seed=3,
        method={
            "type": "supervised",
            "supervised": {"hyperparameters": {"n_epochs": 4, "batch_size": 8, "learning_rate_multiplier": 20}},
        },
        extra_body={"allpass": {"template": {"gpu": {"memory_gb": 8}}, "settings": {"precision": "fp32"}}},
    )
    until_over = time.monotonic() + 240
    while job.status not in ("succeeded", "failed", "cancelled"):
        assert time.monotonic() < until_over, job
        time.sleep(0.3)
        job = client.fine_tuning.jobs.retrieve(job.id)
    assert job.status == "succeeded", job.error
    assert job.fine_tuned_model is not None
    assert (job.trained_tokens or 0) > ROWS
    told = [event.message for event in client.fine_tuning.jobs.list_events(job.id)]
    assert any(message.startswith("Step 12/12: training loss=") for message in told), told
    assert len(client.files.content(job.result_files[0]).text.splitlines()) == 13

    asked: Any = [{"role": "user", "content": "3+1="}]
    stream = client.chat.completions.create(
        model=job.fine_tuned_model, messages=asked, max_tokens=6, temperature=0, stream=True
    )
    pieces = [piece.choices[0].delta.content or "" for piece in stream]
    whole = client.chat.completions.create(model=job.fine_tuned_model, messages=asked, max_tokens=6, temperature=0)
    assert whole.choices[0].message.content == "".join(pieces)
    assert whole.usage is not None
    assert whole.usage.completion_tokens <= 6
    plain = client.completions.create(model=model, prompt="3+1=", max_tokens=6, temperature=0)
    assert plain.choices[0].finish_reason in ("stop", "length")
    client.chat.completions.create(model=model, messages=asked, max_tokens=1)

    served = [one for one in service.client.jobs() if one.labels.get("openai") == "serving"]
    assert len(served) == 1, "the base and its adapter are answered for by one job"
    until("the server's end", lambda: service.client.get_job(served[0].id).status == "succeeded", within_s=120)
    assert service.settled() > 0
