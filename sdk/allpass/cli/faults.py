"""Errors as people see them: `error: ...`, then `  try: ...`, on stderr; and the exit code."""

from __future__ import annotations

import os
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
        for problem, line in zip(template_error.problems, template_error.lines(), strict=True):
            _write(line, problem.hint)
        typer.echo("  schema: allpass schema template", err=True)
        return WRONG_USAGE
    if "AllpassError" in names:
        _write(str(error), getattr(error, "hint", None))
        return WRONG_USAGE if names & {"InvalidInput", "WrongUsage"} else FAILED
    if names & {"ClickException", "TyperException"}:
        return _tell_usage(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        _write(f"{where}{error.strerror or error}", None)
        return FAILED
    return None


def _drop_stdout() -> None:
    """What is still buffered can go nowhere; flushing it at exit must not complain."""
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _tell_usage(error: Exception) -> int:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "allpass"
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    _write(message.rstrip("."), f"{path} --help")
    code = getattr(error, "exit_code", WRONG_USAGE)
    return code if isinstance(code, int) else WRONG_USAGE


def _write(message: str, hint: str | None) -> None:
    if message:
        typer.secho("error: ", err=True, nl=False, fg=_red())
        typer.echo(message, err=True)
    if hint:
        typer.echo(f"  try: {hint}", err=True)


def _red() -> str | None:
    from allpass.cli.screen import colours_wanted

    return "red" if colours_wanted(sys.stderr) else None
