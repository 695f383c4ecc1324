"""`allpass pool`: machines of a team's own, and who may use them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from allpass.cli import screen, words
from allpass.cli.faults import WRONG_USAGE, CommandFailed
from allpass.cli.group import make_group
from allpass.cli.host_labels import SWITCH_EXAMPLE, label_hosts
from allpass.cli.pool_words import host_row, pool_row, tell_pool
from allpass.cli.screen import Column
from allpass.cli.session import connect
from allpass.cli.template_options import dollars, pairs, seconds
from allpass.errors import InvalidRequest

pool = make_group()
_SHORTEST_GRACE_S, _LONGEST_GRACE_S = 10, 600
_Name = Annotated[str, typer.Argument(metavar="POOL", help="Name of the pool.")]
_Json = Annotated[bool, typer.Option("--json", help="The pool object.")]
_Price = Annotated[
    str | None, typer.Option("--price", metavar="DOLLARS", help="What a GPU costs its owner in an hour; default: 0.")
]
_SpotShare = Annotated[
    str | None, typer.Option("--spot-share", metavar="SHARE", help="What spot jobs pay of the price: 0.3; default: 1.")
]
_Rebate = Annotated[
    str | None,
    typer.Option(
        "--rebate", metavar="SHARE", help="Of the price, what a job that stands by does not pay; default: 0.5."
    ),
]
_Grace = Annotated[
    str | None,
    typer.Option("--grace", help="How long a job that leaves for another one has to save: 5m; or usual, as anywhere."),
]
_Preference = Annotated[
    str | None, typer.Option("--preference", metavar="NUMBER", help="Pools with a lower one are filled first.")
]
_Projects = Annotated[
    list[str] | None, typer.Option("--project", help="A project that may use it; repeat. `all`: every one.")
]
_Hours = Annotated[
    str | None,
    typer.Option("--hours", help="When it takes jobs, in UTC: 'mon-fri 20:00-08:00, sat-sun 00:00-24:00'; or always."),
]
_Most = Annotated[str | None, typer.Option("--most-gpus", metavar="NUMBER", help="How many are used at once; or all.")]
_Quotas = Annotated[
    list[str] | None,
    typer.Option(
        "--quota",
        metavar="PROJECT=GPUS",
        help="GPUs that a project is sure of, or whole hosts: team=2x8xA100; repeat. `none`: no quotas.",
    ),
]
_Labels = Annotated[
    list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="What it is, where it stands; repeat.")
]
_HOSTS = re.compile(r"(\d{1,4})\s*[xX*]\s*(\d{1,2})\s*[xX*]\s*(\S.*)")
_QUOTA = "research=4, or --quota research=2x8xA100 for whole hosts"
_Host = Annotated[str | None, typer.Option("--host", help="One of its hosts only: its name or id.")]


@pool.callback()
def pools() -> None:
    """Example: allpass pool create lab

    Your own machines as a pool: jobs go there first, and to rented ones when it is full.
    """


@pool.command("create")
def create(
    name: _Name,
    launcher: Annotated[
        str | None,
        typer.Option("--launcher", help="Who starts machines there: joined (hosts join by a token), or a provider."),
    ] = None,
    price: _Price = None,
    spot_share: _SpotShare = None,
    rebate: _Rebate = None,
    grace: _Grace = None,
    preference: _Preference = None,
    project: _Projects = None,
    hours: _Hours = None,
    most_gpus: _Most = None,
    quota: _Quotas = None,
    label: _Labels = None,
    as_json: _Json = False,
) -> None:
    """Example: allpass pool create lab --price 0.40 --hours "mon-fri 20:00-08:00"

    Define a pool, then have hosts join it (allpass pool token lab). Needs a key with scope owner.
    """
    settings = _settings(price, spot_share, rebate, grace, preference, project, hours, most_gpus, quota, label)
    if launcher is not None:
        settings["launcher"] = launcher
    with connect() as client, _known_fields():
        found = client.create_pool(name, **settings)
    tell_pool(found, as_json=as_json)
    if found.launcher == "joined" and not as_json:
        screen.say(f"hosts join it with a token: allpass pool token {found.name}")


@pool.command("set")
def set_(
    name: _Name,
    price: _Price = None,
    spot_share: _SpotShare = None,
    rebate: _Rebate = None,
    grace: _Grace = None,
    preference: _Preference = None,
    project: _Projects = None,
    hours: _Hours = None,
    most_gpus: _Most = None,
    quota: _Quotas = None,
    label: _Labels = None,
    as_json: _Json = False,
) -> None:
    """Example: allpass pool set lab --most-gpus 4 --project research

    Change what is named; the rest stays. Needs a key with scope owner.
    """
    settings = _settings(price, spot_share, rebate, grace, preference, project, hours, most_gpus, quota, label)
    if not settings:
        raise CommandFailed("nothing to change was named", hint=f"allpass pool set {name} --price 0", code=WRONG_USAGE)
    with connect() as client, _known_fields():
        if "quotas" in settings and "host_quotas" not in settings and client.pool(name).host_quotas:
            settings["host_quotas"] = {}  # all quotas are named: a server that has none of hosts need not know the word
        tell_pool(client.change_pool(name, **settings), as_json=as_json)


@pool.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="An array of pools, as in GET /v1/pools.")] = False,
) -> None:
    """Example: allpass pool list

    List pools: what is in them, and what of that is in use.
    """
    with connect() as client:
        found = list(client.pools())
    if as_json:
        screen.print_json(found)
        return
    columns = [Column("POOL"), Column("STATE"), Column("HOSTS", right=True), Column("IN USE", flexible=True)]
    columns += [Column("PRICE", right=True), Column("LAUNCHER", rank=1), Column("HOURS", flexible=True, rank=1)]
    screen.print_table(columns, [pool_row(one) for one in found], empty="no pools. Define one: allpass pool create lab")


@pool.command("show")
def show(name: _Name, as_json: _Json = False) -> None:
    """Example: allpass pool show lab

    Show a pool and its hosts.
    """
    with connect() as client:
        found = client.pool(name)
    tell_pool(found, as_json=as_json)
    if as_json:
        return
    columns = [Column("HOST"), Column("ID", rank=1), Column("STATE"), Column("IN USE", flexible=True), Column("HEARD")]
    is_labelled = any(one.labels for one in found.hosts)
    columns += [Column("LABELS", flexible=True, rank=1)] * is_labelled
    typer.echo("")
    screen.print_table(columns, [host_row(one, labels=is_labelled) for one in found.hosts], empty="no hosts")


@pool.command("token")
def token(
    name: _Name,
    joins: Annotated[int, typer.Option("--joins", help="How many hosts may join with it.")] = 1,
    valid: Annotated[str, typer.Option("--valid", help="How long they may: 1h, 7d.")] = "1h",
    file: Annotated[Path | None, typer.Option("--file", help="Write it there, readable by you alone.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The token object, with the token itself.")] = False,
) -> None:
    """Example: allpass pool token lab --joins 8

    Make a token that hosts join with, and print it. It is shown this once. Needs a key with scope owner.
    """
    with connect() as client:
        made = client.create_pool_token(name, joins=joins, valid_s=seconds("--valid", valid))
    if file is not None:
        _write(file, made.token)
    if as_json:
        screen.print_json(made)
    elif file is None:
        typer.echo(made.token)
    hosts = "one host" if joins == 1 else f"{joins} hosts"
    screen.say(f"{hosts} can join pool {name} with it until {words.moment(made.expires_at)}: allpass node join, there")


@pool.command("drain")
def drain(
    name: _Name,
    host: _Host = None,
    within: Annotated[str, typer.Option("--within", help="When all of it has to be gone: 20m, 2h.")] = "20m",
    as_json: _Json = False,
) -> None:
    """Example: allpass pool drain lab --host gpu-box-1

    Have what runs there move away, and nothing new start: before maintenance. Hosts stay in their pool (undrain).
    """
    with connect() as client:
        tell_pool(client.drain_pool(name, host=host, within_s=seconds("--within", within)), as_json=as_json)


@pool.command("undrain")
def undrain(name: _Name, host: _Host = None, as_json: _Json = False) -> None:
    """Example: allpass pool undrain lab --host gpu-box-1

    Use a pool, or a host, again.
    """
    with connect() as client:
        tell_pool(client.undrain_pool(name, host=host), as_json=as_json)


@pool.command("forget")
def forget(
    name: _Name,
    host: Annotated[str, typer.Argument(metavar="HOST", help="Its name or id.")],
    as_json: Annotated[bool, typer.Option("--json", help="The host object.")] = False,
) -> None:
    """Example: allpass pool forget lab gpu-box-1

    Forget a host that does not answer any more: what ran there goes on elsewhere from its last checkpoint. Should the
    host come back, it ends what still runs on it, and is in no pool.
    """
    with connect() as client:
        gone = client.forget_host(name, host)
    if as_json:
        screen.print_json(gone)
    else:
        typer.echo(screen.printable(f"{gone.name}   is in no pool any more"))


@pool.command("remove")
def remove(name: _Name, as_json: _Json = False) -> None:
    """Example: allpass pool remove lab

    Remove a pool that no host is in any more. What it did stays in the ledger. Needs a key with scope owner.
    """
    with connect() as client:
        gone = client.remove_pool(name)
    if as_json:
        screen.print_json(gone)
    else:
        typer.echo(f"{gone.name}   removed")


@pool.command("add-ssh")
def add_ssh(
    name: _Name,
    hosts: Annotated[list[str], typer.Argument(metavar="USER@HOST...", help="As ssh takes them; keys, no passwords.")],
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="Of each of them: switch=leaf-3; repeat.")
    ] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="They give their processors, not GPUs.")] = False,
    root: Annotated[str | None, typer.Option("--root", help="The folder to work in, there.")] = None,
    ssh: Annotated[str, typer.Option("--ssh", help="The ssh to use, with options.")] = "ssh",
) -> None:
    """Example: allpass pool add-ssh lab me@gpu-box-1 me@gpu-box-2

    Have hosts join a pool over ssh. Each is told of by itself; exit code 1 if one could not join.
    """
    from allpass.cli.ssh_hosts import join_over_ssh

    labels = pairs("--label", label or [], example=SWITCH_EXAMPLE)
    with connect() as client:
        made = client.create_pool_token(name, joins=len(hosts))
        ended = join_over_ssh(client.url, made.token, hosts, ssh=ssh, cpu=cpu, root=root, labels=labels)
    raise typer.Exit(ended)


@pool.command("remove-ssh")
def remove_ssh(
    hosts: Annotated[list[str], typer.Argument(metavar="USER@HOST...", help="As ssh takes them.")],
    root: Annotated[str | None, typer.Option("--root", help="The folder that they work in.")] = None,
    ssh: Annotated[str, typer.Option("--ssh", help="The ssh to use, with options.")] = "ssh",
) -> None:
    """Example: allpass pool remove-ssh me@gpu-box-1

    Have hosts leave their pool over ssh: what runs there moves away first, and nothing stays behind.
    """
    from allpass.cli.ssh_hosts import leave_over_ssh

    raise typer.Exit(leave_over_ssh(hosts, ssh=ssh, root=root))


pool.command("label")(label_hosts)


def _settings(
    price: str | None,
    spot_share: str | None,
    rebate: str | None,
    grace: str | None,
    preference: str | None,
    projects: list[str] | None,
    hours: str | None,
    most_gpus: str | None,
    quotas: list[str] | None,
    labels: list[str] | None,
) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if price is not None:
        given["price_usd"] = 0.0 if price.strip("$0.") == "" else dollars("--price", price)
    if spot_share is not None:
        given["spot_share"] = _share(spot_share, "--spot-share")
    if rebate is not None:
        given["rebate"] = _share(rebate, "--rebate")
    if grace is not None:
        given["grace_s"] = None if grace == "usual" else _grace(grace)
    if preference is not None:
        given["preference"] = _number("--preference", preference)
    if projects:
        given["projects"] = [] if projects == ["all"] else projects
    if hours is not None:
        given["hours"] = "" if hours == "always" else hours
    if most_gpus is not None:
        given["most_gpus"] = None if most_gpus == "all" else _number("--most-gpus", most_gpus)
    if quotas:
        given |= _quotas([] if quotas == ["none"] else quotas)
    if labels:
        given["labels"] = pairs("--label", labels, example="rack=a4")
    return given


def _quotas(words: list[str]) -> dict[str, Any]:
    """GPUs of projects, and hosts, as `team=2x8xA100`, where any are named; of hosts of several kinds a project has
    several."""
    gpus: dict[str, str] = {}
    hosts: dict[str, list[dict[str, Any]]] = {}
    for word in words:
        project, _, asked = word.partition("=")
        shape = _HOSTS.fullmatch(asked.strip())
        if shape is None:
            gpus |= pairs("--quota", [word, *(f"{key}={value}" for key, value in gpus.items())], example=_QUOTA)
        else:
            one = {"hosts": int(shape[1]), "gpus": int(shape[2]), "gpu_type": shape[3].strip()}
            hosts.setdefault(project.strip(), []).append(one)
    given: dict[str, Any] = {"quotas": {project: _number("--quota", number) for project, number in gpus.items()}}
    return given | ({"host_quotas": hosts} if hosts else {})


@contextmanager
def _known_fields() -> Iterator[None]:
    """Say of a server that is older what it does not know, in the words of the option."""
    try:
        yield
    except InvalidRequest as error:
        if error.param != "host_quotas" or "there is no such field" not in error.message:
            raise
        raise CommandFailed(
            "this server knows no quotas of whole hosts: it is of an earlier release, and nothing was changed",
            hint="update the server, or name quotas in GPUs: --quota research=4",
        ) from error


def _share(text: str, option: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise CommandFailed(
            f"{option}: {text!r} is no share of the price, from 0 (nothing) to 1 (all of it)",
            hint=f"{option} 0.3",
            code=WRONG_USAGE,
        )
    return share


def _grace(text: str) -> int:
    grace_s = seconds("--grace", text, least_bare_s=_SHORTEST_GRACE_S)
    if not _SHORTEST_GRACE_S <= grace_s <= _LONGEST_GRACE_S:
        raise CommandFailed(
            f"--grace: {text!r} is not from {_SHORTEST_GRACE_S} s to {_LONGEST_GRACE_S // 60} min",
            hint="--grace 5m",
            code=WRONG_USAGE,
        )
    return grace_s


def _number(option: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise CommandFailed(f"{option}: {text!r} is no number", hint=f"{option} 4", code=WRONG_USAGE)
    return int(text)


def _write(file: Path, text: str) -> None:
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as opened:
            opened.write(text + "\n")
    except OSError as error:
        raise CommandFailed(f"{file} cannot be written: {error.strerror}", hint="name another file") from error
