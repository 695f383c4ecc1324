"""What a person sees while the demo runs: three jobs with their place, progress and cost, and what just happened."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from allpass.client import Client
from allpass.errors import ConnectionFailed
from allpass.wire.jobs import TERMINAL_STATUSES, Job
from allpass.wire.pressure import Pressure
from app.cli.demo.jobs import DemoJobs
from app.cli.demo.reference import ReferenceRun

_REFRESH_S = 0.4
_FEED_LINES = 9
STALLED_AFTER_S = 180.0  # a busy machine is slow, and its jobs advance all the same
_COLOURS = {"succeeded": "green", "running": "green", "failed": "red", "cancelled": "red"}
_COLUMNS = (("JOB", 14), ("STATUS", 13), ("WHERE", 30), ("STEP", 8), ("", 18), ("SPENT", 9))
_QUIET = frozenset({"run_starting", "checkpoint_opened"})


class Watcher:
    """Polls the service, remembers what was told, and draws."""

    def __init__(self, client: Client, jobs: DemoJobs, reference: ReferenceRun) -> None:
        self._client = client
        self._handles = jobs.all()
        self._reference = reference
        self._policy = "nothing was decided yet"
        self._position = dict.fromkeys((job.id for job in self._handles), 0)
        self._loss: dict[str, float] = {}
        self._feed: deque[Text] = deque(maxlen=_FEED_LINES)
        self._told: dict[str, str] = {}
        self.jobs: dict[str, Job] = {}

    def look(self) -> list[Text]:
        """One round of polling; returns the new lines of the feed."""
        fresh: list[Text] = []
        for handle in self._handles:
            job = self._client.get_job(handle.id)
            self.jobs[handle.id] = job
            for event in self._client.events(handle.id, after=self._position[handle.id]):
                self._position[handle.id] = event.position
                if event.kind not in _QUIET and self._told.get(handle.id) != event.message:
                    self._told[handle.id] = event.message  # the job's event often repeats its run's
                    fresh.append(_event_line(job, event.at.strftime("%H:%M:%S"), event.message))
        self._feed.extend(fresh)
        self._policy = _told_policy(self._client.pressure(limit=1))
        if self._only_long_is_left():
            self._reference.start()
        return fresh

    def finished(self) -> bool:
        """All three jobs are over, and so is the reference."""
        over = [job for job in self.jobs.values() if job.status in TERMINAL_STATUSES]
        if len(over) == len(self._handles):
            self._reference.start()
            return self._reference.done()
        return False

    def mark(self) -> object:
        """Changes whenever anything advances: a state, a step, what was told, the reference."""
        jobs = [(job.status, job.step, job.epoch, job.message) for job in self.jobs.values()]
        return jobs, dict(self._position), self._reference.step

    def draw(self) -> Group:
        table = Table(box=None, pad_edge=False, expand=False)
        for title, width in _COLUMNS:
            table.add_column(title, no_wrap=True, min_width=width, max_width=width)
        for job in self.jobs.values():
            table.add_row(
                job.name,
                Text(job.status, style=_COLOURS.get(job.status, "yellow")),
                _where(job),
                f"{job.step}/{job.total_steps}" if job.total_steps else str(job.step),
                ProgressBar(total=job.total_steps or 1, completed=job.step, width=18),
                f"${job.cost / 1e6:.5f}",
            )
        if self._reference.step:
            table.add_row(Text("uninterrupted", style="dim"), "", "(to compare)", str(self._reference.step), "", "")
        return Group(table, Text(self._policy, style="dim"), Text(""), *self._feed)

    def unfinished(self) -> str:
        """What is not over, and how far it is."""
        left = [f"{job.name} is {job.status} at step {job.step}" for job in self.jobs.values() if not _is_over(job)]
        return ", ".join(left) or f"the uninterrupted run is at step {self._reference.step}"

    def _only_long_is_left(self) -> bool:
        """The reference takes a core: it starts when only the long job still needs one."""
        short, _, failing = (self.jobs[handle.id] for handle in self._handles)
        return short.status in TERMINAL_STATUSES and failing.status in TERMINAL_STATUSES


def watch(
    client: Client,
    jobs: DemoJobs,
    reference: ReferenceRun,
    console: Console,
    keep_alive: Callable[[], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str | None:
    """Show the jobs until all are over: a live screen on a terminal, plain event lines elsewhere.

    `keep_alive` is called now and then, so that a part of the stack that died is started again. There is no limit while
    anything advances; when nothing has for three minutes, what is not over is told, and None otherwise.
    """
    watcher = Watcher(client, jobs, reference)
    mark, changed_s = watcher.mark(), clock()
    with Live(console=console, refresh_per_second=8, transient=False, auto_refresh=console.is_terminal) as live:
        while clock() - changed_s < STALLED_AFTER_S:
            keep_alive()
            try:
                fresh = watcher.look()
            except ConnectionFailed:
                fresh = []  # the server is being started again; the jobs go on meanwhile
            if console.is_terminal:
                live.update(watcher.draw())
            else:
                for line in fresh:
                    console.print(line, soft_wrap=True)
            if watcher.finished():
                return None
            if mark != (mark := watcher.mark()):
                changed_s = clock()
            sleep(_REFRESH_S)
    return f"nothing advanced for {STALLED_AFTER_S:.0f} s: {watcher.unfinished()}"


def _is_over(job: Job) -> bool:
    return job.status in TERMINAL_STATUSES


def _told_policy(seen: Pressure) -> str:
    if not seen.decisions:
        return "nothing was decided yet"
    newest = seen.decisions[0]
    pressure = "-" if newest.pressure is None else f"{newest.pressure:.2f}"
    budget = "-" if newest.serverless_budget_s is None else f"{newest.serverless_budget_s:.1f} s"
    return f"policy {newest.policy}: pressure p = {pressure}, serverless budget F = {budget}"


def _event_line(job: Job, at: str, message: str) -> Text:
    return Text.assemble((f"{at}  ", "dim"), (f"{job.name:<14}", "bold"), message)


def _where(job: Job) -> str:
    if job.where is None:
        return "" if job.status in TERMINAL_STATUSES else job.message or ""
    where = job.where
    return f"{where.tier} {where.gpu_type} ${where.price_per_hour / 1e6:.2f}/h"
