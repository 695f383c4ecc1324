"""The file that a fine-tuning leaves with its metrics: a table, made of them whenever it is asked for."""

from __future__ import annotations

import csv
import io

from app.api.openai.wire import FileObject
from app.core.model.job import JobState
from app.db.connection import Connection
from app.db.doors.tunings import FineTuning, find_tuning, tunings_with_results
from app.db.engine import Database
from app.db.jobs.reads import JobRow, find_job
from app.db.reading.job_records import MetricRow, metrics_after
from app.errors import NotFound

_ID = "file-results-"
_MOST_LISTED = 1000
_ROWS_AT_ONCE = 10_000
COLUMNS = {
    "train_loss": "loss",
    "train_accuracy": "accuracy",
    "valid_loss": "eval_loss",
    "valid_mean_token_accuracy": "eval_accuracy",
}


def results_id(tuning: FineTuning) -> str:
    return _ID + tuning.id.removeprefix("ftjob-")


def is_results(file_id: str) -> bool:
    return file_id.startswith(_ID)


async def list_results(connection: Connection, project_id: str) -> list[FileObject]:
    """Of the newest tunings."""
    return [
        _view(tuning, ended_ms)
        for tuning, ended_ms in await tunings_with_results(connection, project_id, limit=_MOST_LISTED)
    ]


async def results_file(connection: Connection, project_id: str, file_id: str) -> FileObject:
    """Raises NotFound."""
    tuning, job = await _find(connection, project_id, file_id)
    return _view(tuning, job.ended_ms or tuning.created_ms)


async def read_results(database: Database, project_id: str, file_id: str) -> bytes:
    """A CSV file with a row per step. Raises NotFound."""
    written = io.StringIO()
    table = csv.writer(written)
    table.writerow(["step", *COLUMNS])
    async with database.transaction() as connection:
        _, job = await _find(connection, project_id, file_id)
        after: int | None = None
        while rows := await metrics_after(connection, job.id, after, limit=_ROWS_AT_ONCE):
            table.writerows(_cells(row) for row in rows)
            after = rows[-1].step
    return written.getvalue().encode()


def _cells(row: MetricRow) -> list[object]:
    return [row.step, *(row.values.get(ours, "") for ours in COLUMNS.values())]


async def _find(connection: Connection, project_id: str, file_id: str) -> tuple[FineTuning, JobRow]:
    tuning = await find_tuning(connection, project_id, "ftjob-" + file_id.removeprefix(_ID))
    job = None
    if tuning is not None and tuning.job_id is not None:
        job = await find_job(connection, project_id, tuning.job_id)
    if tuning is None or job is None or job.state is not JobState.SUCCEEDED:
        raise NotFound(f"No such File object: {file_id[:100]}", param="id")
    return tuning, job


def _view(tuning: FineTuning, ended_ms: int) -> FileObject:
    return FileObject(
        id=results_id(tuning),
        bytes=0,  # it is made when it is asked for by itself
        created_at=ended_ms // 1000,
        filename=f"{tuning.id}-results.csv",
        purpose="fine-tune-results",
        status="processed",
    )
