"""`allpass pool label`: what an owner says of hosts, as the switch that they are under."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from allpass.cli import screen
from allpass.cli.faults import WRONG_USAGE, CommandFailed
from allpass.cli.session import connect
from allpass.cli.template_options import pairs
from allpass.errors import AllpassError

if TYPE_CHECKING:
    from allpass.wire.pools import PoolHost

SWITCH_EXAMPLE = "switch=leaf-3"


def label_hosts(
    name: Annotated[str, typer.Argument(metavar="POOL", help="Name of the pool.")],
    hosts: Annotated[list[str], typer.Argument(metavar="HOST...", help="Their names or ids.")],
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="What is said of each of them; repeat.")
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option("--remove", metavar="KEY", help="A label that is taken away; repeat.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="An array of the hosts.")] = False,
) -> None:
    """Example: allpass pool label lab gpu-box-1 gpu-box-2 --label switch=leaf-3 --label rack=r1

    Say where hosts are. The machines of a job on several are taken from as few switches as can be. Each host is told of
    by itself; exit code 1 if one could not be labelled. Needs a key with scope owner.
    """
    labels: dict[str, str | None] = {**pairs("--label", label or [], example=SWITCH_EXAMPLE)}
    for key in remove or []:
        if key in labels:
            raise CommandFailed(f"--remove: {key!r} is given with --label, too", code=WRONG_USAGE)
        labels[key] = None
    if not labels:
        hint = f"allpass pool label {name} {hosts[0]} --label {SWITCH_EXAMPLE}"
        raise CommandFailed("no label was named", hint=hint, code=WRONG_USAGE)
    done: list[PoolHost] = []
    with connect() as client:
        for host in dict.fromkeys(hosts):
            try:
                done.append(client.label_host(name, host, labels))
            except AllpassError as error:
                if len(hosts) == 1:
                    raise
                typer.echo(screen.printable(f"{host}: {error}"), err=True)
    if as_json:
        screen.print_json(done)
    else:
        for one in done:
            said = " ".join(f"{key}={value}" for key, value in one.labels.items())
            typer.echo(screen.printable(f"{one.name}   {said or 'no labels'}"))
    if len(done) < len(dict.fromkeys(hosts)):
        raise typer.Exit(1)
