"""Read a job's log across all its runs: in order, nothing twice, nothing left out.

The text is in pieces that agents report by (epoch, sequence). A position remembers the next sequence of *each* epoch:
a machine that was cut off may deliver its last pieces when the next run has long begun, and they must not be missed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.core.model.job import TERMINAL_JOB_STATES
from app.core.policies.reasons import gpus
from app.db.connection import Connection
from app.db.engine import Database
from app.db.jobs.reads import find_state
from app.db.reading.job_records import ChunkRow, LoggedRun, RunHead, log_chunks_from, run_heads, runs_by_epoch
from app.errors import InvalidInput, NotFound, ObjectCorrupt, ObjectMissing
from app.ports.objects import ObjectStore, content_key

MAX_PAGE_BYTES = 1024 * 1024
MAX_PAGE_CHUNKS = 64
START = "0.0"
_NOBODYS = LoggedRun(has_ended=True)
_POSITION = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}(-[0-9]{1,9}\.[0-9]{1,9})*")


@dataclass(frozen=True, slots=True)
class LogPart:
    """`complete`: the job and all its runs have ended, and everything they reported has been served."""

    text: str
    next_position: str
    complete: bool


async def read_log(
    database: Database, objects: ObjectStore, project_id: str, job_id: str, position: str | None
) -> LogPart:
    """What follows `position` (None: from the start). Raises NotFound, and InvalidInput for no position of ours.

    A piece that the object store has lost is told in a line of its own, and reading goes on. So is where another run
    begins, and at which step. Of a job on several machines, each line says of which it is.
    """
    served = parse_position(position)
    async with database.transaction() as connection:
        state = await find_state(connection, project_id, job_id)
        if state is None:
            raise NotFound(f"there is no job {job_id!r} in this project")
        # In this order: what ended runs reported is then among the pieces that are read last.
        runs = await runs_by_epoch(connection, job_id)
        known = await log_chunks_from(connection, job_id, served, limit=MAX_PAGE_CHUNKS + 1)
        chunks = choose(known, served, runs)
        heads = await heads_of(connection, job_id, chunks)
    parts = await texts_of(objects, project_id, chunks, heads, runs)
    over = state in TERMINAL_JOB_STATES and all(run.has_ended for run in runs.values())
    after = {**served, **{chunk.epoch: chunk.sequence + 1 for chunk in chunks}}
    return LogPart("".join(parts), format_position(after), over and len(chunks) == len(known))


def parse_position(text: str | None) -> dict[int, int]:
    """The next sequence by epoch. Raises InvalidInput."""
    if not text:
        return {}
    if not _POSITION.fullmatch(text):
        raise InvalidInput(f"position: {text!r} is not a next_position of this log", param="position")
    pairs = (part.split(".") for part in text.split("-"))
    return {int(epoch): int(sequence) for epoch, sequence in pairs if int(sequence)}


def format_position(next_sequences: Mapping[int, int]) -> str:
    return "-".join(f"{epoch}.{next_sequences[epoch]}" for epoch in sorted(next_sequences)) or START


def choose(known: Sequence[ChunkRow], served: Mapping[int, int], runs: Mapping[int, LoggedRun]) -> list[ChunkRow]:
    """The pieces to serve now: in order, at most a page.

    While a run lives, a piece whose predecessor has not arrived waits for it. After its end nothing is waited for.
    """
    chosen: list[ChunkRow] = []
    expected = dict(served)
    size_bytes = 0
    for chunk in known[:MAX_PAGE_CHUNKS]:
        lives = chunk.epoch in runs and not runs[chunk.epoch].has_ended
        if lives and chunk.sequence != expected.get(chunk.epoch, 0):
            continue
        size_bytes += chunk.size_bytes
        if chosen and size_bytes > MAX_PAGE_BYTES:
            break
        chosen.append(chunk)
        expected[chunk.epoch] = chunk.sequence + 1
    return chosen


async def heads_of(connection: Connection, job_id: str, chunks: Sequence[ChunkRow]) -> dict[int, RunHead]:
    """Of the runs, by epoch, where one of these is the first piece of a run that may be a further one."""
    begins = any(chunk.sequence == 0 and chunk.epoch > 1 for chunk in chunks)
    return await run_heads(connection, job_id) if begins else {}


async def texts_of(
    objects: ObjectStore,
    project_id: str,
    chunks: Sequence[ChunkRow],
    heads: Mapping[int, RunHead],
    runs: Mapping[int, LoggedRun],
) -> list[str]:
    """As they are served: each with the line that divides its run from the one before, and of several machines with
    the number of the one that wrote it before each line."""
    texts = await asyncio.gather(*(_chunk_text(objects, project_id, chunk) for chunk in chunks))
    texts = [with_rank(runs.get(chunk.epoch, _NOBODYS).rank, text) for chunk, text in zip(chunks, texts, strict=True)]
    return [divided(heads.get(chunk.epoch), chunk, text) for chunk, text in zip(chunks, texts, strict=True)]


def with_rank(rank: int | None, text: str) -> str:
    """Each line behind the number of its machine; None: there is one machine."""
    if rank is None or not text:
        return text
    whole, end = (text[:-1], "\n") if text.endswith("\n") else (text, "")
    return "\n".join(f"[{rank}] {line}" for line in whole.split("\n")) + end


def divided(head: RunHead | None, chunk: ChunkRow, text: str) -> str:
    """With a line before the first piece of every run but the job's first: on which machine it is, and from where."""
    if head is None or head.number == 1 or chunk.sequence:
        return text
    how = f"goes on at step {head.first_step}" if head.first_step else "begins at step 0"
    return f"---- run {head.number} on {gpus(head.gpu_count, head.gpu_type)}, {how} ----\n{text}"


async def _chunk_text(objects: ObjectStore, project_id: str, chunk: ChunkRow) -> str:
    """The text of a piece; one that the store has lost is told in a line of its own."""
    try:
        return (await objects.get(content_key(project_id, chunk.sha256))).decode(errors="replace")
    except (ObjectMissing, ObjectCorrupt):
        return f"[allpass: {chunk.size_bytes} bytes of this log are lost]\n"
