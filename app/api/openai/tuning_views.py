"""A job of ours as OpenAI's client sees it."""

from __future__ import annotations

import contextlib
from typing import Any

from pydantic import ValidationError

from app.api.openai.results import results_id
from app.api.openai.wire import CheckpointMetrics, IntegrationTold, Status, TuningCheckpoint, TuningError, TuningJob
from app.core.model.job import JobState
from app.db.doors.tunings import FineTuning
from app.db.reading.job_records import CheckpointSummary
from app.services.doors.tell_tuning import TuningStanding

_STATUS: dict[JobState, Status] = {
    JobState.QUEUED: "queued",
    JobState.STARTING: "queued",
    JobState.RUNNING: "running",
    JobState.CHECKPOINTING: "running",
    JobState.WAITING: "running",
    JobState.PAUSED: "queued",
    JobState.SUCCEEDED: "succeeded",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
}


def tuning_view(tuning: FineTuning, standing: TuningStanding | None) -> TuningJob:
    """`standing`: of its job; None while there is none."""
    request = tuning.request
    kind, numbers = request["method"], dict(request["hyperparameters"])
    status = _status(tuning, standing)
    succeeded = status == "succeeded"
    ended_ms = tuning.ended_ms if standing is None else standing.ended_ms
    finish_ms = None if standing is None else standing.finish_ms
    common = {name: value for name, value in numbers.items() if name != "beta"}
    return TuningJob(
        id=tuning.id,
        created_at=tuning.created_ms // 1000,
        error=_error(tuning, standing),
        fine_tuned_model=tuning.fine_tuned_model if succeeded else None,
        finished_at=None if ended_ms is None else ended_ms // 1000,
        hyperparameters=common if kind == "supervised" else {},
        model=tuning.model,
        organization_id=tuning.project_id,
        result_files=[results_id(tuning)] if succeeded else [],
        seed=request["seed"],
        status=status,
        trained_tokens=standing.tokens if standing is not None and succeeded else None,
        training_file=tuning.training_file_id,
        validation_file=tuning.validation_file_id,
        estimated_finish=None if finish_ms is None else finish_ms // 1000,
        integrations=_integrations(request["integrations"]),
        metadata=request["metadata"] or None,
        method={"type": kind, kind: {"hyperparameters": numbers}},
    )


def checkpoint_view(tuning: FineTuning, row: CheckpointSummary) -> TuningCheckpoint:
    told = row.metrics
    return TuningCheckpoint(
        id="ftckpt_" + row.id.partition("_")[2],
        created_at=row.committed_ms // 1000,
        fine_tuned_model_checkpoint=f"{tuning.fine_tuned_model}:ckpt-step-{row.step}",
        fine_tuning_job_id=tuning.id,
        metrics=CheckpointMetrics(
            step=row.step,
            train_loss=told.get("loss"),
            train_mean_token_accuracy=told.get("accuracy"),
            valid_loss=told.get("eval_loss"),
            valid_mean_token_accuracy=told.get("eval_accuracy"),
        ),
        step_number=row.step,
    )


def _integrations(told: list[Any]) -> list[IntegrationTold]:
    """Of a row that nothing of ours would have written, those that can be told."""
    found = []
    for one in told:
        with contextlib.suppress(ValidationError):
            found.append(IntegrationTold.model_validate(one))
    return found


def _status(tuning: FineTuning, standing: TuningStanding | None) -> Status:
    if standing is not None:
        return _STATUS[standing.state]
    if tuning.ended_ms is None:
        return "validating_files"
    return "cancelled" if tuning.error is None else "failed"


def _error(tuning: FineTuning, standing: TuningStanding | None) -> TuningError | None:
    if tuning.error is not None:
        return TuningError(**tuning.error)
    if standing is None or standing.state is not JobState.FAILED:
        return None
    return TuningError(code=standing.end_reason or "failed", message=standing.end_message or "the job has failed")
