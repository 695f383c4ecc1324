"""`allpass completion`: the script that makes a shell complete commands and options."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer

from allpass.cli.faults import WRONG_USAGE, CommandFailed

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_ALLPASS_COMPLETE"
_typer: Any = importlib.import_module("typer.completion")  # what it has is not exported to type checkers


def completion(shell: Annotated[str, typer.Argument(help="bash, zsh or fish.")]) -> None:
    """Example: allpass completion bash > ~/.local/share/bash-completion/completions/allpass

    Print the script that completes commands and options. For zsh: a file _allpass in a folder of fpath; for fish:
    ~/.config/fish/completions/allpass.fish. To try it in bash: eval "$(allpass completion bash)".
    """
    if shell not in SHELLS:
        raise CommandFailed(
            f"{shell!r} is none of {', '.join(SHELLS)}", hint="allpass completion bash", code=WRONG_USAGE
        )
    typer.echo(_typer.get_completion_script(prog_name="allpass", complete_var=_VARIABLE, shell=shell))


def prepare() -> None:
    """A shell asks for completions: from now on it is understood."""
    _typer.completion_init()
