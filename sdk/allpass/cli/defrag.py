"""`allpass defrag`: whole nodes free, and rents ended, by moves of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from allpass.cli import screen, words
from allpass.cli.faults import WRONG_USAGE, CommandFailed
from allpass.cli.session import connect

if TYPE_CHECKING:
    from allpass.wire.defragmentations import Defragmentation, DefragRelease, DefragRepair

_VERBS = ("list", "show", "cancel")


def defrag(
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[list | show ID | cancel ID]", help="What was done, or to stop it.")
    ] = None,
    rent: Annotated[bool, typer.Option("--rent", help="End rents of machines, in place of freeing hosts.")] = False,
    pool: Annotated[str | None, typer.Option("--pool", help="Hosts of this pool alone.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")] = False,
    max_moves: Annotated[str | None, typer.Option("--max-moves", metavar="NUMBER", help="Default: 20.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The defragmentation object, or an array of them.")] = False,
) -> None:
    """Example: allpass defrag --dry-run

    Have jobs of half-used machines move together, without losing a step, so that whole hosts of pools are free, or with
    --rent, that rents end. Jobs on several machines come together under fewer switches. Needs a key with scope owner.
    """
    asked = {name: value for name, value in (("pool", pool), ("max_moves", max_moves)) if value is not None}
    if args:
        if asked or rent or dry_run or args[0] not in _VERBS or len(args) != 1 + (args[0] != "list"):
            raise CommandFailed(
                "say list, show ID or cancel ID, or nothing", hint="allpass defrag list", code=WRONG_USAGE
            )
        _look(args, as_json=as_json)
        return
    if max_moves is not None and not (max_moves.isascii() and max_moves.isdigit()):
        raise CommandFailed(f"--max-moves is a number, not {max_moves!r}", hint="--max-moves 20", code=WRONG_USAGE)
    most = 20 if max_moves is None else int(max_moves)
    with connect() as client:
        found = client.defragment(goal="rent" if rent else "pools", pool=pool, dry_run=dry_run, max_moves=most)
    if as_json:
        screen.print_json(found)
    else:
        _print(found)


def _look(args: list[str], *, as_json: bool) -> None:
    with connect() as client:
        if args[0] == "list":
            every = client.list_defragmentations()
            if as_json:
                screen.print_json(every)
                return
            for one in every:
                typer.echo(_headline(one))
            if not every:
                typer.echo("Nothing was defragmented in 30 days: allpass defrag --dry-run")
            return
        read = client.get_defragmentation if args[0] == "show" else client.cancel_defragmentation
        found = read(args[1])
    if as_json:
        screen.print_json(found)
    else:
        _print(found)


def _headline(one: Defragmentation) -> str:
    what = "rents" if one.goal == "rent" else f"pool {one.pool}" if one.pool else "pools"
    freed = sum(release.state == "freed" for release in one.releases)
    of = f"  {freed} of {len(one.releases)} vacated" if one.releases else ""
    if one.repairs:
        of += f"  {sum(repair.state == 'done' for repair in one.repairs)} of {len(one.repairs)} together"
    told = f": {one.message}" if one.message else ""
    return f"{one.id or 'plan'}  {what}  {one.state}{of}{told}"


def _print(one: Defragmentation) -> None:
    typer.echo(_headline(one))
    if one.nodes:
        typer.echo(f"{one.occupied} of {one.nodes} nodes are in use; no packing needs fewer than {one.least}.")
    for release in one.releases:
        _print_release(release)
    for repair in one.repairs:
        _print_repair(repair)
    if one.nodes is not None and not one.releases and not one.repairs:
        typer.echo("There is nothing to vacate.")
    for why, count in one.left_alone.items():
        typer.echo(f"{count} job{'s stay where they are' if count > 1 else ' stays where it is'}: {why}")
    if one.state == "planned" and (one.releases or one.repairs):
        typer.echo("Nothing was done. Without --dry-run it is.")
    elif one.id is not None and one.state in ("asked", "moving"):
        typer.echo(f"See what comes of it: allpass defrag show {one.id}")


def _print_release(release: DefragRelease) -> None:
    gain = f"saves {words.spent(release.saves)} for {words.spent(release.costs)}" if release.saves else release.reason
    typer.echo(f"  {release.node} ({release.gpus} GPUs), {release.state}: {gain}")
    for step in release.steps:
        why = f" ({step.why})" if step.why else ""
        typer.echo(f"    {step.job_id}  {step.source} -> {step.target}  {step.state}{why}")
    if release.why:
        typer.echo(f"    {release.why}")
    if release.paused_s is not None:
        typer.echo(f"    paused {release.paused_s:.1f} GPU-seconds so far, {release.pause_s:.1f} were expected")


def _print_repair(repair: DefragRepair) -> None:
    typer.echo(
        f"  {repair.job_id} ({repair.machines} x {repair.gpus} GPUs), {repair.state}: {repair.here} (entropy "
        f"{repair.entropy:.2f}) -> {repair.there} (entropy {repair.entropy_there:.2f})"
    )
    gain = "what it saves is not known" if repair.gain_s is None else f"saves about {repair.gain_s:.0f} s"
    typer.echo(f"    with {', '.join(repair.hosts)}; {gain}, pauses for {repair.pause_s:.1f} s")
    if repair.why:
        typer.echo(f"    {repair.why}")
