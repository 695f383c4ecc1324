"""What is said of the files that a job has left, and of those that it has not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from allpass.cli import words

if TYPE_CHECKING:
    from allpass.wire.jobs import Job, LeftBehind, Results

_MOST_SHOWN = 5
_OVER = "over the limit"


def facts(job: Job) -> list[tuple[str, str]]:
    """For `show`: nothing where nothing is known."""
    results = job.results
    if results is None or (not results.files and not results.left):
        return []
    told = [("results", f"{_count(results.files)}, {words.size(results.size_bytes)}   (allpass download {job.id})")]
    return told + [("left behind", line) for line in left_behind(results)]


def left_behind(results: Results) -> list[str]:
    """The largest of what is not kept, and how to keep it."""
    left = results.left or []
    lines = [_line(one) for one in left[:_MOST_SHOWN]]
    if len(left) > _MOST_SHOWN:
        lines.append(f"and more: {results.left_files:,} files of {words.size(results.left_bytes)} in all")
    too_large = [one for one in left if one.why.startswith(_OVER)]
    if too_large:
        lines.append(f"keep it with: allpass run ... --keep . --keep {too_large[0].path}")
    return lines


def why_none(job: Job, *, among: Sequence[str] = ()) -> str:
    """Of a job of which no file is kept; `among`: none of these."""
    results = job.results
    if job.started_at is None:
        return f"no files: {_not_begun(job)}"
    if among and results is not None and results.files:
        return f"none of the job's {_count(results.files)} is at or below {', '.join(among)}"
    if results is not None and results.left:
        return "\n".join(["no files are kept. Left behind:", *(f"  {line}" for line in left_behind(results))])
    if job.ended_at is None:
        return "no files yet: what the script writes to its working folder is kept while it runs, from time to time"
    if results is None or results.left is None:
        return "no files: its machine was gone before anything that it wrote was kept"
    return "no files: the script wrote none to its working folder, and none to ALLPASS_OUTPUT_DIR"


def why_no_metrics(job: Job) -> str:
    """Of a job that reported none."""
    if job.started_at is None:
        return f"no metrics: {_not_begun(job)}"
    if job.ended_at is None:
        return "nothing was reported yet. How to: allpass.training, or the metrics file"
    return "nothing was reported. How to: allpass.training, or the metrics file"


def why_no_checkpoints(job: Job) -> str:
    """Of a job that has none."""
    if job.started_at is None:
        return f"no checkpoint: {_not_begun(job)}"
    if job.unsaved:
        return f"no checkpoint is kept: {job.unsaved}"
    if job.ended_at is None:
        return "no checkpoint yet: the script has saved none. How to: allpass.training, or the checkpoint folder"
    return "no checkpoint: the script saved none. How to: allpass.training, or the checkpoint folder"


def _not_begun(job: Job) -> str:
    why = f" ({job.message})" if job.message else ""
    never = "never began" if job.ended_at is not None else "has not begun"
    return f"the job {never} to run; it is {job.status}{why}"


def _line(one: LeftBehind) -> str:
    of = f" in {one.files:,} files" if one.files > 1 else ""
    return f"{one.path}, {words.size(one.size_bytes)}{of} ({one.why})"


def _count(files: int) -> str:
    return "1 file" if files == 1 else f"{files:,} files"
