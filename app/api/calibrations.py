"""What memory predictions are corrected by: to be seen, and to be taken back."""

from __future__ import annotations

import math
from typing import Annotated

from fastapi import APIRouter, Depends, Request

from allpass.wire.base import Page
from allpass.wire.calibrations import Calibration
from app.api.audit import audited
from app.api.auth import Admin, Reader
from app.api.cursors import id_cursor
from app.api.errors import documented
from app.api.parts import Parts, parts_of
from app.api.requests import CalibrationId, Cursor, Limit, known_id
from app.api.views import instant, page
from app.core.memory.calibration import PRIOR
from app.db.learning import CalibrationRow, forget_calibration, list_calibrations
from app.errors import NotFound

router = APIRouter(prefix="/v1", tags=["calibrations"])
PartsOf = Annotated[Parts, Depends(parts_of)]


@router.get(
    "/calibrations",
    operation_id="list_calibrations",
    summary="List calibrations",
    responses=documented(401, 403, 422, 503),
)
async def list_(caller: Reader, parts: PartsOf, cursor: Cursor = None, limit: Limit = 100) -> Page[Calibration]:
    """How far predictions were off for the project's runs, by kind; plans are corrected by the newest of a kind."""
    after = id_cursor(cursor, "cal")
    async with parts.database.transaction() as connection:
        rows = await list_calibrations(connection, caller.project_id, after=after, limit=limit + 1)
    return page(rows, limit, calibration_view, lambda row: row.id)


@router.delete(
    "/calibrations/{calibration_id}",
    operation_id="delete_calibration",
    summary="Delete a calibration",
    responses=documented(401, 403, 404, 413, 422, 503),
)
async def delete(calibration_id: CalibrationId, request: Request, caller: Admin, parts: PartsOf) -> Calibration:
    """The model's own estimates count again for this kind, until runs are measured anew."""
    known_id(calibration_id, "cal", "calibration")
    async with audited(parts, request, calibration_id) as write:
        row = await forget_calibration(write.connection, caller.project_id, calibration_id)
        if row is None:
            raise NotFound(f"there is no calibration {calibration_id}", param="calibration_id")
    return calibration_view(row)


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
        updated_at=instant(row.updated_ms),
    )
