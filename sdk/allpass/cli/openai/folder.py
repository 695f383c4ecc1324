"""The folder that jobs are imported into: one for each job, files that are whole or not there."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from allpass.cli.openai.api import read_json
from allpass.cli.openai.told import OldJob, read_job
from allpass.errors import InvalidInput

DEFAULT = Path("openai-import")
JOB, TRAIN, VALID = "job.json", "train.jsonl", "valid.jsonl"
EVENTS, CHECKPOINTS, METRICS, REPEATED = "events.jsonl", "checkpoints.jsonl", "metrics.csv", "repeated.json"
_MOST_BYTES = 64 << 20


def place(root: Path, job_id: str) -> Path:
    """Of a job whose id was checked."""
    return root / job_id


def imported(root: Path, job_id: str) -> OldJob:
    """A job that was imported. Raises InvalidInput."""
    path = place(root, job_id) / JOB
    if not path.is_file():
        raise InvalidInput(
            f"{job_id}: was not imported into {root}", hint=f"allpass import openai --job {job_id}{_into(root)}"
        )
    found = read_object(path)
    if found is None:
        raise InvalidInput(f"{path}: cannot be read", hint=f"allpass import openai --job {job_id}{_into(root)}")
    return read_job(found)


def _into(root: Path) -> str:
    return "" if root == DEFAULT else f" --into {root}"


def read_object(path: Path) -> dict[str, Any] | None:
    """None for a file that is not there, or holds no JSON object."""
    content = _content(path)
    try:
        found = read_json(content) if content else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def write_object(path: Path, value: Any) -> None:
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


def write_rows(path: Path, rows: Sequence[Any]) -> None:
    """One JSON value a line."""
    write_bytes(path, "".join(json.dumps(one) + "\n" for one in rows).encode())


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The objects among the lines."""
    for line in _content(path).splitlines():
        try:
            found = read_json(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found


def read_table(path: Path) -> Iterator[dict[str, str]]:
    """Rows of a CSV file, as far as they can be read."""
    text = _content(path).decode("utf-8-sig", "replace").replace("\x00", "")
    try:
        for row in csv.DictReader(io.StringIO(text)):
            yield {name: value for name, value in row.items() if isinstance(name, str) and isinstance(value, str)}
    except csv.Error:
        return


def write_bytes(path: Path, content: bytes) -> None:
    with whole(path) as make, make() as file:
        file.write(content)


@contextmanager
def whole(path: Path) -> Iterator[Callable[[], IO[bytes]]]:
    """What makes the file beside its place, anew whenever it is called; it is moved there at the end, and after an
    error nothing is left of it."""
    part = path.with_name(f".{path.name}.part")
    try:
        yield lambda: part.open("wb")
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _content(path: Path) -> bytes:
    if not path.is_file() or path.stat().st_size > _MOST_BYTES:
        return b""
    return path.read_bytes()
