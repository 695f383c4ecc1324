"""`allpass run`: register code and submit it, in one command."""

from __future__ import annotations

import getpass
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allpass.cli import screen, words
from allpass.cli.faults import FAILED, WRONG_USAGE, CommandFailed
from allpass.cli.session import connect

if TYPE_CHECKING:
    from allpass.bundle import Bundle
    from allpass.client import Client
    from allpass.wire.apps import App
    from allpass.wire.jobs import Job


def run(
    code: Annotated[Path, typer.Argument(help="A script, or a folder with train.py.")] = Path(),
    arguments: Annotated[list[str] | None, typer.Argument(help="After --: the script's own arguments.")] = None,
    template: Annotated[
        Path | None, typer.Option("--template", "-t", help="JSON or YAML; see schema template.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", "-d", help="Soft deadline: 6h, 90m, an instant.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the job; default: the app's.")] = None,
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", metavar="KEY=VALUE", help="Value as JSON, else text.")
    ] = None,
    params: Annotated[
        Path | None, typer.Option("--params", help="File: an object, or a list of objects (a sweep).")
    ] = None,
    max_cost: Annotated[float | None, typer.Option("--max-cost", help="Most it may cost, in dollars.")] = None,
    secret: Annotated[
        list[str] | None, typer.Option("--secret", metavar="NAME", help="Secret for the script's environment; repeat.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="key=value, to find it again.")
    ] = None,
    from_checkpoint: Annotated[
        str | None, typer.Option("--from-checkpoint", metavar="JOB:STEP", help="Begin with another job's checkpoint.")
    ] = None,
    app: Annotated[str | None, typer.Option("--app", help="Name of the app; default: that of the code.")] = None,
    user: Annotated[str | None, typer.Option("--user", help="Whose app it is; default: your login name.")] = None,
    entrypoint: Annotated[str | None, typer.Option(help="Script inside the folder.")] = None,
    base_image: Annotated[str | None, typer.Option(help="Container image, e.g. pytorch:2.3.0.")] = None,
    pip: Annotated[
        list[str] | None, typer.Option("--pip", metavar="PACKAGE", help="Package to install; repeat for more.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print the log; the exit code is the job's.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The job object (a sweep: {id, jobs}).")] = False,
) -> None:
    """Example: allpass run train.py -t template.json -d 6h -p lr=0.1 --follow

    Send the code (unless the server has it) and submit a job. Prints the job's id alone when piped.
    With --follow, Ctrl-C stops the printing, not the job.
    """
    from allpass.bundle import make_bundle
    from allpass.submission import app_request, with_secrets

    options = {
        "name": name,
        "template": with_secrets(_template(template, max_cost, label or []), secret),
        "parameters": _parameters(param or [], params, arguments or []),
        "soft_deadline": deadline,
        "from_checkpoint": from_checkpoint,
    }
    _check(options, follow=follow)
    bundle = make_bundle(code, entrypoint)
    runtime = {"base_image": base_image, "pip": pip or []}
    app_name = app or (code.stem if code.is_file() else code.resolve().name) or "app"
    registration = app_request(app_name, user or getpass.getuser(), runtime, bundle.sha256, bundle.entrypoint)
    with connect() as client:
        _tell_upload(bundle, sent=client.upload(bundle))
        _submit(client, client.register_app(registration), options, follow=follow, as_json=as_json)


def _check(options: dict[str, Any], *, follow: bool) -> None:
    """Everything is checked before the first byte leaves: a wrong deadline must not upload anything."""
    from allpass.submission import job_request
    from allpass.wire.jobs import SweepRequest

    if isinstance(job_request("app", None, **options), SweepRequest) and follow:
        raise CommandFailed(
            "--follow: a sweep has as many logs as jobs",
            hint="leave it out, then allpass logs -f JOB",
            code=WRONG_USAGE,
        )


def _submit(client: Client, app: App, options: dict[str, Any], *, follow: bool, as_json: bool) -> None:
    from allpass.submission import job_request
    from allpass.wire.jobs import JobRequest

    request = job_request(app.id, app.version, **options)
    if isinstance(request, JobRequest):
        _submitted(client, client.submit_job(request), follow=follow, as_json=as_json)
        return
    sweep = client.submit_sweep(request)
    if as_json:
        screen.print_json(sweep)
        return
    for job in sweep.jobs:
        typer.echo(job.id)
    screen.say(f"{sweep.id}: {len(sweep.jobs)} jobs submitted   table: allpass sweep show {sweep.id}")


def _template(path: Path | None, max_cost: float | None, labels: Sequence[str]) -> Any:
    from allpass.templates import check_template, read_document

    content = read_document(path) if path is not None else {}
    source = path.name if path is not None else "options"
    if isinstance(content, dict):
        if max_cost is not None:
            content = {**content, "caps": {**(content.get("caps") or {}), "max_cost_usd": max_cost}}
        if labels:
            content = {**content, "labels": {**(content.get("labels") or {}), **_pairs("--label", labels)}}
    return check_template(content, source)


def _parameters(pairs: Sequence[str], file: Path | None, arguments: Sequence[str]) -> Any:
    if arguments and (pairs or file is not None):
        raise CommandFailed(
            "arguments after -- and --param(s) cannot be mixed: a job has either",
            hint="--param lr=0.1, or -- --lr 0.1",
            code=WRONG_USAGE,
        )
    if arguments:
        return list(arguments)
    chosen = {key: _value(text) for key, text in _pairs("--param", pairs).items()}
    if file is None:
        return chosen
    from allpass.templates import read_document

    content = read_document(file)
    if not chosen:
        return content
    if isinstance(content, dict):
        return {**content, **chosen}
    if isinstance(content, list) and all(isinstance(one, dict) for one in content):
        return [{**one, **chosen} for one in content]
    raise CommandFailed(f"{file}: --param needs an object, or a list of objects, to go into", code=WRONG_USAGE)


def _pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise CommandFailed(f"{option}: {text!r} is not key=value", hint=f"{option} lr=0.1", code=WRONG_USAGE)
        if key.strip() in pairs:
            hint = 'a sweep is a file: --params sweep.json with [{"lr": 0.1}, {"lr": 0.01}]'
            raise CommandFailed(f"{option}: {key.strip()!r} is given twice", hint=hint, code=WRONG_USAGE)
        pairs[key.strip()] = value
    return pairs


def _value(text: str) -> Any:
    """JSON if it is JSON (0.1, true, [1, 2]), else the text itself."""
    try:
        return json.loads(text, parse_constant=str)
    except ValueError:
        return text


def _tell_upload(bundle: Bundle, *, sent: bool) -> None:
    files = "1 file" if len(bundle.paths) == 1 else f"{len(bundle.paths)} files"
    how = "sent" if sent else "unchanged: reused"
    screen.say(f"Code      {bundle.entrypoint} ({files}, {words.size(bundle.size_bytes)}, {how})")


def _submitted(client: Client, job: Job, *, follow: bool, as_json: bool) -> None:
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
