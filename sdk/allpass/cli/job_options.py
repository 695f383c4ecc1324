"""What commands that submit a job have in common: options, and what is told when one is submitted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allpass.cli import screen, status_line, words
from allpass.cli.faults import FAILED, CommandFailed

if TYPE_CHECKING:
    from allpass.bundle import Bundle
    from allpass.client import Client
    from allpass.wire.jobs import Job

Deadline = Annotated[str | None, typer.Option("--deadline", "-d", help="Soft deadline: 6h, 90m, an instant.")]
JobName = Annotated[str | None, typer.Option("--name", help="Name of the job; default: the app's.")]
FromCheckpoint = Annotated[
    str | None, typer.Option("--from-checkpoint", metavar="JOB:STEP", help="Begin with another job's checkpoint.")
]
User = Annotated[str | None, typer.Option("--user", help="Whose app it is; default: your login name.")]
Image = Annotated[str | None, typer.Option("--image", "--base-image", help="Container image, e.g. pytorch:2.3.0.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Print the log; the exit code is the job's.")]


def value_of(text: str) -> Any:
    """JSON if it is JSON (0.1, true, [1, 2]), else the text itself."""
    try:
        return json.loads(text, parse_constant=str)
    except ValueError:
        return text


def tell_upload(bundle: Bundle, *, sent: bool) -> None:
    files = "1 file" if len(bundle.paths) == 1 else f"{len(bundle.paths)} files"
    how = "sent" if sent else "unchanged: reused"
    what = f"{bundle.entrypoint} ({files}" if bundle.entrypoint else f"this folder ({files}"
    screen.say(f"Code      {what}, {words.size(bundle.size_bytes)}, {how})")


def submitted(client: Client, job: Job, *, follow: bool, as_json: bool) -> None:
    """Tell of a job that was submitted; with `follow`, print its log and fail if it does."""
    for told in job.warnings:
        screen.warn(told, hint=f"allpass cancel {job.id}, and mend it")
    if as_json and not follow:
        screen.print_json(job)
    elif not follow and not screen.is_interactive():
        typer.echo(job.id)
    elif not follow:
        typer.echo(
            f"{job.id}   {job.status}   deadline {words.moment(job.soft_deadline)}   follow: allpass logs -f {job.id}"
        )
    if follow:
        _follow(client, job, as_json=as_json)


def _follow(client: Client, job: Job, *, as_json: bool) -> None:
    screen.say(f"Job       {job.id}   (Ctrl-C stops following, not the job)")
    try:
        if as_json:
            for page in client.log_pages(job.id, follow=True):
                screen.print_json_line(page)
        else:
            with status_line.below(client, job.id) as write:
                for page in client.log_pages(job.id, follow=True):
                    write(page.text)
        ended = client.wait(job.id)
    except KeyboardInterrupt:
        typer.echo(f"\n{job.id} goes on: allpass logs -f {job.id}   stop it: allpass cancel {job.id}", err=True)
        raise
    if as_json:
        screen.print_json_line(ended)
    if ended.status != "succeeded":
        why = words.without_places(ended.message or ended.reason or "no reason was recorded")
        hint = advice_for(ended) or f"allpass show {ended.id}"
        raise CommandFailed(f"{ended.id} {ended.status}: {why}", hint=hint, code=FAILED)
    screen.say(
        f"{ended.id} succeeded after {_took(ended)} for {words.money(ended.cost)}   files: allpass download {ended.id}"
    )


def advice_for(job: Job) -> str | None:
    """What helps a job that failed, where its message says enough."""
    module = words.lacking_module(job.message or "")
    if module is None:
        return None
    from allpass.scripts import package_of

    here = ", or where this computer is the machine: ./allpass up --training" if module == "torch" else ""
    return f"--pip {package_of(module)}, or a line in requirements.txt{here}"


def _took(job: Job) -> str:
    return words.duration(job.ended_at - job.submitted_at) if job.ended_at else "?"
