"""`allpass fragmentation`: what would fit on machines of one's own now, and what blocks the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from allpass.cli import screen
from allpass.cli.screen import Column
from allpass.cli.session import connect

if TYPE_CHECKING:
    from allpass.wire.fragmentation import Fragmentation


def fragmentation(
    pool: Annotated[str | None, typer.Option("--pool", help="Of this pool alone.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The object of GET /v1/fragmentation.")] = False,
) -> None:
    """Example: allpass fragmentation --pool lab

    Show how many requests of each size would fit on hosts of your pools now, from one GPU to gangs within one switch,
    and how many free GPUs none of them could have, by what they lack.
    """
    with connect() as client:
        found = client.fragmentation(pool=pool)
    if as_json:
        screen.print_json(found)
        return
    where = f"pool {found.pool}" if found.pool else "all pools"
    hosts = f"{found.whole_hosts} of {found.hosts} hosts are whole"
    typer.echo(screen.printable(f"{where}: {found.free_gpus} of {found.gpus} GPUs are free, and {hosts}"))
    _print(found)


def _print(found: Fragmentation) -> None:
    columns = [Column("REQUEST"), Column("FIT NOW", right=True)]
    columns += [Column("LACK GPUS", right=True), Column("LACK CPUS", right=True), Column("LACK A SWITCH", right=True)]
    rows = [
        [
            f"{one.gpus} GPU{'s' * (one.gpus > 1)}, {one.cpus} CPUs",
            one.fitting,
            one.blocked_by_gpus,
            one.blocked_by_cpus,
        ]
        for one in found.requests
    ]
    table = [[*map(str, row), "-"] for row in rows]
    for gang in found.gangs:
        blocked = gang.blocked_by_gpus, gang.blocked_by_cpus, gang.blocked_by_switch
        name = f"{gang.gpus} GPUs in one switch, of {gang.host_gpus} with {gang.host_cpus} CPUs"
        table.append([name, str(gang.fitting), *map(str, blocked)])
        if gang.fitting_in_rack is not None:
            name = f"{gang.gpus} GPUs in one rack, of {gang.host_gpus} with {gang.host_cpus} CPUs"
            table.append([name, str(gang.fitting_in_rack), *map(str, blocked[:2]), f"{gang.blocked_by_rack} a rack"])
    screen.print_table(columns, table, empty="")
    if found.free_gpus and not found.whole_hosts:
        screen.say("no host is whole: allpass defrag --dry-run shows which could be")
