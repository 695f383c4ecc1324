"""A fine-tuning gives a GPU of its machine to another job, and has it back afterwards; not a byte of it differs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import allpass
from allpass.errors import Conflict
from tests.e2e.service import Service, command_line, environment, processes, until
from tests.e2e.test_finetune import sums, unpacked
from tests.training.recipes import Course
from tests.training.scripts import files_of

pytestmark = [
    pytest.mark.stack,
    pytest.mark.training,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]


def test_a_gpu_that_is_given_up_is_anothers_until_it_is_wanted_back(
    service: Service, open_folder: Path, tmp_path: Path
) -> None:
    """Once its owner asks for it, and once by itself, as somebody waits. What is asked in vain is refused in words."""
    from allpass.recipe.packing import pack
    from tests.training import tiny

    model = tiny.shared_llama(open_folder / "tiny-llama-of-four")
    rows = sums(tmp_path / "sums.jsonl")
    job = allpass.finetune(
        model, rows, steps=1200, batch_size=8, micro_batch=2, learning_rate=5e-3, precision="fp32", lora_dropout=0.2,
        template={
            "gpu": {"count": 4, "type": "A100"}, "labels": {"lends": "a-gpu"}, "start": "when-cheap",
            "elastic": True,
        }, client=service.client, user_name="ada",
    )  # fmt: skip
    uses(service, job, 4)
    node_id = job.timeline().stays[-1].node_id

    refused = until("its first step there", lambda: refusal(job, 8))
    assert "its machine has 4 x A100. It can have 4" in refused

    asked_s = time.monotonic()
    job.resize(3)
    uses(service, job, 3)
    assert time.monotonic() - asked_s < 20
    assert len(followers(job)) == 2

    runs_beside(service, node_id)
    until("the GPU that it had", lambda: resized(job, 4))
    uses(service, job, 4)
    other = runs_beside(service, node_id, kind="interactive")  # lent without a word of anybody's
    uses(service, job, 4)
    info = job.wait(timeout=300, poll_s=0.1)
    assert (info.status, info.faults) == ("succeeded", 0), service.story(job)
    sizes = [event.message for event in job.events() if event.kind == "gpus_changed"]
    assert [one.partition(" (")[0] for one in sizes] == ["trains on 3 GPUs", "trains on 4 GPUs"] * 2
    kinds = [event.kind for event in job.events() if event.kind in ("resize_asked", "gpus_lent", "gpus_given_back")]
    assert kinds == ["resize_asked", "resize_asked", "gpus_lent", "gpus_given_back"]
    (lent,) = [event.message for event in job.events() if event.kind == "gpus_lent"]
    assert lent == f"lends 1 of 1 GPU that {other.id}, which is interactive, waits for"

    bundle = unpacked(pack(info.parameters, rows).bundle.content, tmp_path / "bundle")
    alone = Course(tmp_path / "alone", bundle, info.parameters).run()
    assert {point.step: point.values for point in job.metrics()} == alone.points()
    job.download(tmp_path / "artifacts")
    assert files_of(tmp_path / "artifacts") == files_of(alone.output)
    service.settled()


def runs_beside(service: Service, node_id: str, **template: str) -> allpass.Job:
    """A job of one GPU that is to be where the other one is, and is nowhere else until its end."""
    other = service.submit(
        "plain_loop.py", {"steps": 20, "step_ms": 50, "seed": 1},
        gpu={"count": 1, "type": "A100"}, placement={"affinity": {"lends": "a-gpu"}}, **template,
    )  # fmt: skip
    assert service.wait_for_end(other).status == "succeeded", service.story(other)
    assert [stay.node_id for stay in other.timeline().stays] == [node_id], service.story(other)
    return other


def uses(service: Service, job: allpass.Job, gpus: int) -> None:
    """Until its training has so many processes, and holds so many GPUs."""
    service.wait_for(
        job,
        f"{gpus} GPUs",
        lambda info: info.where is not None and info.where.gpu_count == gpus and len(followers(job)) == gpus - 1,
    )


def followers(job: allpass.Job) -> list[int]:
    """The processes of its training but the first."""
    own = (pid for pid in processes() if environment(pid).get("ALLPASS_JOB_ID") == job.id)
    return [pid for pid in own if "workers.trainer.follower" in command_line(pid)]


def refusal(job: allpass.Job, gpus: int) -> str | None:
    """Why it cannot have so many, once it trains."""
    with pytest.raises(Conflict) as refused:
        job.resize(gpus)
    return str(refused.value) if refused.value.code == "no_room" else None


def resized(job: allpass.Job, gpus: int) -> bool:
    """Once there is room for it."""
    try:
        job.resize(gpus)
    except Conflict as error:
        assert error.code in ("no_room", "conflict")  # the other one is there; it is about to change already
        return False
    return True
