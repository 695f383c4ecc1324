"""Two fine-tunings in turn, on real agents: the second begins with what the first has learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import allpass
from tests.e2e.service import Service, until

pytestmark = [
    pytest.mark.stack,
    pytest.mark.training,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]
STEPS = 24


def test_the_second_of_two_jobs_begins_with_what_the_first_has_learned(
    service: Service, open_folder: Path, tmp_path: Path
) -> None:
    """It waits without a machine, has its turn when the first has succeeded, and counts its own steps from there."""
    from tests.training import tiny

    model = tiny.shared_llama(open_folder / "tiny-llama")
    companion = _paused(service, model, tmp_path)
    lead = _submit(service, model, tmp_path, "lead", begins=0)
    _merge(service, lead, companion)
    companion.resume()
    service.wait_for(lead, "trains", lambda info: info.status == "running")
    waiting = companion.info()
    assert waiting.status in ("queued", "waiting"), service.story(companion)
    assert waiting.merge is not None
    assert (waiting.merge.partner_id, waiting.merge.leads, waiting.merge.state) == (lead.id, False, "open")

    ends = [job.wait(timeout=200, poll_s=0.1) for job in (lead, companion)]  # torch is loaded twice
    assert [info.status for info in ends] == ["succeeded"] * 2, service.story(lead) + service.story(companion)
    told = [event for event in companion.events() if event.kind == "turn_has_come"]
    assert len(told) == 1, service.story(companion)
    first, second = (
        [point.values["loss"] for point in job.metrics() if "loss" in point.values] for job in (lead, companion)
    )
    assert len(first) == len(second) == STEPS
    assert second[0] < (first[0] + first[-1]) / 2, "it did not begin with what the other one has learned"
    run, *_ = service.rows(
        f"SELECT r.resumed_from_step, c.job_id FROM runs r JOIN run_jobs j ON j.run_id = r.id JOIN checkpoints c "
        f"ON c.id = r.resumed_checkpoint_id WHERE j.job_id = '{companion.id}' AND r.running_ms > 0 ORDER BY j.epoch"
    )
    assert (run["resumed_from_step"], run["job_id"]) == (0, lead.id)
    service.settled()


def _paused(service: Service, model: Any, folder: Path) -> allpass.Job:
    """A job that is paused before its code has run: on a slow machine it may have begun."""
    for _ in range(5):
        job = _submit(service, model, folder, "companion", begins=100)
        job.pause()
        if service.wait_for(job, "is paused", lambda info: info.status == "paused").started_at is None:
            return job
        job.cancel()
    raise AssertionError("its code ran each time before it could be paused")


def _submit(service: Service, model: Any, folder: Path, name: str, *, begins: int) -> allpass.Job:
    rows = folder / f"{name}.jsonl"
    sums = range(begins, begins + 16)
    rows.write_text("".join(json.dumps({"prompt": f"{n}+1=", "completion": str(n + 1)}) + "\n" for n in sums))
    return allpass.finetune(
        model, rows, steps=STEPS, batch_size=8, micro_batch=2, learning_rate=5e-3, precision="fp32",
        template={"placement": {"locked": True}}, client=service.client, user_name="ada", soft_deadline="6hr",
    )  # fmt: skip


def _merge(service: Service, lead: allpass.Job, companion: allpass.Job) -> None:
    """As the policy would. Its own choice needs jobs that take ten minutes."""
    service.rows(
        "INSERT INTO merges (id, project_id, lead_job_id, companion_job_id, mode, gpus, state, score, gain, begun_ms, "
        "reason) SELECT replace(id, 'job_', 'merge_'), project_id, id, "
        f"'{companion.id}', 'in-turn', 1, 'open', 0.9, 0.5, submitted_ms, 'they help each other' FROM jobs "
        f"WHERE id = '{lead.id}'"
    )
    until("the merge", lambda: lead.info().merge)
