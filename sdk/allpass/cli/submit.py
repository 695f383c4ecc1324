"""`allpass run`: register code and submit it, in one command."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allpass.cli import job_options, progress, screen, template_options, words
from allpass.cli.after_dashes import WithCommand, words_after
from allpass.cli.faults import WRONG_USAGE, CommandFailed
from allpass.cli.session import connect

if TYPE_CHECKING:
    from allpass.client import Client
    from allpass.packages import Packages
    from allpass.wire.apps import App
    from allpass.wire.template import Template

_SWEEP = 'a sweep is a file: --params sweep.json with [{"lr": 0.1}, {"lr": 0.01}]'
_PROGRAMS = frozenset(
    {"python", "python3", "bash", "sh", "torchrun", "accelerate", "deepspeed", "axolotl", "uv", "make"}
)
run = typer.Typer(rich_markup_mode=None, add_completion=False)


@run.command("run", cls=WithCommand)
def run_(
    context: typer.Context,
    code: Annotated[Path, typer.Argument(help="A script, or a folder. Default: this folder.")] = Path(),
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Of the script; after --, where they begin with -.")
    ] = None,
    template: template_options.TemplateFile = None,
    gpu: template_options.Gpu = None,
    elastic: template_options.Elastic = False,
    resize_by: template_options.ResizeBy = None,
    deadline: job_options.Deadline = None,
    name: job_options.JobName = None,
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", metavar="KEY=VALUE", help="Value as JSON, else text.")
    ] = None,
    params: Annotated[
        Path | None, typer.Option("--params", help="File: an object, or a list of objects (a sweep).")
    ] = None,
    env: template_options.Variables = None,
    secret: template_options.Secrets = None,
    keep: template_options.Keep = None,
    checkpoints: template_options.Checkpoints = None,
    max_cost: template_options.MaxCost = None,
    max_duration: template_options.MaxDuration = None,
    max_hourly: template_options.MaxHourly = None,
    max_wait: template_options.MaxWait = None,
    retries: template_options.Retries = None,
    spot: template_options.Spot = False,
    guaranteed: template_options.Guaranteed = False,
    nodes: template_options.Nodes = None,
    most_per_switch: template_options.MostPerSwitch = None,
    most_per_rack: template_options.MostPerRack = None,
    cpus: template_options.Cpus = None,
    memory: template_options.Memory = None,
    image: job_options.Image = None,
    pip: Annotated[
        list[str] | None, typer.Option("--pip", metavar="PACKAGE", help="Package to install; repeat for more.")
    ] = None,
    requirements: Annotated[
        str | None,
        typer.Option("--requirements", "-r", metavar="FILE", help="Instead of those found in the folder; none: none."),
    ] = None,
    label: template_options.Labels = None,
    from_checkpoint: job_options.FromCheckpoint = None,
    app: Annotated[str | None, typer.Option("--app", help="Name of the app; default: that of the code.")] = None,
    user: job_options.User = None,
    entrypoint: Annotated[str | None, typer.Option(help="Script inside the folder.")] = None,
    follow: job_options.Follow = False,
    as_json: Annotated[bool, typer.Option("--json", help="The job object (a sweep: {id, jobs}).")] = False,
) -> None:
    """Example: allpass run . --gpu H100:2 -- torchrun --nproc-per-node 2 train.py

    Send the code (unless the server has it) and submit a job. What follows -- is the command to run in the folder, or,
    behind a script, its arguments. Packages of uv.lock, requirements.txt or pyproject.toml are installed. Prints the
    job's id alone when piped. With --follow, Ctrl-C stops the printing, not the job.
    """
    from allpass.bundle import make_bundle
    from allpass.packages import find_pip
    from allpass.scripts import check_command, script_of
    from allpass.submission import app_request

    _check_code(code)
    command, own = _command_or_arguments(code, entrypoint, (*(arguments or ()), *words_after(context)))
    filled = template_options.template_of(
        template, gpu=gpu, elastic=elastic, resize_by=resize_by, spot=spot, guaranteed=guaranteed, nodes=nodes,
        most_per_switch=most_per_switch, most_per_rack=most_per_rack, cpus=cpus, memory=memory, env=env, image=None,
        max_cost=max_cost, max_duration=max_duration, max_hourly=max_hourly, max_wait=max_wait, retries=retries,
        labels=label, secrets=secret, command=command, keep=keep, checkpoints=checkpoints,
    )  # fmt: skip
    options = {
        "name": name,
        "template": filled,
        "parameters": _parameters(param or [], params, own),
        "soft_deadline": deadline,
        "from_checkpoint": from_checkpoint,
    }
    _check(options, follow=follow)
    packages = find_pip(code, pip or [], requirements)
    bundle = make_bundle(code, entrypoint, needs_script=filled.command is None)
    if filled.command is not None:
        check_command(filled.command, bundle.paths)
    if image is None and filled.image is None:
        _warn_of_imports(code, bundle.entrypoint or script_of(filled.command or [""]), packages)
    runtime = {"base_image": image, "pip": list(packages.pip)}
    app_name = app or (code.stem if code.is_file() else code.resolve().name) or "app"
    registration = app_request(app_name, user or getpass.getuser(), runtime, bundle.sha256, bundle.entrypoint)
    with connect() as client:
        with progress.told(client, "Upload"):
            sent = client.upload(bundle)
        job_options.tell_upload(bundle, sent=sent)
        _tell(packages, filled)
        _submit(client, client.register_app(registration), options, follow=follow, as_json=as_json)


def _check_code(code: Path) -> None:
    """A program in the place of the code: its command line was meant. A path as another system writes it."""
    slashed = str(code).replace("\\", "/")
    if not code.exists() and slashed != str(code):
        drive = slashed[1:3] == ":/"
        raise CommandFailed(
            f"code: there is no file or folder {str(code)!r} here; paths have / on this machine",
            hint=f"allpass run {Path(slashed).name if drive else slashed}",
            code=WRONG_USAGE,
        )
    if not code.exists() and code.name == str(code) and code.name in _PROGRAMS:
        raise CommandFailed(
            f"{code} is not code of yours; a command comes after --",
            hint=f"allpass run . -- {code} ...",
            code=WRONG_USAGE,
        )


def _warn_of_imports(code: Path, script: str | None, packages: Packages) -> None:
    """To people alone: a guess from the outside is no reason to refuse."""
    from allpass.scripts import unknown_imports

    folder = code if code.is_dir() else code.parent
    if script is None or not script.endswith(".py") or not (folder / script).is_file():
        return
    for module, package in unknown_imports(folder / script, packages.pip):
        screen.warn(
            f"{script} imports {module}, which neither the code nor its packages have",
            hint=f"--pip {package}, or a line in requirements.txt",
        )


def _command_or_arguments(
    code: Path, entrypoint: str | None, given: Sequence[str]
) -> tuple[Sequence[str], Sequence[str]]:
    """Words behind a script are its arguments. Behind a folder they are the command, unless they begin with a dash:
    then they are arguments of the folder's train.py."""
    if not given:
        return (), ()
    if code.is_file() and len(given) > 1 and code.name in (Path(given[0]).name, *map(str, given[1:])):
        raise CommandFailed(
            f"what follows {code} are its arguments; a command that runs it belongs to the folder",
            hint=f"allpass run {code.parent} -- {' '.join(given)}",
            code=WRONG_USAGE,
        )
    if code.is_dir() and entrypoint is None and not given[0].startswith("-"):
        return given, ()
    return (), given


def _tell(packages: Packages, template: Template) -> None:
    if packages.pip:
        count = "1 package" if len(packages.pip) == 1 else f"{len(packages.pip)} packages"
        screen.say(f"Packages  installs {packages.source} ({count})")
    for one in packages.left_out:
        screen.say(f"          not used: {screen.printable(one)}")
    if template.command is not None:
        screen.say(f"Command   {words.command(template.command)}")


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


def _parameters(texts: Sequence[str], file: Path | None, arguments: Sequence[str]) -> Any:
    if arguments and (texts or file is not None):
        raise CommandFailed(
            "arguments after -- and --param(s) cannot be mixed: a job has either",
            hint="--param lr=0.1, or -- --lr 0.1",
            code=WRONG_USAGE,
        )
    if arguments:
        return list(arguments)
    chosen = {
        key: job_options.value_of(text) for key, text in template_options.pairs("--param", texts, twice=_SWEEP).items()
    }
    if file is None:
        return chosen
    from allpass.templates import read_document

    content = read_document(file)
    if not isinstance(content, (dict, list)):
        raise CommandFailed(
            f"--params: {file} holds {content!r:.60}, and needs an object, or a list of objects (a sweep)",
            hint='{"lr": 0.1}, or on the command line: --param lr=0.1',
            code=WRONG_USAGE,
        )
    if not chosen:
        return content
    if isinstance(content, dict):
        return {**content, **chosen}
    if isinstance(content, list) and all(isinstance(one, dict) for one in content):
        return [{**one, **chosen} for one in content]
    raise CommandFailed(f"{file}: --param needs an object, or a list of objects, to go into", code=WRONG_USAGE)
