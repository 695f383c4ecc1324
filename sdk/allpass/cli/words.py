"""Facts as short text: money, times, sizes, places. Pure; every figure says its unit."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allpass.wire.jobs import Job, Node, Stay, Where
    from allpass.wire.project import Project

_PLACES = re.compile(r"(?:/[^\s\"':/]+)+/runs/run_[0-9A-Za-z]+/code/")
MICROS = 1_000_000
ABOUT_IDLE = "for machines that stood idle around it (change: allpass project --no-ahead)"
ENDED = frozenset({"succeeded", "failed", "cancelled"})


def money(micros: int) -> str:
    """Dollars with cents; four decimals below one cent, so that little is not shown as nothing."""
    sign, amount = ("-", -micros) if micros < 0 else ("", micros)
    if 0 < amount < 50:
        return f"{sign}<$0.0001"
    if 0 < amount < MICROS // 100:
        return f"{sign}$0.{(amount + 50) // 100:04d}"
    cents = (amount + MICROS // 200) // (MICROS // 100)
    return f"{sign}${cents // 100:,}.{cents % 100:02d}"


def spent(micros: int) -> str:
    """What has been spent, where that may be nothing at all."""
    return money(micros) if micros else "-"


def about_idle(project: Project) -> str:
    """Why machines stand idle, and how to have it otherwise."""
    if project.ahead:
        return "machines are kept for jobs to come; to rent none ahead and keep none: allpass project --no-ahead"
    return "none are kept for jobs to come (allpass project --ahead keeps some): these were between a job and their end"


def price(micros_per_hour: int) -> str:
    """Dollars per hour."""
    return f"{money(micros_per_hour)}/h"


def duration(span: timedelta | float) -> str:
    """The two largest units: 2d 4h, 4h 51m, 3m 20s, 12s."""
    seconds = int(span.total_seconds() if isinstance(span, timedelta) else span)
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    days, hours, minutes, rest = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60, seconds % 60
    if days:
        return f"{sign}{days}d {hours}h"
    if hours:
        return f"{sign}{hours}h {minutes:02d}m"
    if minutes >= 10:
        return f"{sign}{minutes}m"
    return f"{sign}{minutes}m {rest:02d}s" if minutes else f"{sign}{rest}s"


def size(size_bytes: int) -> str:
    """Decimal units, three figures."""
    if size_bytes < 1000:
        return f"{size_bytes} B"
    value = float(size_bytes)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1000
        if value < 999.5 or unit == "TB":
            break
    return f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"


def gpus(gpu_type: str, gpu_count: int) -> str:
    """A100, or 4x A100."""
    return gpu_type if gpu_count == 1 else f"{gpu_count}x {gpu_type}"


def place(where: Where | Stay | Node) -> str:
    """vast A100 $0.71/h"""
    return f"{where.provider} {gpus(where.gpu_type, where.gpu_count)} {price(where.price_per_hour)}"


def steps(job: Job) -> str:
    """1204/3120, or 1204 when the end is not known."""
    return f"{job.step}/{job.total_steps}" if job.total_steps is not None else str(job.step)


def deadline(job: Job, now: datetime) -> str:
    """What is left until the soft deadline; for an ended job, whether it was met."""
    if job.status in ENDED:
        if job.status != "succeeded" or job.ended_at is None:
            return "-"
        late = job.ended_at - job.soft_deadline
        return "met" if late <= timedelta(0) else f"late {duration(late)}"
    left = job.soft_deadline - now
    return duration(left) if left >= timedelta(0) else f"late {duration(-left)}"


def remaining(job: Job, now: datetime) -> str:
    """What is left of a running job: at its present speed, which the service has measured, else at its speed since
    it started, waits included. "-" when that is not known."""
    if job.estimated_finish_at is not None:
        return duration(max(timedelta(0), job.estimated_finish_at - now))
    if job.status != "running" or job.started_at is None or not job.total_steps or job.step <= 0:
        return "-"
    left_steps = max(0, job.total_steps - job.step)
    return duration((now - job.started_at) * left_steps / job.step)


def moment(at: datetime) -> str:
    """Local time, to the second."""
    return f"{at.astimezone():%m-%d %H:%M:%S}"


def number(value: float) -> str:
    """A metric's value, at most six figures."""
    return f"{value:.6g}"


def command(argv: Sequence[str]) -> str:
    """A command line as one would type it."""
    return shlex.join(argv)


def without_places(text: str) -> str:
    """Paths of the job's own code as its owner knows them: without the place where its run kept them."""
    return _PLACES.sub("", text)


def lacking_module(text: str) -> str | None:
    """The module whose absence ended a script, if that is what its last words say."""
    found = re.findall(r"ModuleNotFoundError: No module named ['\"]([\w]+)", text)
    return found[-1] if found else None


def last_words(text: str, most_lines: int = 20) -> str:
    """The end of a program's output: its last traceback, if it has one, else its last lines."""
    lines = without_places(text).rstrip().split("\n")
    starts = [
        index for index, line in enumerate(lines) if line.lstrip().startswith("Traceback (most recent call last)")
    ]
    start = starts[-1] if starts else max(0, len(lines) - most_lines)
    chosen = lines[start:]
    if len(chosen) > most_lines:
        chosen = [*chosen[:1], "  ...", *chosen[-(most_lines - 2) :]]
    return "\n".join(chosen)


def retries(job: Job) -> str:
    """How often it was begun again after failing by itself, and may be."""
    if job.retries is None:
        return "one, after running out of memory, where more is offered"
    return f"{job.retried} of {job.retries} used"
