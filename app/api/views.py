"""From rows to the wire: the only place where milliseconds become instants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from pydantic_core import to_json

from allpass.wire import jobs as wire
from allpass.wire.apps import App, Runtime
from allpass.wire.base import Page
from allpass.wire.jobs import (
    Checkpoint,
    FileLink,
    Job,
    JobEvent,
    Merge,
    MetricPoint,
    Node,
    PieceLink,
    Stay,
    Timeline,
    Where,
)
from app.api.kept_templates import as_read, kept_template
from app.core.model.checkpoint import SavedFile
from app.core.model.job import JobState
from app.core.model.transfer import Transfer
from app.core.progress import Finish
from app.core.saving import why_not_movable
from app.db.apps.versions import AppVersion
from app.db.jobs.reads import JobRow, PlaceRow
from app.db.jobs.submissions import NewJob
from app.db.merging.merges import MergeRow
from app.db.nodes.reads import NodeDetails
from app.db.reading.job_records import CheckpointSummary, EventRow, FileRow, MetricRow
from app.services.jobs.submit_jobs import Submitted
from app.services.jobs.warn_of_template import warnings_of_text
from app.services.reading.read_timeline import JobTimeline

Row = TypeVar("Row")
Item = TypeVar("Item")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MS = -62_135_596_800_000  # of the year 1: the calendar has nothing before it, and
_LAST_MS = 253_402_300_799_999  # after the year 9999; a machine's clock may be anywhere


def instant(at_ms: int) -> datetime:
    """An aware UTC instant, exact to the millisecond; one beyond the calendar is its nearest."""
    return _EPOCH + timedelta(milliseconds=min(max(at_ms, _FIRST_MS), _LAST_MS))


def instant_or_none(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else instant(at_ms)


def labels_view(kept: Any) -> dict[str, str]:
    """As they are shown, whatever wrote them: one row that is not as ours keeps no other from being read."""
    return {str(name): str(value) for name, value in kept.items()} if isinstance(kept, Mapping) else {}


def cost_view(micros: int) -> int:
    """No job has cost less than nothing, whatever wrote its row."""
    return max(0, micros)


def page(rows: Sequence[Row], limit: int, view: Callable[[Row], Item], cursor: Callable[[Row], str]) -> Page[Item]:
    """A page of at most `limit` of `rows`, which were read with `limit + 1`: one more means that there is more."""
    shown = rows[:limit]
    more = len(rows) > limit
    return Page(data=[view(row) for row in shown], next_cursor=cursor(shown[-1]) if more else None)


def submitted_job(job: NewJob, app_name: str, app_version: int) -> bytes:
    """The JSON of a `Job` that was just accepted. Written straight from the row: this is the hot path."""
    own, requested, stated = job
    head = to_json(
        {
            "id": own.id,
            "app_id": requested.app_id,
            "app_name": app_name,
            "app_version": app_version,
            "sweep_id": requested.sweep_id,
            "name": requested.name,
            "status": JobState.QUEUED.value,
            "reason": None,
            "message": None,
            "where": None,
            "epoch": 0,
            "moves": 0,
            "faults": 0,
            "evictions": 0,
            "step": 0,
            "total_steps": stated.total_steps,
            "checkpoint_step": None,
            "from_checkpoint_id": requested.from_checkpoint_id,
            "unsaved": None,
            "not_movable": None,
            "links": {},
            "soft_deadline": instant(own.deadline_ms),
            "submitted_at": instant(own.submitted_ms),
            "started_at": None,
            "ended_at": None,
            "cost": 0,
            "idle_cost": None,
            "spot_discount": None,
            "max_cost": stated.max_cost_micros,
            "max_duration_s": _seconds(stated.max_duration_ms),
            "max_hourly": stated.max_hourly_micros,
            "max_wait_s": _seconds(stated.max_wait_ms),
            "retries": stated.retries,
            "retried": 0,
            "estimated_finish_at": None,
            "expected": None,
            "merge": None,
            "transfer": None,
            "results": None,
            "warnings": warnings_of_text(stated.template),
        }
    )
    tail = f',"labels":{stated.labels},"parameters":{own.parameters},"template":{as_read(stated.template)}}}'
    return head[:-1] + tail.encode()


def submitted_sweep(submitted: Submitted) -> bytes:
    """The JSON of a `Sweep` that was just accepted."""
    jobs = b",".join(submitted_job(job, submitted.app_name, submitted.app_version) for job in submitted.jobs)
    return b'{"id":' + to_json(submitted.owner_id) + b',"jobs":[' + jobs + b"]}"


def job_view(
    row: JobRow,
    place: PlaceRow | None,
    finish: Finish | None = None,
    merge: MergeRow | None = None,
    transfer: wire.Transfer | None = None,
    results: wire.Results | None = None,
    idle_micros: int | None = None,
    warnings: Sequence[str] = (),
) -> Job:
    return Job(
        id=row.id,
        app_id=row.app_id,
        app_name=row.app_name,
        app_version=row.app_version,
        sweep_id=row.sweep_id,
        name=row.name,
        status=row.state.value,
        reason=row.end_reason or row.pause_reason,
        message=row.end_message or row.wait_reason,
        where=None if place is None else where_view(place),
        epoch=row.epoch,
        moves=row.moves,
        faults=row.faults,
        evictions=row.evictions,
        step=row.step,
        total_steps=row.total_steps,
        checkpoint_step=row.checkpoint_step,
        from_checkpoint_id=row.from_checkpoint_id,
        unsaved=row.refused_why,
        not_movable=_not_movable(row),
        links=dict(row.links or {}),
        soft_deadline=instant(row.deadline_ms),
        submitted_at=instant(row.submitted_ms),
        started_at=instant_or_none(row.first_running_ms),
        ended_at=instant_or_none(row.ended_ms),
        cost=cost_view(row.spent_micros),
        idle_cost=idle_micros,
        max_cost=row.max_cost_micros,
        max_duration_s=_seconds(row.max_duration_ms),
        max_hourly=row.max_hourly_micros,
        max_wait_s=_seconds(row.max_wait_ms),
        retries=row.retries,
        retried=row.retried,
        estimated_finish_at=instant_or_none(None if finish is None else finish.at_ms),
        expected=None if finish is None else _expected(finish),
        merge=None if merge is None else _merge(merge, row.id),
        transfer=transfer,
        results=results,
        warnings=list(warnings),
        labels=labels_view(row.labels),
        parameters=row.parameters,
        template=kept_template(row.template),
    )


def _expected(finish: Finish) -> wire.Expected:
    left = finish.left
    return wire.Expected(
        likely=left.likely,
        least=left.least,
        most=left.most,
        by=finish.end.by.value,
        earliest_at=instant(left.first_ms),
        latest_at=instant(left.last_ms),
    )


def transfer_view(transfer: Transfer, now_ms: int) -> wire.Transfer:
    return wire.Transfer(
        kind=transfer.kind.value,
        done_bytes=transfer.done_bytes,
        total_bytes=transfer.total_bytes,
        bytes_per_s=transfer.bytes_per_s(),
        left_ms=transfer.left_ms(now_ms),
    )


def _merge(row: MergeRow, job_id: str) -> Merge:
    """As one of its two jobs sees it."""
    return Merge(
        id=row.merge_id,
        partner_id=row.partner_of(job_id),
        leads=row.leads(job_id),
        mode=row.mode.value,
        state=row.state.value,
        score=row.score,
        expected_gain=row.gain,
        reason=row.reason,
        end_message=row.end_message,
        begun_at=instant(row.begun_ms),
        ended_at=instant_or_none(row.ended_ms),
    )


def app_view(row: AppVersion) -> App:
    return App(
        id=row.app_id,
        name=row.name,
        user_name=row.user_name,
        version=row.version,
        version_id=row.version_id,
        runtime=Runtime(base_image=row.content.base_image, pip=list(row.content.pip)),
        bundle_sha256=row.content.bundle_sha256,
        entrypoint=row.content.entrypoint,
        created_at=instant(row.created_ms),
    )


def event_view(row: EventRow) -> JobEvent:
    return JobEvent(
        position=row.position, at=instant(row.at_ms), kind=row.kind, message=row.message, data=dict(row.data)
    )


def metric_view(row: MetricRow) -> MetricPoint:
    return MetricPoint(step=row.step, at=instant(row.at_ms), values=dict(row.values))


def checkpoint_view(row: CheckpointSummary) -> Checkpoint:
    return Checkpoint(
        id=row.id,
        step=row.step,
        epoch=row.epoch,
        size_bytes=row.size_bytes,
        stored_bytes=row.stored_bytes,
        metrics=dict(row.metrics),
        created_at=instant(row.committed_ms),
    )


def file_view(row: FileRow, url: str) -> FileLink:
    return FileLink(path=row.path, sha256=row.sha256, size_bytes=row.size_bytes, url=url)


def saved_file_view(file: SavedFile, sign: Callable[[str], str]) -> FileLink:
    """`sign` makes a link to stored content."""
    pieces = [
        PieceLink(
            sha256=one.sha256,
            size_bytes=one.piece_bytes,
            start=one.start_byte,
            length=one.length_bytes,
            url=sign(one.sha256),
        )
        for one in file.spans
    ]
    url = None if file.sha256 is None else pieces[0].url
    return FileLink(path=file.path, sha256=file.sha256, size_bytes=file.size_bytes, url=url, pieces=pieces)


def timeline_view(told: JobTimeline) -> Timeline:
    stays = [
        Stay(
            run_id=stay.run_id,
            node_id=stay.node_id,
            provider=stay.provider,
            tier=stay.tier.value,
            gpu_type=stay.gpu_type,
            gpu_count=stay.gpu_count,
            price_per_hour=stay.price_per_hour.micros,
            resumed_from_step=stay.resumed_from_step,
            from_at=instant(stay.from_ms),
            running_at=instant_or_none(stay.running_ms),
            to_at=instant_or_none(stay.to_ms),
            end_reason=stay.end_reason,
            cost=cost.micros,
        )
        for stay, cost in told.stays
    ]
    return Timeline(
        stays=stays,
        waiting_ms=told.waiting_ms,
        running_ms=told.running_ms,
        cost=told.cost.micros,
        all_serverless=told.all_serverless.micros,
        repeated_ms=told.repeated_ms,
    )


def node_view(row: NodeDetails, jobs: Mapping[str, list[str]]) -> Node:
    return Node.model_validate(
        {
            "id": row.id,
            "provider": row.provider,
            "tier": row.tier,
            "state": row.state,
            "gpu_type": row.gpu_type,
            "gpu_count": row.gpu_count,
            "gpu_memory_bytes": row.gpu_memory_bytes,
            "region": row.region,
            "price_per_hour": row.price_micros_per_hour,
            "job_ids": jobs.get(row.id, []),
            "rented_for_job_id": row.rented_for_job_id,
            "requested_at": instant(row.requested_ms),
            "ready_at": instant_or_none(row.ready_ms),
            "ended_at": instant_or_none(row.ended_ms),
            "cost": row.metered_micros,
            "message": row.end_message,
            "download_mbps": row.download_mbps,
            "gpus_checked": row.gpus_checked,
            "interruptible": row.interruptible,
        }
    )


def _not_movable(row: JobRow) -> str | None:
    if row.state is not JobState.RUNNING:
        return None
    return why_not_movable(saves=row.saves_ms is not None, checkpoint_step=row.checkpoint_step)


def where_view(place: PlaceRow) -> Where:
    return Where.model_validate(
        {
            "node_id": place.node_id,
            "nodes": place.nodes,
            "provider": place.provider,
            "tier": place.tier,
            "gpu_type": place.gpu_type,
            "gpu_count": place.gpu_count,
            "price_per_hour": place.price_micros_per_hour,
            "interruptible": place.interruptible,
        }
    )


def _seconds(duration_ms: int | None) -> int | None:
    return None if duration_ms is None else duration_ms // 1000
