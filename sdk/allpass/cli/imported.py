"""Jobs that were imported: trained anew on Allpass, and compared with what came of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from allpass.cli import screen, words
from allpass.cli.faults import FAILED, CommandFailed
from allpass.cli.openai import folder
from allpass.cli.openai.compare import Comparison, Run, compare
from allpass.cli.openai.door import Door
from allpass.cli.openai.page import page
from allpass.cli.openai.repeat import Repeated, Wanted, meaning_of, repeat
from allpass.cli.session import connect
from allpass.config import find_connection

if TYPE_CHECKING:
    from allpass.client import Client
    from allpass.wire.jobs import Job

_NOTED_S, _LOOK_S = 20.0, 0.5  # how long it is waited for the job that a fine-tuning becomes


def repeat_here(
    into: Path, old_id: str, model: str | None, more: dict[str, Any], *, again: bool, as_json: bool
) -> None:
    """`more`: what of Allpass rides along."""
    old = folder.imported(into, old_id)
    asked = model or old.model
    with connect() as client:
        meaning = meaning_of(asked, client.model_names())
        door = Door(find_connection())
        try:
            made = repeat(door, into, Wanted(old, asked, meaning, more, again=again))
            job = _becomes(client, door, made)
        finally:
            door.close()
    if as_json:
        screen.print_json(dict(made.job))
        return
    how = "submitted" if made.is_new else "was submitted before (once more: --again)"
    typer.echo(f"{made.id}   {how}")
    facts = [("repeats", old_id), ("model", meaning if meaning == asked else f"{meaning} ({asked} means it here)")]
    if job is not None:
        facts += [("watch", f"allpass logs -f {job.id}"), ("look", f"allpass show {job.id}")]
    facts.append(("compare", f"allpass import openai --compare {old_id} {made.id}{where(into)}"))
    screen.print_facts(facts)


def _becomes(client: Client, door: Door, made: Repeated) -> Job | None:
    """The job that it has become by now. Raises CommandFailed where it never will."""
    until = time.monotonic() + _NOTED_S
    while True:
        found = next(iter(client.jobs(label=f"openai={made.id}")), None)
        if found is not None or time.monotonic() > until:
            return found
        told = door.job(made.id)
        if told.get("status") in ("failed", "cancelled"):
            error = told.get("error")
            why = error.get("message") if isinstance(error, dict) else told["status"]
            raise CommandFailed(f"{made.id}: {screen.printable(str(why))}", hint="--again, when that is mended")
        time.sleep(_LOOK_S)


def compare_with(into: Path, old_id: str, new_id: str, *, as_json: bool) -> None:
    """As text, and as a page in the folder of the old one."""
    old = folder.imported(into, old_id)
    with connect() as client:
        job, told = _new_job(client, new_id)
        found = compare(old, into, job, client.metrics(job.id), told)
    path = folder.place(into, old_id) / f"compare-{job.id}.html"
    folder.write_bytes(path, page(found).encode())
    if as_json:
        screen.print_json(_plain_comparison(found, path))
        return
    columns = [screen.Column("")]
    columns += [screen.Column(side, flexible=True, right=True) for side in ("OPENAI", "ALLPASS")]
    screen.print_table(columns, [list(one) for one in found.rows()], empty="nothing is known of either")
    for remark in found.remarks:
        screen.say(screen.printable(remark))
    typer.echo(f"page: {path}")


def _new_job(client: Client, new_id: str) -> tuple[Job, dict[str, Any] | None]:
    """With what the OpenAI-compatible API tells of it."""
    if new_id.startswith("ftjob-"):
        found = next(iter(client.jobs(label=f"openai={new_id}")), None)
        if found is None:
            raise CommandFailed(f"{new_id}: there is no job of it on this server", hint="allpass ps", code=FAILED)
        job = client.get_job(found.id)
    else:
        job = client.get_job(new_id)
    tuning_id = job.labels.get("openai")
    if tuning_id is None:
        return job, None
    door = Door(find_connection())
    try:
        return job, door.job(tuning_id)
    finally:
        door.close()


def _plain_comparison(found: Comparison, path: Path) -> dict[str, Any]:
    def plain(run: Run) -> dict[str, Any]:
        return {
            "name": run.name,
            "facts": dict(run.facts),
            "curves": {name: list(one) for name, one in run.curves.items()},
        }

    told = {"unit": found.unit, "remarks": found.remarks, "page": str(path)}
    return {"old": plain(found.old), "new": plain(found.new), **told}


def where(into: Path) -> str:
    """The option that names this folder, for a command that goes on with it."""
    return "" if into == Path("openai-import") else f" --into {words.command([str(into)])}"
