"""`allpass model-names`: which open model is meant by the name that a client of OpenAI sends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from allpass.cli import screen
from allpass.cli.group import Group
from allpass.cli.screen import Cell, Column
from allpass.cli.session import connect

if TYPE_CHECKING:
    from allpass.wire.model_names import ModelName

model_names = typer.Typer(cls=Group, rich_markup_mode=None, add_completion=False, invoke_without_command=True)
_Name = Annotated[str, typer.Argument(metavar="NAME", help="As clients send it, e.g. gpt-4o-mini.")]
_Json = Annotated[bool, typer.Option("--json", help="The object of the name.")]


@model_names.callback()
def show(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="An array of names, as in GET /v1/model-names.")] = False,
) -> None:
    """Example: allpass model-names

    List the names of models that clients of OpenAI may send, each with the open model that it means. Owners change
    them; open models can be asked for without a name.
    """
    if context.invoked_subcommand is not None:
        return
    with connect() as client:
        found = list(client.model_names())
    if as_json:
        screen.print_json(found)
        return
    columns = [Column("NAME"), Column("MEANS", flexible=True), Column("SET BY", rank=1)]
    screen.print_table(columns, [_row(one) for one in found], empty="no names")


@model_names.command("set")
def set_(
    name: _Name,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="org/name of the Hugging Face hub, or a folder.")],
    as_json: _Json = False,
) -> None:
    """Example: allpass model-names set gpt-4o-mini Qwen/Qwen2.5-7B-Instruct

    Say which open model NAME means from now on, for all projects. Needs a key with scope owner.
    """
    with connect() as client:
        _tell(client.set_model_name(name, model), as_json=as_json)


@model_names.command("remove")
def remove(name: _Name, as_json: _Json = False) -> None:
    """Example: allpass model-names remove davinci-002

    Have NAME mean nothing any more: whoever asks for it is told so. Needs a key with scope owner.
    """
    with connect() as client:
        _tell(client.set_model_name(name, None), as_json=as_json)


@model_names.command("reset")
def reset(name: _Name, as_json: _Json = False) -> None:
    """Example: allpass model-names reset gpt-4o-mini

    Have NAME mean what it means from the start. Needs a key with scope owner.
    """
    with connect() as client:
        _tell(client.reset_model_name(name), as_json=as_json)


def _tell(one: ModelName, *, as_json: bool) -> None:
    if as_json:
        screen.print_json(one)
        return
    means = "is not known any more" if one.model is None else f"means {one.model}"
    typer.echo(screen.printable(f"{one.name}   {means}"))
    if one.source == "owner" and one.model != one.from_start:
        back = "to forget it" if one.from_start is None else f"back to {one.from_start}"
        screen.say(f"{back}: allpass model-names reset {one.name}")


def _row(one: ModelName) -> list[Cell | str]:
    means = Cell("not known any more", "yellow") if one.model is None else one.model
    return [one.name, means, "owner" if one.source == "owner" else "-"]
