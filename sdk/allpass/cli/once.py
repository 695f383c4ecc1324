"""Options that take one value: given twice or empty, they are refused, for nobody knows what was meant."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from typer.core import TyperCommand

from allpass.cli.faults import WRONG_USAGE, CommandFailed


class Once(TyperCommand):
    """A command whose options each have one value, unless they are there to be repeated."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            _check(self.make_parser(ctx).parse_args(args=list(args)), args)
        return super().parse_args(ctx, args)


def _check(parsed: Any, args: Sequence[str]) -> None:
    values, _, order = parsed
    seen = set()
    for option in order:
        if option.param_type_name != "option" or option.multiple or option.is_flag or option.count:
            continue
        name = next((one for one in option.opts if one.startswith("--")), option.opts[0])
        if values.get(option.name) == "":
            raise CommandFailed(f"{name}: '' is empty", hint=f"leave {name} out", code=WRONG_USAGE)
        if option.name in seen:
            told = " and ".join(map(repr, _given(option.opts, args)))
            raise CommandFailed(
                f"{name}: is given twice, as {told}; it takes one value", hint=f"{name} once", code=WRONG_USAGE
            )
        seen.add(option.name)


def _given(names: Sequence[str], args: Sequence[str]) -> list[str]:
    """The values of these names, as they were typed."""
    found = [after for word, after in pairwise(args) if word in names]
    return found + [word.partition("=")[2] for word in args if word.partition("=")[0] in names and "=" in word]
