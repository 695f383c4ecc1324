"""`allpass run`: register code and submit it, in one command."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allpass.cli import job_options, screen
from allpass.cli.faults import WRONG_USAGE, CommandFailed
from allpass.cli.session import connect

if TYPE_CHECKING:
    from allpass.client import Client
    from allpass.wire.apps import App

_SWEEP = 'a sweep is a file: --params sweep.json with [{"lr": 0.1}, {"lr": 0.01}]'


def run(
    code: Annotated[Path, typer.Argument(help="A script, or a folder with train.py.")] = Path(),
    arguments: Annotated[list[str] | None, typer.Argument(help="After --: the script's own arguments.")] = None,
    template: job_options.TemplateFile = None,
    deadline: job_options.Deadline = None,
    name: job_options.JobName = None,
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", metavar="KEY=VALUE", help="Value as JSON, else text.")
    ] = None,
    params: Annotated[
        Path | None, typer.Option("--params", help="File: an object, or a list of objects (a sweep).")
    ] = None,
    max_cost: job_options.MaxCost = None,
    secret: job_options.Secrets = None,
    keep: job_options.Keep = None,
    label: job_options.Labels = None,
    from_checkpoint: job_options.FromCheckpoint = None,
    app: Annotated[str | None, typer.Option("--app", help="Name of the app; default: that of the code.")] = None,
    user: job_options.User = None,
    entrypoint: Annotated[str | None, typer.Option(help="Script inside the folder.")] = None,
    base_image: job_options.BaseImage = None,
    pip: Annotated[
        list[str] | None, typer.Option("--pip", metavar="PACKAGE", help="Package to install; repeat for more.")
    ] = None,
    follow: job_options.Follow = False,
    as_json: Annotated[bool, typer.Option("--json", help="The job object (a sweep: {id, jobs}).")] = False,
) -> None:
    """Example: allpass run train.py -t template.json -d 6h -p lr=0.1 --follow

    Send the code (unless the server has it) and submit a job. Prints the job's id alone when piped.
    With --follow, Ctrl-C stops the printing, not the job.
    """
    from allpass.bundle import make_bundle
    from allpass.submission import app_request

    options = {
        "name": name,
        "template": job_options.template_of(template, max_cost, label, secret, keep),
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
        job_options.tell_upload(bundle, sent=client.upload(bundle))
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
        job_options.submitted(client, client.submit_job(request), follow=follow, as_json=as_json)
        return
    sweep = client.submit_sweep(request)
    if as_json:
        screen.print_json(sweep)
        return
    for job in sweep.jobs:
        typer.echo(job.id)
    screen.say(f"{sweep.id}: {len(sweep.jobs)} jobs submitted   table: allpass sweep show {sweep.id}")


def _parameters(pairs: Sequence[str], file: Path | None, arguments: Sequence[str]) -> Any:
    if arguments and (pairs or file is not None):
        raise CommandFailed(
            "arguments after -- and --param(s) cannot be mixed: a job has either",
            hint="--param lr=0.1, or -- --lr 0.1",
            code=WRONG_USAGE,
        )
    if arguments:
        return list(arguments)
    chosen = {
        key: job_options.value_of(text) for key, text in job_options.pairs("--param", pairs, twice=_SWEEP).items()
    }
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
