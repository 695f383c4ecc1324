"""`allpass key`: API keys, for those who have one with scope admin."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allpass.cli import screen, words
from allpass.cli.faults import WRONG_USAGE, CommandFailed
from allpass.cli.group import make_group
from allpass.cli.screen import Cell, Column
from allpass.cli.session import connect

if TYPE_CHECKING:
    from allpass.wire.access import Key

key = make_group()
_SCOPES = ("read", "submit", "admin", "owner")


@key.callback()
def keys() -> None:
    """Example: allpass key create ci --scope submit --expires 90d

    Create, list and revoke API keys.
    """


@key.command("create")
def create(
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", "-s", help="read, submit, admin or owner; repeat it. Default: read, submit."),
    ] = None,
    expires: Annotated[str | None, typer.Option("--expires", help="90d, or an instant; default: never.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The key object, with the key itself.")] = False,
) -> None:
    """Example: allpass key create ci --scope submit --expires 90d

    Create an API key and print it. It is shown this once: whoever loses it needs another one.
    """
    scopes: Any = list(dict.fromkeys(scope or ("read", "submit")))
    strange = [one for one in scopes if one not in _SCOPES]
    if strange:
        raise CommandFailed(
            f"--scope: {strange[0]!r} is none of {', '.join(_SCOPES)}", hint="--scope submit", code=WRONG_USAGE
        )
    expires_at = _instant(expires)
    with connect() as client:
        created = client.create_key(name, scopes, expires_at=expires_at)
    if as_json:
        screen.print_json(created)
        return
    typer.echo(created.key)
    screen.say(f"{created.id} ({', '.join(created.scopes)}). Keep the key: it is not shown again")


@key.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="An array of key objects, as in GET /v1/keys.")] = False,
) -> None:
    """Example: allpass key list

    List the project's API keys, newest first. USED is exact to about a minute.
    """
    with connect() as client:
        found = list(client.keys())
    if as_json:
        screen.print_json(found)
        return
    columns = [Column("KEY"), Column("NAME", flexible=True), Column("BEGINS WITH"), Column("SCOPES")]
    columns += [Column("CREATED"), Column("USED"), Column("STATE", flexible=True)]
    screen.print_table(columns, [_row(one) for one in found], empty="no keys")


@key.command("revoke")
def revoke(
    key_ids: Annotated[list[str], typer.Argument(metavar="KEY...", help="Ids of the keys (not the keys themselves).")],
    as_json: Annotated[bool, typer.Option("--json", help="An array of key objects.")] = False,
) -> None:
    """Example: allpass key revoke key_01JD9K3W0A4T6Z8X2C5V

    Revoke keys for good. Every process of the service refuses them within 5 seconds.
    """
    with connect() as client:
        revoked = [client.revoke_key(one) for one in key_ids]
    if as_json:
        screen.print_json(revoked)
        return
    for one in revoked:
        typer.echo(f"{one.id}   revoked")


def _instant(text: str | None) -> datetime | None:
    from allpass.wire.deadlines import parse_deadline

    if text is None:
        return None
    try:
        return parse_deadline(text, now=datetime.now(timezone.utc))
    except ValueError as error:
        raise CommandFailed(f"--expires: {error}", hint="--expires 90d", code=WRONG_USAGE) from error


def _row(one: Key) -> list[Cell | str]:
    used = words.moment(one.last_used_at) if one.last_used_at else "never"
    return [one.id, one.name, one.prefix, ",".join(one.scopes), words.moment(one.created_at), used, _state(one)]


def _state(one: Key) -> Cell:
    if one.revoked_at is not None:
        return Cell(f"revoked {words.moment(one.revoked_at)}", "red")
    if one.expires_at is None:
        return Cell("usable", "green")
    over = one.expires_at <= datetime.now(timezone.utc)
    return Cell(f"{'expired' if over else 'until'} {words.moment(one.expires_at)}", "red" if over else "green")
