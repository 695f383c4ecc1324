"""Words after --: they are the job's, and are never mistaken for ours."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

import typer

from allpass.cli.faults import WRONG_USAGE, CommandFailed
from allpass.cli.once import Once

_META = "allpass.after_dashes"


class WithCommand(Once):
    """A command whose last words, after --, are a command line of somebody else's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_META] = tuple(args[at + 1 :])
        try:
            return super().parse_args(ctx, args[:at])
        except Exception as error:
            raise _meant_for_the_script(error, args[:at]) or error from None

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


def words_after(context: typer.Context) -> tuple[str, ...]:
    return tuple(context.meta.get(_META, ()))


def _meant_for_the_script(error: Exception, args: list[str]) -> CommandFailed | None:
    """An option that is not one of ours, behind a script, is one of the script's."""
    option = getattr(error, "option_name", None)
    if type(error).__name__ != "NoSuchOption" or option is None:
        return None
    at = next((index for index, word in enumerate(args) if word.split("=")[0] == option), None)
    scripts = [word for word in args[:at] if word.endswith((".py", ".sh"))]
    if at is None or not scripts or _is_typing_error(option, getattr(error, "possibilities", None) or ()):
        return None
    return CommandFailed(
        f"there is no option {option}; options of the script come after --",
        hint=f"allpass run {' '.join([*args[:at], '--', *args[at:]])}",
        code=WRONG_USAGE,
    )


def _is_typing_error(option: str, ours: Sequence[str]) -> bool:
    return any(SequenceMatcher(None, option, one).ratio() > 0.75 for one in ours)
