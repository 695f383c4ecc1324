"""What a job has left, as it is shown."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError

from allpass.wire import jobs as wire
from app.db.runs.results import ResultsRow

_LEFT = TypeAdapter(list[wire.LeftBehind])


def results_view(row: ResultsRow) -> wire.Results | None:
    """None where nothing is known of any."""
    if not row.files and row.left is None:
        return None
    left = None if row.left is None else _left_behind(row.left)
    return wire.Results(
        files=row.files, size_bytes=row.size_bytes, left=left, left_files=row.left_files, left_bytes=row.left_bytes
    )


def _left_behind(told: Any) -> list[wire.LeftBehind]:
    """Nothing, where another release wrote it otherwise."""
    try:
        return _LEFT.validate_python(told)
    except ValidationError:
        return []
