"""allpass wait: what a script of commands puts between two that need each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from allpass.cli import screen, words
from allpass.cli.faults import FAILED, WRONG_USAGE, CommandFailed
from allpass.cli.session import connect
from allpass.cli.template_options import seconds

if TYPE_CHECKING:
    from allpass.wire.jobs import Job

ENDED = "ended"


def wait(
    job_id: Annotated[str, typer.Argument(metavar="JOB", help="Id of the job.")],
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="STATUS", help="running, paused, ...; by default until it has ended."),
    ] = None,
    step: Annotated[int | None, typer.Option("--step", min=1, help="Until it has done this step.")] = None,
    timeout: Annotated[str | None, typer.Option("--timeout", help="At most so long, e.g. 10m.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The job object.")] = False,
) -> None:
    """Example: allpass wait job_01JD9K3W0A4T6Z8X2C5V --until paused

    Wait until a job has ended, or is in a state, or has come to a step. Ends with exit code 1 if the job ends before
    that, if it does not succeed, or if --timeout is over; the job itself goes on.
    """
    wanted = _status(until)
    if wanted != ENDED and step is not None:
        raise CommandFailed("--until and --step are two things to wait for", hint="name one", code=WRONG_USAGE)

    def holds(job: Job) -> bool:
        return job.status == wanted if step is None else job.step >= step

    timeout_s = None if timeout is None else seconds("--timeout", timeout, least_bare_s=0)
    with connect() as client:
        job = client.wait(job_id, timeout_s=timeout_s, poll_s=0.5, until=holds)
    if as_json:
        screen.print_json(job)
    else:
        screen.say(f"{job.id} {job.status}" + (f", at step {job.step}" if job.step else ""))
    succeeds = job.status == "succeeded" if wanted == ENDED and step is None else holds(job)
    if not succeeds:
        why = words.without_places(job.message or job.reason or "it has ended")
        raise CommandFailed(f"{job.id} {job.status}: {why}", hint=f"allpass show {job.id}", code=FAILED)


def _status(text: str | None) -> str:
    from typing import get_args

    from allpass.wire.jobs import JobStatus

    known = (*get_args(JobStatus), ENDED)
    if text is not None and text not in known:
        raise CommandFailed(
            f"--until: {text!r} is none of {', '.join(known)}", hint="--until running", code=WRONG_USAGE
        )
    return text or ENDED
