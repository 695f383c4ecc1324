"""`allpass import`: what was trained elsewhere, fetched, repeated here, and compared."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allpass.cli import job_options, screen, template_options, words
from allpass.cli.faults import FAILED, WRONG_USAGE, CommandFailed
from allpass.cli.group import make_group

if TYPE_CHECKING:
    from allpass.cli.openai.fetch import Outcome

import_ = make_group()
OPENAI = "https://api.openai.com/v1"
_SENT_WITH_THE_KEY = {"OPENAI_ORG_ID": "OpenAI-Organization", "OPENAI_PROJECT_ID": "OpenAI-Project"}
_MOST = 10_000


@import_.callback()
def imports() -> None:
    """Example: allpass import openai

    Fetch what was trained elsewhere, repeat it here, and compare both.
    """


@import_.command("openai")
def openai(
    new: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="With --compare: the new job, job_... or ftjob-...")
    ] = None,
    job: Annotated[
        list[str] | None, typer.Option("--job", metavar="ftjob-...", help="Only this job; can be given several times.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=_MOST, help="So many jobs, the newest.")] = 100,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="URL", help=f"Default: OPENAI_BASE_URL, else {OPENAI}.")
    ] = None,
    into: Annotated[Path, typer.Option("--into", help="The folder.")] = Path("openai-import"),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Fetch without asking first.")] = False,
    repeat: Annotated[
        str | None, typer.Option("--repeat", metavar="ftjob-...", help="Train an imported job anew, on Allpass.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="With --repeat: on this model; default: what its name means here.")
    ] = None,
    deadline: job_options.Deadline = None,
    max_cost: template_options.MaxCost = None,
    again: Annotated[bool, typer.Option("--again", help="With --repeat: once more, beside an earlier one.")] = False,
    compare: Annotated[
        str | None, typer.Option("--compare", metavar="ftjob-...", help="Compare an imported job with JOB.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="What was done, as JSON.")] = False,
) -> None:
    """Example: allpass import openai --job ftjob-abc123

    Fetch fine-tuning jobs of your OpenAI account into a folder: files, hyperparameters, events, checkpoints, metrics.
    The key is read from OPENAI_API_KEY, sent to that address alone, and not kept. What is there already is not fetched
    again. --repeat trains one of them on Allpass; --compare shows both runs beside each other.
    """
    from allpass.cli.imported import compare_with, repeat_here

    _check(repeat, compare, new, job, model, deadline, max_cost, again=again)
    if repeat is not None:
        more = {} if deadline is None else {"deadline": deadline}
        cap = {} if max_cost is None else {"max_cost_usd": template_options.dollars("--max-cost", max_cost)}
        repeat_here(into, repeat, model, {**more, **cap}, again=again, as_json=as_json)
    elif compare is not None:
        compare_with(into, compare, new or "", as_json=as_json)
    else:
        _fetch(into, from_, job or [], limit, yes=yes, as_json=as_json)


def _check(
    repeat: str | None, compare: str | None, new: str | None, job: list[str] | None, *ours: str | None, again: bool
) -> None:
    from allpass.cli.openai.told import check_job_id

    for option, ids in (("--job", job or []), ("--repeat", [repeat]), ("--compare", [compare])):
        for one in ids:
            if one is not None:
                check_job_id(one, option)
    if sum(bool(one) for one in (repeat, compare, job)) > 1:
        raise CommandFailed("--repeat, --compare and --job are three things", hint="one of them", code=WRONG_USAGE)
    if compare is not None and new is None:
        hint = f"allpass import openai --compare {compare} JOB"
        raise CommandFailed("--compare: the new job is missing", hint=hint, code=WRONG_USAGE)
    if new is not None and compare is None:
        raise CommandFailed(
            f"{new!r}: what is to be done with it?", hint=f"--job {new}, or --repeat {new}", code=WRONG_USAGE
        )
    if repeat is None and (again or any(one is not None for one in ours)):
        told = "--model, --deadline, --max-cost and --again are for --repeat"
        raise CommandFailed(told, hint="allpass import openai --repeat ftjob-...", code=WRONG_USAGE)


def _fetch(into: Path, from_: str | None, jobs: list[str], limit: int, *, yes: bool, as_json: bool) -> None:
    from allpass.cli.openai.api import OtherSide, checked_key, is_open_to_all
    from allpass.cli.openai.fetch import Importer
    from allpass.config import checked_url

    origin = "--from" if from_ else "OPENAI_BASE_URL"
    url = checked_url(from_ or os.environ.get("OPENAI_BASE_URL") or OPENAI, origin)
    key = os.environ.get("OPENAI_API_KEY", "")
    if not key.strip():
        raise CommandFailed("OPENAI_API_KEY is not set", hint="export OPENAI_API_KEY=sk-...", code=WRONG_USAGE)
    checked_key(key)
    if is_open_to_all(url):
        screen.warn(f"{url}: whoever is between here and there can read the key", hint="an address with https://")
    if not yes:
        _ask(url, into, jobs, limit)
    more = {header: os.environ[name] for name, header in _SENT_WITH_THE_KEY.items() if os.environ.get(name)}
    side = OtherSide(url, key, more=more)
    done: list[Outcome] = []
    try:
        importer = Importer(side, into)
        for outcome in importer.named(jobs) if jobs else importer.newest(limit):
            done.append(outcome)
            if not as_json:
                _tell_outcome(outcome)
    finally:
        side.close()
        if as_json:
            screen.print_json([_plain(one) for one in done])
    _tell_end(done, into, as_json=as_json)


def _ask(url: str, into: Path, jobs: list[str], limit: int) -> None:
    what = ", ".join(jobs) or f"your fine-tuning jobs, at most the {limit} newest"
    typer.echo("These would be fetched:", err=True)
    for name, told in (
        ("jobs", what),
        ("of each", "training and validation file, hyperparameters, events, checkpoints, metrics"),
        ("from", f"{screen.printable(url)}, with the key of OPENAI_API_KEY"),
        ("into", str(into)),
    ):
        typer.echo(f"  {name.ljust(7)}   {told}", err=True)
    if not screen.is_interactive(sys.stdin):
        raise CommandFailed("nobody is there to be asked, and nothing was sent", hint="--yes", code=WRONG_USAGE)
    typer.confirm("Fetch them?", abort=True, err=True)


def _tell_outcome(one: Outcome) -> None:
    about = f"{one.job.status}, {one.job.model}" if one.job is not None else "not imported"
    typer.echo(screen.printable(f"{one.id}   {about}"))
    if one.error is not None:
        typer.echo(f"  {screen.printable(one.error)}", err=True)
    for part in one.parts:
        size = words.size(part.size_bytes) if part.how in ("fetched", "kept", "cut") else ""
        told = {"kept": "there already", "deleted": "deleted there: left out", "failed": "failed"}.get(part.how, "")
        line = "   ".join(text for text in (part.name.ljust(17), size, told, part.why or "") if text)
        typer.echo(f"  {screen.printable(line)}", err=part.how == "failed")


def _tell_end(done: list[Outcome], into: Path, *, as_json: bool) -> None:
    from allpass.cli.imported import where

    failed = [one.id for one in done if one.failed]
    if not as_json:
        many = "1 job" if len(done) == 1 else f"{len(done):,} jobs"
        wrong = f", {len(failed):,} of them not whole" if failed else ""
        typer.echo(f"{many}{wrong}   {into}" if done else "no fine-tuning jobs")
        first = next((one.id for one in done if one.can_be_repeated), None)
        if first is not None:
            typer.echo(f"next: allpass import openai --repeat {first}{where(into)}")
    if failed:
        hint = "the same command again: it goes on from there"
        raise CommandFailed(f"not whole: {screen.printable(', '.join(failed[:5]))}", hint=hint, code=FAILED)


def _plain(one: Outcome) -> dict[str, Any]:
    files = [{"name": it.name, "how": it.how, "size_bytes": it.size_bytes, "why": it.why} for it in one.parts]
    status = None if one.job is None else one.job.status
    return {"id": one.id, "status": status, "error": one.error, "files": files}
