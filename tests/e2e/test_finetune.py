"""A fine-tuning without code: from a file of rows to an adapter that PEFT loads, across two machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import allpass
from tests.e2e.service import Service, command_line, environment, processes, until
from tests.training.recipes import Course
from tests.training.scripts import files_of

pytestmark = [
    pytest.mark.stack,
    pytest.mark.training,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]
STEPS = 300  # more than any machine takes within the serverless budget, loading included


def sums(path: Path) -> Path:
    """Rows to fine-tune on."""
    path.write_text("".join(json.dumps({"prompt": f"{n}+1=", "completion": str(n + 1)}) + "\n" for n in range(24)))
    return path


def test_a_fine_tuning_that_moves_leaves_the_adapter_of_one_that_did_not(
    service: Service, open_folder: Path, tmp_path: Path
) -> None:
    """Its serverless budget is over while torch loads: it saves at its first step, and goes on elsewhere from there."""
    from tests.training import tiny

    model = tiny.shared_llama(open_folder / "tiny-llama")
    rows = sums(tmp_path / "sums.jsonl")
    job = allpass.finetune(
        model, rows, target={"eval_loss": 0.01}, epochs=100, batch_size=8, micro_batch=2, learning_rate=5e-3,
        precision="fp32", client=service.client, user_name="ada", soft_deadline="6hr",
    )  # fmt: skip
    info = job.wait(timeout=240, poll_s=0.1)  # torch is loaded twice, perhaps on a busy machine
    assert info.status == "succeeded", service.story(job)
    assert len(job.timeline().stays) > 1, service.story(job)
    assert [point.step for point in job.metrics()] == list(range(1, STEPS + 1))

    from allpass.recipe.packing import pack

    packed = pack(info.parameters, rows)
    whole = Course(tmp_path / "whole", unpacked(packed.bundle.content, tmp_path / "bundle"), info.parameters).run()
    assert {point.step: point.values for point in job.metrics()} == whole.points()
    job.download(tmp_path / "artifacts")
    assert files_of(tmp_path / "artifacts") == files_of(whole.output)
    service.settled()


def test_a_fine_tuning_on_two_gpus_is_the_one_on_a_single_gpu(
    service: Service, open_folder: Path, tmp_path: Path
) -> None:
    """A process for each of them, and the bits of one process; also when one of them is killed on the way."""
    from tests.training import tiny

    model = tiny.shared_llama(open_folder / "tiny-llama-of-two")
    rows = sums(tmp_path / "sums.jsonl")
    job = allpass.finetune(
        model, rows, steps=STEPS, batch_size=8, micro_batch=2, learning_rate=5e-3, precision="fp32", lora_dropout=0.2,
        template={"gpu": {"count": 2}}, client=service.client, user_name="ada",
    )  # fmt: skip
    service.wait_for(job, "the machine that it stays on", lambda _: len(job.timeline().stays) > 1)
    service.kill(until("its second process", lambda: second_process(job)))
    info = job.wait(timeout=270, poll_s=0.1)
    assert (info.status, info.faults) == ("succeeded", 0), service.story(job)
    log = list(job.logs())
    assert any(line.startswith("training: rank 1 of 2 was killed (SIGKILL): ") for line in log), log
    assert "training: on 2 GPUs, which share the 4 parts of 2 rows of a step" in log
    assert_is_of_one_gpu(job, rows, tmp_path)
    service.settled()


def test_a_fine_tuning_whose_base_is_split_goes_on_from_its_checkpoint(
    service: Service, open_folder: Path, tmp_path: Path
) -> None:
    """Where one of its processes is killed, its share of the base is gone with it; what is trained is that of one GPU
    all the same."""
    from tests.training import tiny

    model = tiny.shared_llama(open_folder / "tiny-llama-split")
    rows = sums(tmp_path / "sums.jsonl")
    job = allpass.finetune(
        model, rows, steps=STEPS, batch_size=8, micro_batch=2, learning_rate=5e-3, precision="fp32", lora_dropout=0.2,
        sharded=True, template={"gpu": {"count": 2}}, client=service.client, user_name="ada",
    )  # fmt: skip
    service.wait_for(job, "the machine that it stays on", lambda _: len(job.timeline().stays) > 1)
    service.kill(until("its second process", lambda: second_process(job)))
    info = job.wait(timeout=270, poll_s=0.1)
    assert info.status == "succeeded", service.story(job)
    log = list(job.logs())
    assert "training: the base model's 1 layers are split over 2 GPUs" in log
    assert "error: rank 1 of 2 was killed (SIGKILL): the others were ended" in log
    assert_is_of_one_gpu(job, rows, tmp_path)
    service.settled()


def assert_is_of_one_gpu(job: allpass.Job, rows: Path, folder: Path) -> None:
    """Its losses and files are those of one process that nobody interrupts."""
    from allpass.recipe.packing import pack
    from allpass.templates import load_template

    parameters, template = job.info().parameters, load_template({"gpu": {"count": 2}})
    bundle = unpacked(pack(parameters, rows, template=template).bundle.content, folder / "bundle")
    alone = Course(folder / "alone", bundle, parameters).run()
    assert {point.step: point.values for point in job.metrics()} == alone.points()
    job.download(folder / "artifacts")
    assert files_of(folder / "artifacts") == files_of(alone.output)


def second_process(job: allpass.Job) -> int | None:
    """Of a training on two GPUs, once it is there."""
    own = (pid for pid in processes() if environment(pid).get("ALLPASS_JOB_ID") == job.id)
    return next((pid for pid in own if "workers.trainer.follower" in command_line(pid)), None)


def unpacked(content: bytes, folder: Path) -> Path:
    """A bundle as a machine unpacks it."""
    import io
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(folder, filter="data")
    return folder
