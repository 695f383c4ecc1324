"""`allpass tensorboard`: the event files of jobs in one TensorBoard on this machine, which grows as they do."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allpass.cli import screen
from allpass.cli.faults import FAILED, CommandFailed
from allpass.cli.session import connect
from allpass.errors import AllpassError

if TYPE_CHECKING:
    from allpass.client import Client

_EVENTS = re.compile(r"(.*/)?[^/]*tfevents[^/]*")
_TICK_S = 0.2


def tensorboard(
    job_ids: Annotated[list[str], typer.Argument(metavar="JOB...", help="Ids of the jobs.")],
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Of TensorBoard on this machine; 0: any.")] = 6006,
    every_s: Annotated[float, typer.Option("--every", min=1, help="Seconds between looks for news.")] = 15.0,
) -> None:
    """Example: allpass tensorboard job_01JD9K3W0A4T6Z8X2C5V

    Show the event files that jobs wrote to their working folders, in the TensorBoard of this machine. While a job runs,
    what it has written is fetched again and again; Ctrl-C ends it.
    """
    program = _program()
    shown = cache_folder() / _name(job_ids)
    targets = {job_id: shown / job_id if len(job_ids) > 1 else shown for job_id in dict.fromkeys(job_ids)}
    with connect() as client:
        if not sum(_fetch(client, job_id, target) for job_id, target in targets.items()):
            screen.say("no event files yet: they are shown as soon as there are some (they lie in runs/, as a rule)")
        shown.mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen([program, "--logdir", os.fspath(shown), "--port", str(port)])  # noqa: S603 - the user's own
        try:
            _refresh(client, targets, process, every_s)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if process.returncode:
        raise CommandFailed(f"tensorboard ended with exit code {process.returncode}", code=FAILED)


def cache_folder() -> Path:
    """Where fetched event files lie, for the next time."""
    base = os.environ.get("XDG_CACHE_HOME") or os.fspath(Path.home() / ".cache")
    return Path(base) / "allpass" / "tensorboard"


def _name(job_ids: Sequence[str]) -> str:
    """Of the folder that shows these jobs and no others."""
    if len(set(job_ids)) == 1:
        return job_ids[0]
    return f"jobs-{hashlib.sha256(' '.join(sorted(set(job_ids))).encode()).hexdigest()[:16]}"


def _program() -> str:
    """That of the user's environment: the one that this command runs in goes first."""
    beside = Path(sys.executable).with_name("tensorboard")
    found = os.fspath(beside) if os.access(beside, os.X_OK) else shutil.which("tensorboard")
    if found is None:
        raise CommandFailed("tensorboard is not installed here", hint="pip install tensorboard", code=FAILED)
    return found


def _fetch(client: Client, job_id: str, target: Path) -> int:
    """How many event files there are."""
    return sum(1 for _ in client.download(job_id, target, only=is_event_file))


def is_event_file(path: str) -> bool:
    return _EVENTS.fullmatch(path) is not None


def _refresh(client: Client, targets: dict[str, Path], process: subprocess.Popen[bytes], every_s: float) -> None:
    """Until TensorBoard has ended. The last files of a job may come a little after its end."""
    waiting, over = dict(targets), set[str]()
    due_s = time.monotonic() + every_s
    while process.poll() is None:
        time.sleep(_TICK_S)
        if time.monotonic() < due_s:
            continue
        for job_id, target in list(waiting.items()):
            try:
                is_over = client.get_job(job_id).ended_at is not None
                _fetch(client, job_id, target)
            except AllpassError as error:
                screen.say(f"{job_id}: {error}; tried again")
                continue
            if is_over and job_id in over:
                del waiting[job_id]
            elif is_over:
                over.add(job_id)
        due_s = time.monotonic() + every_s
