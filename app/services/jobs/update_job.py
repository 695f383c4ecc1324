"""Change what a job was given along: its deadline, its limits, its labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from allpass.wire.controls import JobUpdate
from app.core.model.job import TERMINAL_JOB_STATES, JobState, PauseReason
from app.core.model.money import Money
from app.core.policies.reasons import duration
from app.core.steering import JobStanding, why_paused
from app.db.connection import Connection
from app.db.jobs.steering import change_job, lock_standing, read_settings
from app.db.transitions import Event, add_job_event
from app.errors import Conflict, InvalidInput, NotFound
from app.services.jobs.check_cost_cap import check_cost_cap, read_cheapest
from app.services.jobs.compose_job import deadline_ms, micros
from app.settings import Settings

JOB_CHANGED = "job_changed"
_MOST_LABELS = 64
_FIELDS = {
    "deadline_ms": "soft_deadline",
    "max_cost_micros": "max_cost",
    "max_duration_ms": "max_duration",
    "max_hourly_micros": "max_hourly",
    "max_wait_ms": "max_wait",
    "retries": "retries",
    "labels": "labels",
}


_WRITTEN: Mapping[str, Callable[[Any], str]] = {
    "labels": lambda value: ", ".join(f"{name}={text}" for name, text in sorted(value.items())) or "none",
    "max_cost_micros": lambda value: str(Money(value)),
    "max_hourly_micros": lambda value: f"{Money(value)}/h",
    "max_duration_ms": duration,
    "max_wait_ms": duration,
    "retries": str,
}


async def update_job(
    connection: Connection, settings: Settings, project_id: str, job_id: str, change: JobUpdate, *, now_ms: int
) -> None:
    """Write what differs, each difference as an event with its old and its new value, and have the loop decide anew.

    A limit that is thereby reached takes effect at the next reading of the meter; one that is not reached any more
    takes back a pause that has not happened yet, and leaves a paused job paused until it is resumed. Raises NotFound,
    InvalidInput naming the field, and Conflict for a job that is over.
    """
    job = await lock_standing(connection, job_id, project_id=project_id)
    if job is None:
        raise NotFound(f"there is no job {job_id!r} in this project")
    if job.state in TERMINAL_JOB_STATES:
        raise Conflict(f"{job_id} has {job.state}: nothing of it can be changed any more")
    old = await read_settings(connection, job_id)
    wanted = _columns(change, old, now_ms)
    if wanted.get("max_cost_micros") is not None:
        cheapest = await read_cheapest(connection, settings, now_ms)
        check_cost_cap(Money(wanted["max_cost_micros"]), cheapest, "max_cost_usd")
    new = {name: value for name, value in wanted.items() if old[name] != value}
    if not new:
        return
    given = {"deadline_given": True} if "deadline_ms" in new else {}
    await change_job(connection, job_id, new | given | _pause_after(job, new))
    for name, value in new.items():
        await add_job_event(connection, job_id, _told(name, old[name], value, now_ms), now_ms=now_ms)


def _columns(change: JobUpdate, old: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    """The fields that the request names, as columns."""
    columns: dict[str, Any] = {}
    if "soft_deadline" in change.model_fields_set:
        if change.soft_deadline is None:
            raise InvalidInput('soft_deadline: null; a job always has one, write e.g. "6h"', param="soft_deadline")
        columns["deadline_ms"] = deadline_ms(change.soft_deadline, now_ms)
    if "max_cost_usd" in change.model_fields_set:
        usd = change.max_cost_usd
        columns["max_cost_micros"] = None if usd is None else micros(usd, "max_cost_usd")
    if "max_duration_s" in change.model_fields_set:
        seconds = change.max_duration_s
        columns["max_duration_ms"] = None if seconds is None else seconds * 1000
    if "max_hourly_usd" in change.model_fields_set:
        usd = change.max_hourly_usd
        columns["max_hourly_micros"] = None if usd is None else micros(usd, "max_hourly_usd")
    if "max_wait_s" in change.model_fields_set:
        columns["max_wait_ms"] = None if change.max_wait_s is None else change.max_wait_s * 1000
    if "retries" in change.model_fields_set:
        columns["retries"] = change.retries
    if change.labels:
        merged = {**old["labels"], **change.labels}
        columns["labels"] = {name: value for name, value in merged.items() if value is not None}
        if len(columns["labels"]) > _MOST_LABELS:
            raise InvalidInput(
                f"labels: the job would have {len(columns['labels'])}; at most {_MOST_LABELS}, remove one with null",
                param="labels",
            )
    return columns


def _pause_after(job: JobStanding, new: Mapping[str, Any]) -> dict[str, Any]:
    """What a changed cost limit means for a pause that the old one brought about."""
    if "max_cost_micros" not in new or job.pause_reason is not PauseReason.COST_CAP:
        return {}
    limit = None if new["max_cost_micros"] is None else Money(new["max_cost_micros"])
    after = replace(job, max_cost=limit)
    if job.state is JobState.PAUSED:
        return {"wait_reason": why_paused(after, PauseReason.COST_CAP)}
    return {} if after.over_cost() else {"pause_reason": None}


def _told(column: str, old: Any, new: Any, now_ms: int) -> Event:
    field = _FIELDS[column]
    before, after = _words(column, old, now_ms), _words(column, new, now_ms)
    data = {"field": field, "column": column, "old": old, "new": new}
    return Event(JOB_CHANGED, f"its owner changed {field} from {before} to {after}", data)


def _words(column: str, value: Any, now_ms: int) -> str:
    if value is None:
        return "the default" if column == "retries" else "no limit"
    write = _WRITTEN.get(column)
    if write is not None:
        return write(value)
    return f"{duration(value - now_ms)} from now" if value >= now_ms else f"{duration(now_ms - value)} ago"
