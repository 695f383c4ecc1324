"""How a fine-tuning stands, and what happened to it: read from its job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.core.model.job import JobState
from app.db.connection import Connection
from app.db.doors.tunings import FineTuning
from app.db.jobs.reads import JobRow, find_job, find_jobs
from app.db.reading.tails import events_below, metrics_below, newest_value
from app.services.reading.estimate_finish import estimate_finishes, estimate_one

Level = Literal["info", "warn", "error"]
_BEGUN = 3  # events that each tuning has before those of its job
_PREFIX = "ftevent-"
_NAMES = {
    "loss": "train_loss",
    "accuracy": "train_mean_token_accuracy",
    "eval_loss": "valid_loss",
    "eval_accuracy": "valid_mean_token_accuracy",
    "learning_rate": "learning_rate",
}
_ERRORS = frozenset({"failed", "internal_error"})
_WARNINGS = ("lost", "fault", "retr", "paused", "refused", "not_finite", "late")


@dataclass(frozen=True, slots=True)
class TuningStanding:
    """Of its job. `finish_ms`: when it is expected to be done; `tokens`: trained on so far."""

    state: JobState
    end_reason: str | None
    end_message: str | None
    ended_ms: int | None
    finish_ms: int | None
    tokens: int | None


@dataclass(frozen=True, slots=True)
class TuningTold:
    """An event. `data`: of one that tells metrics."""

    id: str
    at_ms: int
    level: Level
    message: str
    data: dict[str, Any] | None = None


async def read_standing(connection: Connection, tuning: FineTuning, *, now_ms: int) -> TuningStanding | None:
    """None while it is no job."""
    if tuning.job_id is None:
        return None
    job = await find_job(connection, tuning.project_id, tuning.job_id)
    if job is None:
        return None
    finish = await estimate_one(connection, job, now_ms=now_ms)
    return await _standing(connection, job, None if finish is None else finish.at_ms)


async def read_standings(
    connection: Connection, tunings: Sequence[FineTuning], *, now_ms: int
) -> dict[str, TuningStanding]:
    """By the tuning's id; without those that are no jobs."""
    jobs: dict[str, JobRow] = {}
    for project_id in {tuning.project_id for tuning in tunings}:
        ids = [tuning.job_id for tuning in tunings if tuning.job_id is not None]
        found_jobs = await find_jobs(connection, project_id, ids)
        jobs |= {one.id: found_jobs[one.job_id] for one in tunings if one.job_id in found_jobs}
    finishes = await estimate_finishes(connection, list(jobs.values()), now_ms=now_ms)
    found = {}
    for tuning_id, job in jobs.items():
        finish = finishes.get(job.id)
        found[tuning_id] = await _standing(connection, job, None if finish is None else finish.at_ms)
    return found


async def _standing(connection: Connection, job: JobRow, finish_ms: int | None) -> TuningStanding:
    tokens = None
    if job.state is JobState.SUCCEEDED:
        tokens = await newest_value(connection, job.id, "tokens")
    return TuningStanding(
        state=job.state,
        end_reason=job.end_reason,
        end_message=job.end_message,
        ended_ms=job.ended_ms,
        finish_ms=finish_ms,
        tokens=None if tokens is None else int(tokens),
    )


async def events_before(
    connection: Connection, tuning: FineTuning, after: str | None, *, limit: int
) -> list[TuningTold]:
    """Newest first, of those that come after the event with the id `after` in that order.

    Two rows of events become one, those of the job and its metrics, and the id of each says where both go on: so a page
    is read without any of what came before it.
    """
    event, step = _place(after)
    events: list[TuningTold] = []
    metrics: list[TuningTold] = []
    job = None if tuning.job_id is None else await find_job(connection, tuning.project_id, tuning.job_id)
    if job is not None:
        for one in await events_below(connection, job.id, None if event is None else event - _BEGUN, limit=limit):
            level = _level(one.kind)
            events.append(TuningTold(str(one.position + _BEGUN), one.at_ms, level, one.message))
        for point in await metrics_below(connection, job.id, step, limit=limit):
            told = {ours: point.values[name] for name, ours in _NAMES.items() if name in point.values}
            data = {"step": point.step, "total_steps": job.total_steps, **told}
            metrics.append(TuningTold(str(point.step), point.at_ms, "info", _words(job, point.step, told), data))
    begun = [one for one in _first_events(tuning) if event is None or int(one.id) < event]
    return list(_joined([*events, *begun], metrics, limit))


def _joined(events: list[TuningTold], metrics: list[TuningTold], limit: int) -> Iterator[TuningTold]:
    """Of both the later one, again and again."""
    at_event, at_metric = 0, 0
    for _ in range(min(limit, len(events) + len(metrics))):
        takes_event = at_metric == len(metrics) or (
            at_event < len(events) and events[at_event].at_ms >= metrics[at_metric].at_ms
        )
        one = events[at_event] if takes_event else metrics[at_metric]
        at_event, at_metric = at_event + takes_event, at_metric + (not takes_event)
        rest_event = events[at_event].id if at_event < len(events) else "0"
        rest_step = metrics[at_metric].id if at_metric < len(metrics) else "-1"
        yield TuningTold(f"{_PREFIX}{rest_event}.{rest_step}.{one.id}{'e' if takes_event else 'm'}", *_rest(one))


def _rest(one: TuningTold) -> tuple[int, Level, str, dict[str, Any] | None]:
    return one.at_ms, one.level, one.message, one.data


def _place(after: str | None) -> tuple[int | None, int | None]:
    """Below which event, and which step, a page begins. What is no id of ours begins nowhere."""
    if after is None:
        return None, None
    parts = after.removeprefix(_PREFIX).split(".")
    try:
        return int(parts[0]) + 1, int(parts[1]) + 1
    except (ValueError, IndexError):
        return 0, 0


def _first_events(tuning: FineTuning) -> list[TuningTold]:
    """Before there is a job."""
    told = [TuningTold("1", tuning.created_ms, "info", f"Created fine-tuning job: {tuning.id}")]
    files = f"Validating training file: {tuning.training_file_id}"
    if tuning.validation_file_id is not None:
        files += f" and validation file: {tuning.validation_file_id}"
    if tuning.base_model != tuning.model:
        files += f". {tuning.model} means {tuning.base_model} on this server"
    told.insert(0, TuningTold("2", tuning.created_ms, "info", files))
    if tuning.request["estimate"] is not None:
        told.insert(0, TuningTold("3", tuning.created_ms, "info", tuning.request["estimate"]))
    if tuning.error is not None:
        told.insert(0, TuningTold("4", tuning.ended_ms or tuning.created_ms, "error", tuning.error["message"]))
    elif tuning.ended_ms is not None:
        told.insert(0, TuningTold("4", tuning.ended_ms, "info", "The job has been cancelled"))
    return told


def _level(kind: str) -> Level:
    if kind in _ERRORS:
        return "error"
    return "warn" if any(word in kind for word in _WARNINGS) else "info"


def _words(job: JobRow, step: int, told: dict[str, Any]) -> str:
    of = f"/{job.total_steps}" if job.total_steps else ""
    loss = told.get("train_loss")
    text = f"Step {step}{of}" + ("" if loss is None else f": training loss={loss:.4g}")
    valid = told.get("valid_loss")
    return text if valid is None else f"{text}, validation loss={valid:.4g}"
