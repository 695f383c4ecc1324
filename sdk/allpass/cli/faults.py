"""Errors as people see them: `error: ...`, then `  try: ...`, on stderr; and the exit code."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

INTERRUPTED = 130
FAILED = 1
WRONG_USAGE = 2


class CommandFailed(Exception):
    """A command that did what it could and has to say that the thing failed. `message` may be empty."""

    def __init__(self, message: str, *, hint: str | None = None, code: int = FAILED) -> None:
        super().__init__(message)
        self.message, self.hint, self.code = message, hint, code


class ServerPackageMissing(CommandFailed):
    """A command of the server package was called, and only the client is installed."""

    def __init__(self, command: str) -> None:
        super().__init__(
            f"`allpass {command}` is part of the server, which is not installed here",
            hint="pip install allpass-server",
            code=WRONG_USAGE,
        )


def exit_code_of(run: Callable[[], Any]) -> int:
    """Run a command, tell its error if it has one, and give the exit code."""
    try:
        result = run()
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("", err=True)
        return INTERRUPTED
    except BrokenPipeError:  # `allpass logs | head`: the reader has had enough
        _drop_stdout()
        return 0
    except Exception as error:
        told = tell(error)
        if told is None:
            raise
        return told
    return result if isinstance(result, int) else 0


def tell(error: Exception) -> int | None:
    """Write a known error to stderr; its exit code, or None for one that is a bug of ours and needs its traceback."""
    if isinstance(error, CommandFailed):
        _write(error.message, error.hint)
        return error.code
    names = {one.__name__ for one in type(error).__mro__}  # by name: the classes are loaded only if they were raised
    if "InvalidTemplate" in names:
        template_error: Any = error
        from allpass.cli.option_words import message_of

        for problem, line in zip(template_error.problems, template_error.lines(), strict=True):
            _write(message_of(line), problem.hint)
        typer.echo("  schema: allpass schema template", err=True)
        return WRONG_USAGE
    if "AllpassError" in names:
        from allpass.cli.option_words import hint_of, message_of

        hint = getattr(error, "hint", None) or _next_step(error)
        _write(message_of(str(error)), None if hint is None else hint_of(hint))
        return WRONG_USAGE if names & {"InvalidInput", "WrongUsage"} else FAILED
    if names & {"ClickException", "TyperException"}:
        return _tell_usage(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        _write(f"{where}{error.strerror or error}", None)
        return FAILED
    return None


def _next_step(error: Any) -> str | None:
    """Where what was asked for can be looked up."""
    message = str(error)
    if getattr(error, "http_status", None) == 404 and message.startswith("there is no job"):
        return "allpass ps (lists jobs with their ids)"
    if getattr(error, "param", None) in ("template.gpu.type", "template.gpu.count"):
        return "allpass offers (lists what could be rented now)"
    return None


def _drop_stdout() -> None:
    """What is still buffered can go nowhere; flushing it at exit must not complain."""
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _tell_usage(error: Exception) -> int:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else " ".join(["allpass", *_called()])
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    message, _, _ = message.partition(" (Possible options")
    _write(message.rstrip("."), _nearest(error, path) or f"{path} --help")
    code = getattr(error, "exit_code", WRONG_USAGE)
    return code if isinstance(code, int) else WRONG_USAGE


def _called() -> list[str]:
    """The command that was typed, of an error that does not say whose it is."""
    return [word for word in sys.argv[1:2] if not word.startswith("-")]


def _nearest(error: Any, path: str) -> str | None:
    """The option that was meant; where an id is missing, how to find one; where there is no such command, those there
    are."""
    option, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    possible = getattr(error, "possibilities", None)
    if option and possible:
        return f"{path} {max(possible, key=lambda one: _likeness(one, option))}"
    message = str(error)
    for kind, listing in (("JOB", "allpass ps"), ("SWEEP", "allpass sweep list")):
        if type(error).__name__ == "MissingParameter" and getattr(error.param, "metavar", "").startswith(kind):
            return f"{path} {kind}   (ids: {listing})"
    command: Any = getattr(context, "command", None)
    extra = re.match(r"Got unexpected extra argument(?:s|\(s\))? \((\S+)\)", message)
    if extra and any("--model" in parameter.opts for parameter in getattr(command, "params", ())):
        return f"{path} --model {extra[1]}"
    if message.startswith("No such command") and getattr(command, "commands", None):
        return ", ".join(f"{path} {name}" for name in command.commands)
    return None


def _likeness(one: str, other: str) -> float:
    import difflib

    return difflib.SequenceMatcher(None, one, other).ratio()


def _write(message: str, hint: str | None) -> None:
    if message:
        typer.secho("error: ", err=True, nl=False, fg=_red())
        typer.echo(message, err=True)
    if hint:
        typer.echo(f"  try: {hint}", err=True)


def _red() -> str | None:
    from allpass.cli.screen import colours_wanted

    return "red" if colours_wanted(sys.stderr) else None
