"""Commands that steer a job while it lives, and the one that says why it is where it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allpass.cli import screen, words
from allpass.cli.faults import WRONG_USAGE, CommandFailed
from allpass.cli.session import connect
from allpass.cli.template_options import dollars, pairs, seconds, times

if TYPE_CHECKING:
    from allpass.client import Client
    from allpass.wire.controls import Explanation, JobUpdate
    from allpass.wire.jobs import Job

JobIds = Annotated[list[str], typer.Argument(metavar="JOB...", help="Ids of the jobs.")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job.")]
AsArray = Annotated[bool, typer.Option("--json", help="An array of job objects.")]
NONE = "none"


def pause(
    job_ids: JobIds,
    lose_steps: Annotated[
        bool, typer.Option("--lose-steps", help="Also a job whose checkpoints are not kept: its last steps are lost.")
    ] = False,
    as_json: AsArray = False,
) -> None:
    """Example: allpass pause job_01JD9K3W0A4T6Z8X2C5V

    Stop jobs and keep where they are. Running code saves a checkpoint first; nothing is paid while a job is paused.
    Refused, with the number of steps, for a job whose checkpoints are not kept.
    """

    def steer(client: Client, job_id: str) -> Job:
        from allpass.errors import Conflict

        try:
            return client.pause_job(job_id, lose_steps=lose_steps)
        except Conflict as error:
            if error.code != "steps_would_be_lost":
                raise
            raise CommandFailed(str(error), hint=f"allpass pause {job_id} --lose-steps") from error

    _each(job_ids, steer, as_json)


def resume(job_ids: JobIds, as_json: AsArray = False) -> None:
    """Example: allpass resume job_01JD9K3W0A4T6Z8X2C5V

    Let paused jobs go on from their newest checkpoint. Refused while the limit that would stop one again is reached.
    """
    _each(job_ids, lambda client, job_id: client.resume_job(job_id), as_json)


def resize(
    job_id: JobId,
    gpus: Annotated[
        int | None, typer.Argument(metavar="GPUS", help="How many it is to have from now on.", min=1, max=64)
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", help="On how many machines it is to run from now on.", min=1, max=64)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The job object.")] = False,
) -> None:
    """Example: allpass resize job_01JD9K3W0A4T6Z8X2C5V 3

    Change the number of a job's GPUs, or with --nodes of its machines. A fine-tuning that runs goes on with them from
    one of its next steps, and not a byte of its result changes. A job with --resize-by restart is begun again for them,
    from what it saves. What it leaves is free for other jobs. Machines that it lacks are rented while it trains on. A
    job that does not run begins with so many.
    """
    from allpass.errors import Conflict

    if (gpus is None) == (nodes is None):
        raise typer.BadParameter("say how many GPUs, or --nodes how many machines: one of the two")
    with connect() as client:
        try:
            job = client.resize_job(job_id, gpus, nodes=nodes)
        except Conflict as error:
            if error.code not in ("not_elastic", "no_room"):
                raise
            ways = f"allpass pause {job_id}; then, once it is paused, resize and resume it"
            raise CommandFailed(str(error), hint=ways) from error
    if as_json:
        screen.print_json(job)
        return
    _print_status(job)
    typer.echo(f"follow it: allpass events {job_id}")


def set_(
    job_id: JobId,
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="The options without dashes: retries=3.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", "-d", help='"6h" from now, or an instant with its zone.')
    ] = None,
    max_cost: Annotated[
        str | None, typer.Option("--max-cost", help='Most it may cost, in dollars; "none" for no limit.')
    ] = None,
    max_duration: Annotated[
        str | None,
        typer.Option("--max-duration", help='Longest from its first step to its end, e.g. 8h; "none" for no limit.'),
    ] = None,
    max_hourly: Annotated[
        str | None,
        typer.Option(
            "--max-hourly", help='Most that its next GPUs may cost per hour, in dollars; "none" for no limit.'
        ),
    ] = None,
    max_wait: Annotated[
        str | None,
        typer.Option(
            "--max-wait", help='Longest until it starts at any price, from its submission; "none" for no limit.'
        ),
    ] = None,
    retries: Annotated[
        str | None,
        typer.Option("--retries", help='How often it is begun again when its code fails; "none" for the default.'),
    ] = None,
    label: Annotated[list[str] | None, typer.Option("--label", help="Set key=value; repeat for more.")] = None,
    unlabel: Annotated[list[str] | None, typer.Option("--unlabel", help="Remove this label; repeat for more.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The job object.")] = False,
) -> None:
    """Example: allpass set job_01JD9K3W0A4T6Z8X2C5V --deadline 8h --max-cost 20

    Change the deadline, limits or labels of a job that is not over. What is not named stays as it is. max_cost=20 is
    the same as --max-cost 20.
    """
    given = {
        "deadline": deadline,
        "max_cost": max_cost,
        "max_duration": max_duration,
        "max_hourly": max_hourly,
        "max_wait": max_wait,
        "retries": retries,
    }
    change = _change(_with_words(given, changes or []), label or [], unlabel or [])
    with connect() as client:
        job = client.update_job(job_id, change)
    if as_json:
        screen.print_json(job)
        return
    _print_status(job)
    screen.print_facts(_limits(job))


def explain(
    job_id: JobId,
    as_json: Annotated[
        bool, typer.Option("--json", help='{"headline", "because": [{"text", "data"}], "next": [...], "deadline"}.')
    ] = False,
) -> None:
    """Example: allpass explain job_01JD9K3W0A4T6Z8X2C5V

    Say why a job waits or runs where it does, what comes next, and whether it will meet its deadline.
    """
    with connect() as client:
        told = client.explain_job(job_id)
    if as_json:
        screen.print_json(told)
        return
    _print_explanation(told)


def _each(job_ids: Sequence[str], steer: Callable[[Client, str], Job], as_json: bool) -> None:
    with connect() as client:
        jobs = [steer(client, job_id) for job_id in job_ids]
    if as_json:
        screen.print_json(jobs)
        return
    for job in jobs:
        _print_status(job)


def _print_status(job: Job) -> None:
    for line in screen.headline(job.id, job.status, job.message):
        typer.echo(line)


def _limits(job: Job) -> list[tuple[str, str]]:
    most = "no limit" if job.max_cost is None else f"at most {words.money(job.max_cost)}"
    longest = "no limit" if job.max_duration_s is None else words.duration(job.max_duration_s)
    labels = ", ".join(f"{name}={value}" for name, value in sorted(job.labels.items())) or "-"
    return [
        ("deadline", words.moment(job.soft_deadline)),
        ("cost", f"{words.money(job.cost)}, {most}"),
        ("max duration", longest),
        ("max hourly", "no limit" if job.max_hourly is None else words.price(job.max_hourly)),
        ("max wait", "no limit" if job.max_wait_s is None else words.duration(job.max_wait_s)),
        ("retries", words.retries(job)),
        ("labels", labels),
    ]


def _print_explanation(told: Explanation) -> None:
    colour = screen.STATUS_COLOURS.get(told.status)
    headline, *rest = screen.prose(f"{screen.printable(told.headline)}, because", rest="  ")
    for line in (screen.paint(headline, colour), *rest):
        typer.echo(line)
    for sentence in told.because:
        _say(sentence.text, "  ", "    ")
    for index, sentence in enumerate(told.next):
        _say(sentence.text, "next: " if index == 0 else "      ", "        ")
    _say(told.deadline.text, "deadline: ", "          ")
    typer.echo(f"history: allpass events {told.job_id}")


def _say(text: str, first: str, rest: str) -> None:
    for line in screen.prose(screen.printable(text), first=first, rest=rest):
        typer.echo(line)


def _with_words(given: dict[str, str | None], changes: list[str]) -> dict[str, str | None]:
    """What options say, and NAME=VALUE words of their names; also with the unit that a template's field has."""
    from difflib import get_close_matches

    found = dict(given)
    for name, value in pairs("set", changes, example="JOB retries=3").items():
        plain = name.strip("-").replace("-", "_").removeprefix("soft_").removesuffix("_usd").removesuffix("_s")
        if plain not in given:
            near = get_close_matches(plain, given, n=1)
            hint = f"{near[0]}={value}" if near else f"--label {name}={value}, or one of {', '.join(given)}"
            raise CommandFailed(f"{name!r} is nothing that can be set", hint=hint, code=WRONG_USAGE)
        if found[plain] is not None:
            raise CommandFailed(f"{plain} is given twice", code=WRONG_USAGE)
        found[plain] = value
    return found


def _unless_none(text: str | None, option: str, read: Callable[[str, str], Any]) -> Any:
    """KEEP where the option is not given, None where it is to be taken away."""
    from allpass.changes import KEEP

    if text is None:
        return KEEP
    return None if text == NONE else read(option, text)


def _change(given: dict[str, str | None], label: list[str], unlabel: list[str]) -> JobUpdate:
    from allpass.changes import job_update

    if not (label or unlabel) and all(value is None for value in given.values()):
        raise CommandFailed("nothing is to be changed", hint="--deadline 8h, or --max-cost 20", code=WRONG_USAGE)
    labels: dict[str, str | None] = {**pairs("--label", label, example="team=nlp"), **dict.fromkeys(unlabel)}
    return job_update(
        soft_deadline=given["deadline"],
        max_cost_usd=_unless_none(given["max_cost"], "--max-cost", dollars),
        max_duration=_unless_none(given["max_duration"], "--max-duration", seconds),
        max_hourly_usd=_unless_none(given["max_hourly"], "--max-hourly", dollars),
        max_wait=_unless_none(given["max_wait"], "--max-wait", seconds),
        retries=_unless_none(given["retries"], "--retries", times),
        labels=labels,
    )
