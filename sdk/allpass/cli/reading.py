"""Commands that read what a job left: logs, events, metrics, checkpoints, download."""

from __future__ import annotations

import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allpass.cli import progress, results, screen, status_line, words
from allpass.cli.faults import FAILED, WRONG_USAGE, CommandFailed
from allpass.cli.screen import Column
from allpass.cli.session import connect

if TYPE_CHECKING:
    from allpass.wire.jobs import JobEvent

_WIDE = 110
JobId = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job.")]


def logs(
    job_id: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    position: Annotated[str, typer.Option(help="Go on from here: a next_position of --json.")] = "",
    grep: Annotated[
        str | None, typer.Option("--grep", metavar="TEXT", help="Only lines that hold this text, with their numbers.")
    ] = None,
    ignore_case: Annotated[bool, typer.Option("--ignore-case", "-i", help="With --grep: in any case.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help='One object per piece and line: {"text", "next_position", "complete"}.')
    ] = False,
) -> None:
    """Example: allpass logs -f job_01JD9K3W0A4T6Z8X2C5V

    Print what the job wrote, across all its moves. Following survives lost connections and never repeats a line; it
    ends with exit code 1 if the job does not succeed. --grep is searched by the server, and ends with 1 if no line
    holds the text.
    """
    if grep is not None:
        _search(job_id, grep, follow=follow, position=position, ignore_case=ignore_case, as_json=as_json)
        return
    with connect() as client:
        if follow and not as_json:
            with status_line.below(client, job_id) as write:
                for page in client.log_pages(job_id, position=position, follow=True):
                    write(page.text)
        else:
            for page in client.log_pages(job_id, position=position, follow=follow):
                if as_json:
                    screen.print_json_line(page)
                else:
                    sys.stdout.write(page.text)
                    sys.stdout.flush()
        ended = client.wait(job_id) if follow else None
    if ended is not None and ended.status != "succeeded":
        why = ended.message or ended.reason or "no reason was recorded"
        raise CommandFailed(f"{ended.id} {ended.status}: {why}", hint=f"allpass show {ended.id}", code=FAILED)


def _search(job_id: str, text: str, *, follow: bool, position: str, ignore_case: bool, as_json: bool) -> None:
    if follow or position:
        raise CommandFailed(
            "--grep searches what is there, from its beginning",
            hint="leave --follow and --position out",
            code=WRONG_USAGE,
        )
    found = 0
    with connect() as client:
        for match in client.search_log(job_id, text, ignore_case=ignore_case):
            found += 1
            if as_json:
                screen.print_json_line(match)
            else:
                typer.echo(f"{match.line}: {screen.printable(match.text)}")
    if not found:
        raise CommandFailed(f"no line of the log of {job_id} holds {text!r}", code=FAILED)


def events(
    job_id: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    after: Annotated[int, typer.Option(min=0, help="Only events after this position.")] = 0,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="An array of event objects; with --follow, one object per line."),
    ] = False,
) -> None:
    """Example: allpass events job_01JD9K3W0A4T6Z8X2C5V

    Say what happened to the job and why, oldest first.
    """
    with connect() as client:
        found = client.events(job_id, after=after, follow=follow)
        if as_json and not follow:
            screen.print_json(list(found))
            return
        for event in found:
            if as_json:
                screen.print_json_line(event)
            else:
                _print_event(event)
                sys.stdout.flush()


def _print_event(event: JobEvent) -> None:
    """A long message goes on below itself; on a narrow terminal the kind stands in front of it."""
    at, message = words.moment(event.at), screen.printable(event.message)
    if screen.is_interactive() and screen.width() < _WIDE:
        first, rest, message = f"{at}  ", " " * 16, f"{event.kind}: {message}"
    else:
        first, rest = f"{at}   {event.kind:<22} ", " " * 40
    for line in screen.wrapped(message, first=first, rest=rest):
        typer.echo(line)


def metrics(
    job_id: JobId,
    only: Annotated[list[str] | None, typer.Option("--metric", "-m", help="Only this metric; repeat for more.")] = None,
    last: Annotated[int | None, typer.Option("--last", min=1, help="Only the last points.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help='An array of {"step", "at", "values"}.')] = False,
) -> None:
    """Example: allpass metrics job_01JD9K3W0A4T6Z8X2C5V --metric loss --last 20

    Print what the script reported, by step.
    """
    with connect() as client:
        points = list(deque(client.metrics(job_id), maxlen=last))
        empty = "" if points or as_json else results.why_no_metrics(client.get_job(job_id))
    if not empty:
        empty = f"no such metric was reported: {', '.join(only or ())}"
    if only:
        points = [
            one.model_copy(update={"values": {name: one.values[name] for name in only if name in one.values}})
            for one in points
        ]
        points = [one for one in points if one.values]
    if as_json:
        screen.print_json(points)
        return
    names = list(dict.fromkeys(name for one in points for name in one.values))
    rows = [
        [str(one.step), *(words.number(one.values[name]) if name in one.values else "-" for name in names)]
        for one in points
    ]
    columns = [Column("STEP", right=True), *(Column(name.upper(), right=True) for name in names)]
    screen.print_table(columns, rows, empty=empty)


def checkpoints(
    job_id: JobId,
    as_json: Annotated[bool, typer.Option("--json", help="An array of checkpoint objects.")] = False,
) -> None:
    """Example: allpass checkpoints job_01JD9K3W0A4T6Z8X2C5V

    List complete, verified checkpoints: the job could go on from each of them, and a new job begin with it
    (allpass run --from-checkpoint JOB:STEP). NEW is what it added to the object store.
    """
    with connect() as client:
        found = list(client.checkpoints(job_id))
        empty = "" if found or as_json else results.why_no_checkpoints(client.get_job(job_id))
    if as_json:
        screen.print_json(found)
        return
    columns = [Column("CHECKPOINT"), Column("STEP", right=True), Column("SIZE", right=True), Column("NEW", right=True)]
    columns.append(Column("SAVED"))
    columns.append(Column("METRICS", flexible=True, rank=1, fold=True))
    rows = [
        [
            one.id,
            str(one.step),
            words.size(one.size_bytes),
            "-" if one.stored_bytes is None else words.size(one.stored_bytes),
            words.moment(one.created_at),
            " ".join(f"{name}={words.number(value)}" for name, value in one.metrics.items()) or "-",
        ]
        for one in found
    ]
    screen.print_table(columns, rows, empty=empty)


def download(
    job_id: JobId,
    directory: Annotated[Path | None, typer.Argument(help="Where to; default: a folder named after the job.")] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="PATH", help="Only this file or folder; repeat for more.")
    ] = None,
    checkpoint: Annotated[str | None, typer.Option(help="This checkpoint's files instead of the artifacts.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help='An array of {"path", "sha256", "size_bytes", "reused"}.')
    ] = False,
) -> None:
    """Example: allpass download job_01JD9K3W0A4T6Z8X2C5V results/

    Fetch the files that a job left, also while it runs. Each is verified by its sha256; what is there already is not
    fetched again. If there are none, it says why.
    """
    wanted = [path.strip("/") for path in only or ()]

    def is_wanted(path: str) -> bool:
        return not wanted or any(path == one or path.startswith(f"{one}/") for one in wanted)

    target = directory or Path(job_id)
    started, received, done = time.monotonic(), 0, []
    with connect() as client, progress.told(client, "Download"):
        for one in client.download(job_id, target, checkpoint_id=checkpoint, only=is_wanted):
            done.append(one)
            if one.reused and client.transfer is not None:
                client.transfer.moved(one.size_bytes)
            received += 0 if one.reused else one.size_bytes
            rate = received / max(time.monotonic() - started, 1e-3)
            how = "unchanged" if one.reused else f"{words.size(int(rate))}/s"
            screen.say(f"  {screen.printable(str(one.path))}   {words.size(one.size_bytes)}   {how}")
        why = "" if done or as_json else results.why_none(client.get_job(job_id), among=wanted)
    if as_json:
        screen.print_json(
            [
                {"path": str(one.path), "sha256": one.sha256, "size_bytes": one.size_bytes, "reused": one.reused}
                for one in done
            ]
        )
        return
    total = words.size(sum(one.size_bytes for one in done))
    files = "1 file" if len(done) == 1 else f"{len(done)} files"
    typer.echo(f"{files}, {total}, in {target}" if done else why)
