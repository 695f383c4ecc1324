"""Two fine-tunings without code that share a process, across two machines: each ends with what is its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import allpass
from allpass.recipe.packing import pack
from tests.e2e.service import Service, until
from tests.e2e.test_finetune import unpacked
from tests.training.scripts import files_of
from tests.training.togethers import JOBS, TogetherCourse

pytestmark = [
    pytest.mark.stack,
    pytest.mark.training,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]
LEAD, COMPANION = JOBS
SETTINGS: dict[str, Any] = {
    "epochs": 80, "batch_size": 8, "micro_batch": 2, "learning_rate": 5e-3, "precision": "fp32",
}  # fmt: skip
STEPS = 240  # more than any machine takes within the serverless budget, loading included
MERGE = """
    INSERT INTO merges (id, project_id, lead_job_id, companion_job_id, mode, gpus, state, score, gain, begun_ms, reason)
    SELECT 'merge_{lead}', project_id, '{lead}', '{companion}', 'together', 1, 'open', 0.9, 0.2, submitted_ms, 'a test'
    FROM jobs WHERE id = '{lead}' RETURNING id
"""
RUNS = """
    SELECT r.id, r.companion_of, r.end_reason, j.job_id, j.tokens, a.node_id FROM runs r
    JOIN run_jobs j ON j.run_id = r.id JOIN allocations a ON a.run_id = r.id
    WHERE j.job_id IN ('{lead}', '{companion}') AND r.running_ms IS NOT NULL ORDER BY r.running_ms
"""


def test_two_fine_tunings_in_one_process_move_together_and_end_apart(
    service: Service, open_folder: Path, tmp_path: Path
) -> None:
    """Their serverless budget is over while they load: both save, go on side by side on another machine, and each has
    its own steps, adapter and share of the bill."""
    from tests.training import tiny

    model = tiny.shared_llama(open_folder / "tiny-llama")
    lead, companion = (_tuned(service, model, tmp_path / f"plus-{more}.jsonl", more) for more in (1, 2))
    both = {"lead": lead.id, "companion": companion.id}
    for job in (lead, companion):  # so that they are merged before they are placed
        job.pause()
    until("both to be paused", lambda: {job.info().status for job in (lead, companion)} == {"paused"})
    service.rows(MERGE.format(**both))
    for job in (lead, companion):
        job.resume()
    for job in (lead, companion):
        info = job.wait(timeout=200, poll_s=0.1)  # torch is loaded twice, perhaps on a busy machine
        assert info.status == "succeeded", service.story(job)
        assert [point.step for point in job.metrics()] == list(range(1, STEPS + 1))
        job.download(tmp_path / job.id)
    still = _never_moved(tmp_path, model, (lead, companion))
    for job, name in ((lead, LEAD), (companion, COMPANION)):
        assert files_of(tmp_path / job.id) == files_of(still.output(name)), service.story(job)
        assert {point.step: point.values for point in job.metrics()} == still.points(name)
    runs = service.rows(RUNS.format(**both))
    first = [run for run in runs if run["job_id"] == lead.id][-1]
    (second,) = (run for run in runs if run["companion_of"] == first["id"])
    assert len({run["node_id"] for run in runs}) > 1, service.story(lead)
    for run, job, of in ((first, lead, None), (second, companion, first["id"])):
        assert (run["job_id"], run["companion_of"], run["end_reason"]) == (job.id, of, "finished"), service.story(job)
        assert run["tokens"] > 0
        assert run["node_id"] == first["node_id"]
    (merge,) = service.rows("SELECT state FROM merges WHERE lead_job_id = '{lead}'".format(**both))
    assert merge["state"] == "ended"
    assert min(job.info().cost for job in (lead, companion)) > 0
    service.settled()


def _never_moved(folder: Path, model: str, jobs: tuple[allpass.Job, allpass.Job]) -> TogetherCourse:
    """The same two in one process that nobody stops."""
    data = []
    for more in (1, 2):
        packed = pack({"model": model, **SETTINGS}, folder / f"plus-{more}.jsonl")
        data.append(unpacked(packed.bundle.content, folder / f"bundle-{more}"))
    first, second = (job.info().parameters for job in jobs)
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    return TogetherCourse(folder / "still", (data[0], data[1]), (first, second)).run()


def _tuned(service: Service, model: str, rows: Path, more: int) -> allpass.Job:
    rows.write_text(
        "".join(json.dumps({"prompt": f"{n}+{more}=", "completion": str(n + more)}) + "\n" for n in range(24))
    )
    return allpass.finetune(model, rows, client=service.client, user_name="ada", soft_deadline="6hr", **SETTINGS)
