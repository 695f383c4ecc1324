"""`allpass project`: what is settled for all jobs of the project; and for owners, the projects of the installation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from allpass.cli import screen, words
from allpass.cli.faults import WRONG_USAGE, CommandFailed
from allpass.cli.group import Group
from allpass.cli.screen import Cell, Column
from allpass.cli.session import connect

if TYPE_CHECKING:
    from allpass.client import Client
    from allpass.wire.project import Project

project = typer.Typer(cls=Group, rich_markup_mode=None, add_completion=False, invoke_without_command=True)
_CLASSES: dict[str, Literal["guaranteed", "spot"]] = {"guaranteed": "guaranteed", "spot": "spot"}
_WHICH = typer.Argument(metavar="PROJECT", help="Its name, or its id.")


@project.callback()
def settled(
    context: typer.Context,
    ahead: Annotated[
        bool | None,
        typer.Option(
            "--ahead/--no-ahead",
            help="Rent machines before the next job comes, and keep them a while, where jobs come often; or never.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The object of GET /v1/project.")] = False,
) -> None:
    """Example: allpass project --no-ahead

    Show the project, or change what is settled for all of its jobs. With --no-ahead a machine that no job needs is
    given back at once: the bill has less idle time, and the next job waits until a machine has started.
    """
    if context.invoked_subcommand is not None:
        return
    with connect() as client:
        found = client.project() if ahead is None else client.update_project(ahead=ahead)
    if as_json:
        screen.print_json(found)
        return
    ahead_now, other = ("while jobs come often", "--no-ahead") if found.ahead else ("never", "--ahead")
    facts = [
        ("id", found.id),
        ("class", _told(found)),
        ("kept ahead", f"{ahead_now}   (change: allpass project {other})"),
    ]
    typer.echo(found.name)
    screen.print_facts(facts)


@project.command("create")
def create(
    name: Annotated[str, typer.Argument(help="A name that no other project has.")],
    as_json: Annotated[bool, typer.Option("--json", help="The project object, with its first key.")] = False,
) -> None:
    """Example: allpass project create vision

    Make a project and print its first API key, which has scope admin and is shown this once. No project sees anything
    of another one. Needs a key with scope owner.
    """
    with connect() as client:
        made = client.create_project(name)
    if as_json:
        screen.print_json(made)
        return
    typer.echo(made.key.key)
    screen.say(f"{made.id}, {made.name}. Keep the key: it is not shown again. To use it: allpass login URL")


@project.command("list")
def list_(
    as_json: Annotated[
        bool, typer.Option("--json", help="An array of project objects, as in GET /v1/projects.")
    ] = False,
) -> None:
    """Example: allpass project list

    List the projects of the installation, newest first. Needs a key with scope owner.
    """
    with connect() as client:
        found = list(client.projects())
    if as_json:
        screen.print_json(found)
        return
    columns = [Column("PROJECT"), Column("NAME", flexible=True), Column("CREATED"), Column("CLASS", rank=1)]
    columns.append(Column("STATE", flexible=True))
    screen.print_table(columns, [_row(one) for one in found], empty="no projects")


@project.command("set")
def set_(
    which: Annotated[str, _WHICH],
    default_class: Annotated[
        str | None,
        typer.Option("--default-class", metavar="CLASS", help="Of jobs that name none: guaranteed or spot."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The project object.")] = False,
) -> None:
    """Example: allpass project set research --default-class spot

    Settle of which class jobs of a project are that do not say it themselves, from the next one on (allpass run
    --guaranteed, --spot). Those that are submitted already keep theirs. Needs a key with scope owner.
    """
    if default_class not in _CLASSES:
        given = "is missing" if default_class is None else f"{default_class!r} is no class of jobs"
        raise CommandFailed(
            f"--default-class: {given}; there are guaranteed and spot", hint="--default-class spot", code=WRONG_USAGE
        )
    with connect() as client:
        changed = client.change_project(_id_of(client, which), default_class=_CLASSES[default_class])
    _tell(changed, f"jobs that name no class are {changed.default_class}", as_json=as_json)


@project.command("archive")
def archive(
    which: Annotated[str, _WHICH],
    as_json: Annotated[bool, typer.Option("--json", help="The project object.")] = False,
) -> None:
    """Example: allpass project archive vision

    Refuse all keys of a project, so that nothing is submitted to it any more. What it has stored stays. All of its jobs
    must be over. Needs a key with scope owner.
    """
    with connect() as client:
        closed = client.archive_project(_id_of(client, which))
    _tell(closed, f"archived; to undo: allpass project restore {closed.id}", as_json=as_json)


@project.command("restore")
def restore(
    which: Annotated[str, _WHICH],
    as_json: Annotated[bool, typer.Option("--json", help="The project object.")] = False,
) -> None:
    """Example: allpass project restore vision

    Have an archived project back, with its keys. Needs a key with scope owner.
    """
    with connect() as client:
        opened = client.restore_project(_id_of(client, which))
    _tell(opened, "in use", as_json=as_json)


@project.command("key")
def key(
    which: Annotated[str, _WHICH],
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    scope: Annotated[
        list[str] | None, typer.Option("--scope", "-s", help="read, submit or admin; repeat it. Default: admin.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The key object, with the key itself.")] = False,
) -> None:
    """Example: allpass project key vision ada

    Make an API key of another project and print it, this once. That project's audit log tells of it. Needs a key with
    scope owner.
    """
    scopes: Any = list(dict.fromkeys(scope or ("admin",)))
    with connect() as client:
        made = client.create_project_key(_id_of(client, which), name, scopes)
    if as_json:
        screen.print_json(made)
        return
    typer.echo(made.key)
    screen.say(f"{made.id} ({', '.join(made.scopes)}). Keep the key: it is not shown again")


def _id_of(client: Client, which: str) -> str:
    """By name, unless it is an id. Raises CommandFailed."""
    if which.startswith("proj_"):
        return which
    found = next(iter(client.projects(name=which)), None)
    if found is None:
        raise CommandFailed(f"there is no project {which!r}", hint="allpass project list")
    return found.id


def _told(one: Project) -> str:
    return f"{one.default_class}, of jobs that name none   (owners: allpass project set)"


def _tell(one: Project, what: str, *, as_json: bool) -> None:
    if as_json:
        screen.print_json(one)
        return
    typer.echo(f"{one.id}   {one.name}   {what}")


def _row(one: Project) -> list[Cell | str]:
    state = Cell("in use", "green")
    if one.archived_at is not None:
        state = Cell(f"archived {words.moment(one.archived_at)}", "red")
    return [one.id, one.name, words.moment(one.created_at), one.default_class, state]
