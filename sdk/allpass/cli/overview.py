"""Commands that say how things stand, and the one that ends them: ps, show, nodes, cancel."""

from __future__ import annotations

from collections import deque
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from allpass.cli import job_options, job_sizes, results, screen, words
from allpass.cli.live import redraw
from allpass.cli.screen import Cell, Column
from allpass.cli.session import connect

if TYPE_CHECKING:
    from allpass.client import Client
    from allpass.wire.jobs import Expected, Job, Merge, Node, Stay, Timeline, Transfer

JobId = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job.")]
_EVERY_S = 2.0
_WHOLE = 1000  # never cut for a person: it goes below the row
_TAIL_LINES = 4000
_LOG_PAGES_FOR_TAIL = 5000


def ps(
    status: Annotated[str | None, typer.Option(help="Only jobs of this status, e.g. running.")] = None,
    app: Annotated[str | None, typer.Option(help="Only jobs of this app (id or name).")] = None,
    label: Annotated[str | None, typer.Option(help="Only jobs with this label (key=value).")] = None,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="How many, newest first.")] = 20,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again every two seconds, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="An array of job objects, as in GET /v1/jobs.")] = False,
) -> None:
    """Example: allpass ps --status running

    List jobs, newest first. DEADLINE is the time left, ETA what is left of the work at its speed so far.
    """
    with connect() as client:
        if watch:
            redraw(lambda: print_jobs(list(islice(client.jobs(status=status, app=app, label=label), count))), _EVERY_S)
        jobs = list(islice(client.jobs(status=status, app=app, label=label), count + 1))
    more, jobs = len(jobs) > count, jobs[:count]
    if as_json:
        screen.print_json(jobs)
        return
    print_jobs(jobs)
    if more:
        screen.say(f"more: allpass ps -n {count * 2}")


def show(
    job_id: JobId,
    as_json: Annotated[
        bool, typer.Option("--json", help='{"job": ..., "timeline": ..., "sizes": [...], "last_lines": text|null}.')
    ] = False,
) -> None:
    """Example: allpass show job_01JD9K3W0A4T6Z8X2C5V

    Everything about one job: where it has been, what it cost, and if it failed, its own last words first.
    """
    with connect() as client:
        job = client.get_job(job_id)
        timeline = client.timeline(job_id)
        sizes = job_sizes.read(client, job_id)
        end = _last_lines(client, job) if job.status == "failed" else None
    if as_json:
        plain = {"job": job.model_dump(mode="json"), "timeline": timeline.model_dump(mode="json")}
        told = [one.model_dump(mode="json") for one in sizes]
        screen.print_json({**plain, "sizes": told, "last_lines": end})
        return
    if end:
        typer.echo(end + "\n")
    _print_job(job)
    _print_timeline(timeline)
    job_sizes.print_table(sizes)
    _print_next(job)


def nodes(
    show_all: Annotated[bool, typer.Option("--all", "-a", help="Also machines that are gone.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="An array of node objects, as in GET /v1/nodes.")] = False,
) -> None:
    """Example: allpass nodes --all

    List the machines that are paid for, with what each has cost so far.
    """
    with connect() as client:
        found = list(client.nodes(include_gone=show_all))
    if as_json:
        screen.print_json(found)
        return
    print_nodes(found)


def print_nodes(found: list[Node]) -> None:
    """A table of them."""
    columns = [Column("NODE"), Column("PLACE", flexible=True, least=18), Column("STATE"), Column("UP", right=True)]
    columns += [Column("SPENT", right=True), Column("JOBS", flexible=True, least=_WHOLE, rank=1, fold=True)]
    now = datetime.now(timezone.utc)
    rows: list[list[Cell | str]] = [
        [
            node.id,
            words.place(node),
            screen.status_cell(node.state),
            words.duration((node.ended_at or now) - (node.ready_at or node.requested_at)),
            words.spent(node.cost),
            " ".join(node.job_ids) or node.message or "-",
        ]
        for node in found
    ]
    screen.print_table(columns, rows, empty="no machine is rented. All that were: allpass nodes --all")


def cancel(
    job_ids: Annotated[list[str], typer.Argument(metavar="JOB...", help="Ids of the jobs.")],
    as_json: Annotated[bool, typer.Option("--json", help="An array of job objects.")] = False,
) -> None:
    """Example: allpass cancel job_01JD9K3W0A4T6Z8X2C5V

    Stop jobs for good. Checkpoints and logs stay; what was used until now is paid.
    """
    with connect() as client:
        stopped = [client.cancel_job(job_id) for job_id in job_ids]
    if as_json:
        screen.print_json(stopped)
        return
    for job in stopped:
        typer.echo(f"{job.id}   {screen.paint(job.status, screen.STATUS_COLOURS.get(job.status))}")


def print_jobs(jobs: list[Job]) -> None:
    """A table of them."""
    now = datetime.now(timezone.utc)
    columns = [Column("JOB"), Column("NAME", flexible=True, least=10, rank=1, fold=True), Column("STATUS")]
    columns.append(Column("WHERE", flexible=True, least=_WHOLE, rank=3, fold=True))
    columns += [Column(heading, right=True) for heading in ("STEP", "DEADLINE", "SPENT")]
    columns.append(Column("ETA", right=True, rank=2))
    rows: list[list[Cell | str]] = []
    for job in jobs:
        deadline = words.deadline(job, now)
        rows.append(
            [
                job.id,
                job.name,
                screen.status_cell(job.status),
                _where(job),
                words.steps(job),
                Cell(deadline, "red" if deadline.startswith("late") else None),
                words.spent(job.cost),
                words.remaining(job, now),
            ]
        )
    screen.print_table(columns, rows, empty="no jobs. Submit one: allpass run train.py")


def _resize(job: Job) -> list[tuple[str, str]]:
    is_restarted = job.template.resize_by == "restart"
    return [("resize", "by restarts: not exact, for its batch follows its GPUs")] if is_restarted else []


def _stays(job: Job) -> str:
    return ", not movable: has never saved" if job.not_movable else ""


def _where(job: Job) -> str:
    """Its place, or what it waits for, or why it failed."""
    if job.where:
        return words.place(job.where) + _stays(job)
    return "-" if job.status == "succeeded" or not job.message else words.without_places(job.message)


def _print_job(job: Job) -> None:
    now = datetime.now(timezone.utc)
    why = words.without_places(job.message or job.reason or "")
    for line in screen.headline(job.id, job.status, why):
        typer.echo(line)
    facts = [("name", job.name), ("app", f"{job.app_name} version {job.app_version}")]
    if job.sweep_id:
        facts.append(("sweep", f"{job.sweep_id}   (table: allpass sweep show {job.sweep_id})"))
    if job.where:
        others = f" and {job.where.nodes - 1} more" if job.where.nodes > 1 else ""
        bid = ", by a bid that may be lost," if job.where.interruptible else ""
        facts.append(("where", f"{words.place(job.where)}{bid} on {job.where.node_id}{others}"))
    facts.append(("step", words.steps(job) + _checkpoint(job)))
    if job.unsaved:
        facts.append(("not saved", screen.paint(screen.printable(_unsaved(job, job.unsaved)), "red")))
    if job.not_movable:
        facts.append(("not movable", screen.paint(screen.printable(job.not_movable), "yellow")))
    facts.extend(("link", screen.printable(f"{name}: {url}")) for name, url in sorted(job.links.items()))
    if job.transfer:
        facts.append(("transfer", _transfer(job.transfer)))
    if job.merge:
        facts.append(("merge", _merge(job.merge)))
    if job.expected is not None:
        facts.append(("expected", _expected(job.expected, now)))
    facts.append(("deadline", _deadline(job, now)))
    facts.append(("submitted", words.moment(job.submitted_at)))
    if job.ended_at:
        facts.append(("ended", f"{words.moment(job.ended_at)} after {words.duration(job.ended_at - job.submitted_at)}"))
    if job.max_wait_s is not None and job.started_at is None:
        facts.append(("max wait", _max_wait(job, job.max_wait_s, now)))
    facts.append(("moves", f"{job.moves} planned, {job.faults} faults"))
    facts.extend(_resize(job))
    facts.extend(_class(job))
    if job.retries is not None:
        facts.append(("retries", words.retries(job)))
    facts.append(("cost", _cost(job)))
    if job.idle_cost:
        facts.append(("idle", f"{words.money(job.idle_cost)} beside that, {words.ABOUT_IDLE}"))
    screen.print_facts([*facts, *results.facts(job)])


def _cost(job: Job) -> str:
    told = words.money(job.cost) if job.cost else "nothing yet" if not job.ended_at else "nothing"
    return f"{told}, as a spot job {words.money(job.spot_discount)} less" if job.spot_discount else told


def _class(job: Job) -> list[tuple[str, str]]:
    if job.template.priority_class != "spot":
        return []
    left = f", has done so {job.evictions}x" if job.evictions else ""
    return [("class", f"spot: leaves its GPUs to guaranteed jobs that wait{left}")]


def _max_wait(job: Job, max_wait_s: float, now: datetime) -> str:
    ends = job.submitted_at + timedelta(seconds=max_wait_s)
    when = f"in {words.duration(ends - now)}" if ends > now else "over"
    return f"until {words.moment(ends)} ({when}); then any place within its limits"


def _expected(expected: Expected, now: datetime) -> str:
    """about 55 more steps (40 to 160), done in 2m 10s to 8m 40s"""
    first, last = (words.duration(max(timedelta(0), at - now)) for at in (expected.earliest_at, expected.latest_at))
    if expected.least == expected.most:
        return f"{expected.likely} more steps, done in {first}"
    return f"about {expected.likely} more steps ({expected.least} to {expected.most}), done in {first} to {last}"


def _deadline(job: Job, now: datetime) -> str:
    left = words.deadline(job, now)
    return words.moment(job.soft_deadline) + (f" ({left})" if left != "-" else "")


def _checkpoint(job: Job) -> str:
    return f", checkpoint at step {job.checkpoint_step}" if job.checkpoint_step is not None else ""


_TRANSFERS = {"read": "reading its checkpoint", "send": "sending what it saved", "fetch": "fetching its checkpoint"}


def _transfer(transfer: Transfer) -> str:
    speed = "" if transfer.bytes_per_s is None else f", {transfer.bytes_per_s / 10**6:,.1f} MB/s"
    left = "" if transfer.left_ms is None else f", about {words.duration(transfer.left_ms / 1000)} left"
    done = f"{transfer.done_bytes / 10**9:,.1f} of {transfer.total_bytes / 10**9:,.1f} GB"
    return f"{_TRANSFERS[transfer.kind]}: {done}{speed}{left}"


def _unsaved(job: Job, why: str) -> str:
    """That its checkpoints are not kept: what it has done since the last one would be lost."""
    lost = job.step - (job.checkpoint_step or 0)
    steps = f"{lost} steps would be lost" if lost > 0 else "the next steps would be lost"
    return f"{steps}: {why}"


def _merge(merge: Merge) -> str:
    """With whom it is trained, or was, and what that is expected to bring."""
    if merge.mode == "together":
        how = f"together with {merge.partner_id}"
    else:
        how = (
            f"first, then {merge.partner_id}"
            if merge.leads
            else f"after {merge.partner_id}, from what that has learned"
        )
    state = f", {merge.expected_gain:.0%} faster expected" if merge.state == "open" else f" ({merge.state})"
    return how + state


def _print_timeline(timeline: Timeline) -> None:
    if not timeline.stays:
        return
    typer.echo("")
    columns = [Column("FROM"), Column("PLACE", flexible=True, least=18), Column("TIER", rank=1)]
    columns.append(Column("FOR", right=True))
    columns += [Column("STEP", right=True), Column("COST", right=True), Column("LEFT BECAUSE")]
    screen.print_table(columns, [_stay(one) for one in timeline.stays], empty="")
    saved = timeline.all_serverless - timeline.cost
    comparison = f", {words.money(saved)} less than all serverless" if saved > 0 else ""
    again = f" ({words.duration(timeline.repeated_ms / 1000)} of it done twice)" if timeline.repeated_ms else ""
    typer.echo(
        f"  ran {words.duration(timeline.running_ms / 1000)}{again}, "
        f"waited {words.duration(timeline.waiting_ms / 1000)}, cost {words.money(timeline.cost)}{comparison}"
    )


def _stay(stay: Stay) -> list[Cell | str]:
    lasted = (stay.to_at or datetime.now(timezone.utc)) - stay.from_at
    return [
        words.moment(stay.from_at),
        words.place(stay),
        stay.tier,
        words.duration(lasted),
        str(stay.resumed_from_step or 0),
        words.money(stay.cost),
        stay.end_reason or "still there",
    ]


def _print_next(job: Job) -> None:
    if job.status == "succeeded":
        screen.say(f"\nfiles: allpass download {job.id}")
    elif job.status == "failed":
        advice = job_options.advice_for(job)
        if advice is not None:
            screen.say(f"\ntry: {advice}")
        screen.say(f"\nwhole log: allpass logs {job.id}")
    else:
        screen.say(f"\nfollow: allpass logs -f {job.id}")


def _last_lines(client: Client, job: Job) -> str | None:
    """The end of the job's own output: from the event that ended it, else from the log."""
    for event in sorted(client.events(job.id), key=lambda one: -one.position):
        lines = event.data.get("last_lines")
        if isinstance(lines, str) and lines.strip():
            return words.last_words(lines)
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    for page in islice(client.log_pages(job.id), _LOG_PAGES_FOR_TAIL):
        tail.extend(page.text.splitlines(keepends=True))
    text = "".join(tail)
    return words.last_words(text) if text.strip() else None
