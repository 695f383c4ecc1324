"""Jobs of the other side into the folder, one after the other: what is there already stays, what fails is told."""

from __future__ import annotations

import base64
import binascii
import csv
import io
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from allpass.cli.openai import folder
from allpass.cli.openai.api import KeyRefused, OtherSide, Refused
from allpass.cli.openai.folder import CHECKPOINTS, EVENTS, JOB, METRICS, TRAIN, VALID
from allpass.cli.openai.told import OldJob, number, read_job, read_size
from allpass.errors import AllpassError

MOST_EVENTS = 100_000
MOST_CHECKPOINTS = 1000
MOST_TABLE_BYTES = 64 << 20
How = Literal["fetched", "kept", "deleted", "failed", "cut"]
_JOBS = "/fine_tuning/jobs"
_COLUMNS = ("step", "train_loss", "train_accuracy", "valid_loss", "valid_mean_token_accuracy", "full_valid_loss")
_NAMED = {"train_accuracy": "train_mean_token_accuracy"}  # in events


@dataclass(frozen=True)
class Part:
    """What became of one file. `why`: of one that is not there, or not whole."""

    name: str
    how: How
    size_bytes: int = 0
    why: str | None = None


@dataclass
class Outcome:
    """What became of one job. `error`: why it could not be read at all."""

    id: str
    job: OldJob | None = None
    parts: list[Part] = field(default_factory=list)
    error: str | None = None

    @property
    def failed(self) -> bool:
        return self.error is not None or any(one.how == "failed" for one in self.parts)

    @property
    def can_be_repeated(self) -> bool:
        return self.job is not None and any(one.name == TRAIN and one.how in ("fetched", "kept") for one in self.parts)


class Importer:
    """`root`: the folder."""

    def __init__(self, side: OtherSide, root: Path) -> None:
        self._side, self._root = side, root
        self._fetched: dict[str, Path] = {}  # several jobs may have trained on one file

    def newest(self, count: int) -> Iterator[Outcome]:
        """The newest jobs, one after the other."""
        for told in self._side.list(_JOBS, most=count):
            yield self._outcome(_shown_id(told), partial(_as_told, told))

    def named(self, job_ids: Sequence[str]) -> Iterator[Outcome]:
        """These jobs, whose ids were checked."""
        for job_id in job_ids:
            yield self._outcome(job_id, partial(self._side.get, f"{_JOBS}/{job_id}"), asked=job_id)

    def _outcome(self, shown: str, told: Callable[[], Any], *, asked: str | None = None) -> Outcome:
        outcome = Outcome(shown)
        try:
            self._job(outcome, told(), asked)
        except KeyRefused:
            raise
        except AllpassError as error:
            outcome.error = error.message
        except OSError as error:
            outcome.error = f"{error.filename or self._root}: {error.strerror or error}"
        return outcome

    def _job(self, outcome: Outcome, told: Any, asked: str | None) -> None:
        job = read_job(told)
        if asked is not None and job.id != asked:
            raise AllpassError(f"{asked}: another job was told: {job.id}")
        outcome.job, outcome.id = job, job.id
        place = folder.place(self._root, job.id)
        place.mkdir(parents=True, exist_ok=True)
        before = folder.read_object(place / JOB) or {}
        settled = job.has_ended and (before.get("status"), before.get("finished_at")) == (
            told.get("status"),
            told.get("finished_at"),
        )
        folder.write_object(place / JOB, told)
        outcome.parts.append(self._each(place / TRAIN, lambda path: self._content(job.training_file, path)))
        if job.validation_file is not None:
            valid = job.validation_file
            outcome.parts.append(self._each(place / VALID, lambda path: self._content(valid, path)))
        for name, path_of, most in (
            (EVENTS, f"{_JOBS}/{job.id}/events", MOST_EVENTS),
            (CHECKPOINTS, f"{_JOBS}/{job.id}/checkpoints", MOST_CHECKPOINTS),
        ):
            outcome.parts.append(self._each(place / name, self._listing(path_of, most, settled=settled)))
        outcome.parts.append(self._each(place / METRICS, lambda path: self._metrics(job, path, settled=settled)))

    def _each(self, path: Path, fetch: Callable[[Path], Part]) -> Part:
        """One file; what goes wrong with it is told, and nothing else ends by it."""
        try:
            return fetch(path)
        except KeyRefused:
            raise
        except Refused as error:
            how: How = "deleted" if error.status == 404 else "failed"
            return Part(path.name, "kept" if how == "deleted" and path.is_file() else how, why=error.message)
        except AllpassError as error:
            return Part(path.name, "failed", why=error.message)
        except OSError as error:
            return Part(path.name, "failed", why=error.strerror or str(error))

    def _content(self, file_id: str, path: Path) -> Part:
        size = read_size(self._side.get(f"/files/{file_id}"))
        if path.is_file() and size is not None and path.stat().st_size == size:
            self._fetched[file_id] = path
            return Part(path.name, "kept", size)
        known = self._fetched.get(file_id)
        with folder.whole(path) as make:
            if known is not None and known != path:
                with known.open("rb") as source, make() as target:
                    shutil.copyfileobj(source, target)
                arrived = known.stat().st_size
            else:
                arrived = self._side.fetch(f"/files/{file_id}/content", make, size=size)
        self._fetched[file_id] = path
        return Part(path.name, "fetched", arrived)

    def _listing(self, listed: str, most: int, *, settled: bool) -> Callable[[Path], Part]:
        """Oldest first. Of a job that is over, what is there is all that there will be."""

        def fetch(path: Path) -> Part:
            if settled and path.is_file():
                return Part(path.name, "kept", path.stat().st_size)
            rows = list(islice((one for one in self._side.list(listed, most=most) if isinstance(one, dict)), most))
            folder.write_rows(path, rows[::-1])
            cut = f"the newest {most:,} alone" if len(rows) == most else None
            return Part(path.name, "cut" if cut else "fetched", path.stat().st_size, cut)

        return fetch

    def _metrics(self, job: OldJob, path: Path, *, settled: bool) -> Part:
        """The table that the job has left; where there is none, what its events tell."""
        if settled and path.is_file():
            return Part(path.name, "kept", path.stat().st_size)
        why = None
        for file_id in job.result_files[:1]:
            try:
                table = self._table(file_id)
            except KeyRefused:
                raise
            except AllpassError as error:
                why = f"made of the events: {error.message}"
            else:
                folder.write_bytes(path, table)
                return Part(path.name, "fetched", len(table))
        table = table_of(folder.read_rows(path.with_name(EVENTS)))
        folder.write_bytes(path, table)
        return Part(path.name, "fetched", len(table), why)

    def _table(self, file_id: str) -> bytes:
        blocks = io.BytesIO()

        def anew() -> io.BytesIO:
            nonlocal blocks
            blocks = _Kept()
            return blocks

        self._side.fetch(f"/files/{file_id}/content", anew, size=None, most=MOST_TABLE_BYTES)
        return plain_table(blocks.getvalue())


class _Kept(io.BytesIO):
    """Its content can be had after it was closed."""

    def close(self) -> None:
        """There is nothing to give back."""


def plain_table(content: bytes) -> bytes:
    """OpenAI sends these files in base 64."""
    if content.lstrip(b"\xef\xbb\xbf").startswith(b"step"):
        return content
    try:
        decoded = base64.b64decode(content.strip(), validate=True)
    except (binascii.Error, ValueError):
        return content
    return decoded if decoded.lstrip(b"\xef\xbb\xbf").startswith(b"step") else content


def table_of(events: Iterator[Mapping[str, Any]]) -> bytes:
    """Metrics among events, as the table that a job leaves."""
    rows: dict[int, dict[str, float]] = {}
    for event in events:
        data = event.get("data")
        step = number(data.get("step")) if isinstance(data, dict) else None
        if step is None or not isinstance(data, dict):
            continue
        told = {name: number(data.get(name, data.get(_NAMED.get(name, name)))) for name in _COLUMNS[1:]}
        rows.setdefault(int(step), {}).update({name: value for name, value in told.items() if value is not None})
    written = io.StringIO()
    table = csv.writer(written)
    table.writerow(_COLUMNS)
    table.writerows([step, *(rows[step].get(name, "") for name in _COLUMNS[1:])] for step in sorted(rows))
    return written.getvalue().encode()


def _as_told(told: Any) -> Any:
    return told


def _shown_id(told: Any) -> str:
    told_id = told.get("id") if isinstance(told, dict) else None
    return told_id[:80] if isinstance(told_id, str) else "(a job without an id)"
