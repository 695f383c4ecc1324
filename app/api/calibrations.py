"""What memory predictions are corrected by: to be seen, and to be taken back."""

from __future__ import annotations

import math
from typing import Annotated

from fastapi import APIRouter, Depends, Request

from allpass.wire.base import Page
from allpass.wire.calibrations import Calibration, CalibrationUpdate
from app.api.audit import audited
from app.api.auth import Admin, Reader
from app.api.context import ApiContext, context_of
from app.api.cursors import id_cursor
from app.api.errors import documented
from app.api.requests import CalibrationId, Cursor, Limit, known_id
from app.api.views import instant, page
from app.core.memory.calibration import ENOUGH, PRIOR
from app.db.learning.calibrations import (
    CalibrationRow,
    delete_calibration,
    find_calibration,
    list_calibrations,
    switch_calibration,
)
from app.errors import NotFound
from app.services.jobs.submit_jobs import JobSubmitter

router = APIRouter(prefix="/v1", tags=["calibrations"])
ContextOf = Annotated[ApiContext, Depends(context_of)]


@router.get(
    "/calibrations",
    operation_id="list_calibrations",
    summary="List calibrations",
    responses=documented(401, 403, 422, 503),
)
async def list_(caller: Reader, context: ContextOf, cursor: Cursor = None, limit: Limit = 100) -> Page[Calibration]:
    """How far predictions were off for the project's runs, by kind; plans are corrected by the newest of a kind."""
    after = id_cursor(cursor, "cal")
    async with context.database.transaction() as connection:
        rows = await list_calibrations(connection, caller.project_id, after=after, limit=limit + 1)
    return page(rows, limit, calibration_view, lambda row: row.id)


@router.get(
    "/calibrations/{calibration_id}",
    operation_id="get_calibration",
    summary="Read a calibration",
    responses=documented(401, 403, 404, 422, 503),
)
async def get(calibration_id: CalibrationId, caller: Reader, context: ContextOf) -> Calibration:
    """How far predictions of this kind were off, and how much it counts."""
    known_id(calibration_id, "cal", "calibration")
    async with context.database.transaction() as connection:
        row = await find_calibration(connection, caller.project_id, calibration_id)
    return calibration_view(_found(row, calibration_id))


@router.patch(
    "/calibrations/{calibration_id}",
    operation_id="update_calibration",
    summary="Switch a calibration on or off",
    responses=documented(401, 403, 404, 413, 422, 503),
)
async def update(
    calibration_id: CalibrationId, body: CalibrationUpdate, request: Request, caller: Admin, context: ContextOf
) -> Calibration:
    """One that is off goes on learning and corrects nothing: neither plans nor what jobs ask for when submitted."""
    known_id(calibration_id, "cal", "calibration")
    async with audited(context, request, calibration_id) as write:
        row = await switch_calibration(write.connection, caller.project_id, calibration_id, enabled=body.enabled)
        found = _found(row, calibration_id)
    _submitter(request).memory.forget(caller.project_id)
    return calibration_view(found)


@router.delete(
    "/calibrations/{calibration_id}",
    operation_id="delete_calibration",
    summary="Delete a calibration",
    responses=documented(401, 403, 404, 413, 422, 503),
)
async def delete(calibration_id: CalibrationId, request: Request, caller: Admin, context: ContextOf) -> Calibration:
    """The model's own estimates count again for this kind, until runs are measured anew."""
    known_id(calibration_id, "cal", "calibration")
    async with audited(context, request, calibration_id) as write:
        found = _found(await delete_calibration(write.connection, caller.project_id, calibration_id), calibration_id)
    _submitter(request).memory.forget(caller.project_id)
    return calibration_view(found)


def _found(row: CalibrationRow | None, calibration_id: str) -> CalibrationRow:
    if row is None:
        raise NotFound(f"there is no calibration {calibration_id}", param="calibration_id")
    return row


def _submitter(request: Request) -> JobSubmitter:
    submitter: JobSubmitter = request.app.state.submitter
    return submitter


def calibration_view(row: CalibrationRow) -> Calibration:
    known = row.calibration
    return Calibration(
        id=row.id,
        family=row.kind.family,
        method=row.kind.method,
        kernel=row.kind.kernel,
        gpu_type=row.kind.gpu_type,
        versions=row.kind.versions,
        runs=known.samples,
        ratio=math.exp(known.log_ratio),
        fragmentation=known.fragmentation,
        overhead_bytes=known.overhead_bytes,
        weight=known.samples / (known.samples + PRIOR),
        lowers=known.samples >= ENOUGH,
        enabled=row.enabled,
        updated_at=instant(row.updated_ms),
    )
