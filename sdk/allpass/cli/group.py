"""A command that has commands of its own."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup


class Group(TyperGroup):
    """Its --help is False unless given: for anything but a bool, Typer would load pydantic, which takes 0.2 s."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)
        if option is not None:
            option.default = False
        return option


def make_group() -> typer.Typer:
    """An empty one, in the style of all of them."""
    return typer.Typer(cls=Group, rich_markup_mode=None, add_completion=False, no_args_is_help=True)
