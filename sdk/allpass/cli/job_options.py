"""What commands that submit a job have in common: options, and what is told when one is submitted."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allpass.cli import screen, words
from allpass.cli.faults import FAILED, WRONG_USAGE, CommandFailed

if TYPE_CHECKING:
    from allpass.bundle import Bundle
    from allpass.client import Client
    from allpass.wire.jobs import Job
    from allpass.wire.template import Template

TemplateFile = Annotated[Path | None, typer.Option("--template", "-t", help="JSON or YAML; see schema template.")]
Deadline = Annotated[str | None, typer.Option("--deadline", "-d", help="Soft deadline: 6h, 90m, an instant.")]
JobName = Annotated[str | None, typer.Option("--name", help="Name of the job; default: the app's.")]
MaxCost = Annotated[float | None, typer.Option("--max-cost", help="Most it may cost, in dollars.")]
Secrets = Annotated[
    list[str] | None, typer.Option("--secret", metavar="NAME", help="Secret for the script's environment; repeat.")
]
Keep = Annotated[
    list[str] | None,
    typer.Option("--keep", metavar="PATH", help="Keep this of the working folder, whatever its size; repeat."),
]
Labels = Annotated[list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="key=value, to find it again.")]
FromCheckpoint = Annotated[
    str | None, typer.Option("--from-checkpoint", metavar="JOB:STEP", help="Begin with another job's checkpoint.")
]
User = Annotated[str | None, typer.Option("--user", help="Whose app it is; default: your login name.")]
BaseImage = Annotated[str | None, typer.Option("--base-image", help="Container image, e.g. pytorch:2.3.0.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Print the log; the exit code is the job's.")]


def template_of(
    path: Path | None,
    max_cost: float | None,
    labels: Sequence[str] | None,
    secrets: Sequence[str] | None,
    keep: Sequence[str] | None = None,
) -> Template:
    """The template file with what options add to it."""
    from allpass.submission import with_secrets
    from allpass.templates import check_template, read_document

    content = read_document(path) if path is not None else {}
    source = path.name if path is not None else "options"
    if isinstance(content, dict):
        if max_cost is not None:
            content = {**content, "caps": {**(content.get("caps") or {}), "max_cost_usd": max_cost}}
        if labels:
            content = {**content, "labels": {**(content.get("labels") or {}), **pairs("--label", labels)}}
        if keep:
            content = {**content, "outputs": [*(content.get("outputs") or []), *keep]}
    return with_secrets(check_template(content, source), secrets)


def pairs(option: str, texts: Sequence[str], *, twice: str | None = None) -> dict[str, str]:
    """KEY=VALUE words, each key once; `twice` is the advice where one is given again."""
    found: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise CommandFailed(f"{option}: {text!r} is not key=value", hint=f"{option} lr=0.1", code=WRONG_USAGE)
        if key.strip() in found:
            raise CommandFailed(f"{option}: {key.strip()!r} is given twice", hint=twice, code=WRONG_USAGE)
        found[key.strip()] = value
    return found


def value_of(text: str) -> Any:
    """JSON if it is JSON (0.1, true, [1, 2]), else the text itself."""
    try:
        return json.loads(text, parse_constant=str)
    except ValueError:
        return text


def tell_upload(bundle: Bundle, *, sent: bool) -> None:
    files = "1 file" if len(bundle.paths) == 1 else f"{len(bundle.paths)} files"
    how = "sent" if sent else "unchanged: reused"
    screen.say(f"Code      {bundle.entrypoint} ({files}, {words.size(bundle.size_bytes)}, {how})")


def submitted(client: Client, job: Job, *, follow: bool, as_json: bool) -> None:
    """Tell of a job that was submitted; with `follow`, print its log and fail if it does."""
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
        for page in client.log_pages(job.id, follow=True):
            if as_json:
                screen.print_json_line(page)
            else:
                sys.stdout.write(page.text)
                sys.stdout.flush()
        ended = client.wait(job.id)
    except KeyboardInterrupt:
        typer.echo(f"\n{job.id} goes on: allpass logs -f {job.id}   stop it: allpass cancel {job.id}", err=True)
        raise
    if as_json:
        screen.print_json_line(ended)
    if ended.status != "succeeded":
        why = ended.message or ended.reason or "no reason was recorded"
        raise CommandFailed(f"{ended.id} {ended.status}: {why}", hint=f"allpass show {ended.id}", code=FAILED)
    screen.say(
        f"{ended.id} succeeded after {_took(ended)} for {words.money(ended.cost)}   files: allpass download {ended.id}"
    )


def _took(job: Job) -> str:
    return words.duration(job.ended_at - job.submitted_at) if job.ended_at else "?"
