"""The `allpass` command: its own commands by name, and those that other packages add.

A package adds commands through the entry-point group `allpass.commands`: each value is a function with Typer's
annotations, or a `typer.Typer`. Nothing of it is loaded until that command is called or help lists it.
"""

from __future__ import annotations

import difflib
import importlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer

from allpass import __version__
from allpass.cli.faults import WRONG_USAGE, CommandFailed, ServerPackageMissing, exit_code_of
from allpass.cli.group import Group
from allpass.cli.once import Once

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "allpass.commands"
BUILT_IN = {
    "run": "allpass.cli.submit:run",
    "finetune": "allpass.cli.finetune:finetune",
    "plan": "allpass.cli.plan:plan",
    "ps": "allpass.cli.overview:ps",
    "top": "allpass.cli.top:top",
    "show": "allpass.cli.overview:show",
    "logs": "allpass.cli.reading:logs",
    "events": "allpass.cli.reading:events",
    "metrics": "allpass.cli.reading:metrics",
    "checkpoints": "allpass.cli.reading:checkpoints",
    "download": "allpass.cli.reading:download",
    "tensorboard": "allpass.cli.tensorboard:tensorboard",
    "explain": "allpass.cli.controls:explain",
    "pause": "allpass.cli.controls:pause",
    "resume": "allpass.cli.controls:resume",
    "resize": "allpass.cli.controls:resize",
    "standby": "allpass.cli.standby:standby",
    "reserve": "allpass.cli.reserve:reserve",
    "set": "allpass.cli.controls:set_",
    "cancel": "allpass.cli.overview:cancel",
    "wait": "allpass.cli.waiting:wait",
    "sweep": "allpass.cli.sweeps:sweep",
    "nodes": "allpass.cli.overview:nodes",
    "pool": "allpass.cli.pools:pool",
    "node": "allpass.cli.node:node",
    "defrag": "allpass.cli.defrag:defrag",
    "fragmentation": "allpass.cli.fragmentation:fragmentation",
    "pressure": "allpass.cli.pressure:pressure",
    "replay": "allpass.cli.replay:replay",
    "offers": "allpass.cli.spending:offers",
    "providers": "allpass.cli.providers:providers",
    "cost": "allpass.cli.spending:cost",
    "project": "allpass.cli.project:project",
    "limits": "allpass.cli.limits:limits",
    "budget": "allpass.cli.budgets:budget",
    "import": "allpass.cli.imports:import_",
    "model-names": "allpass.cli.model_names:model_names",
    "calibrations": "allpass.cli.calibrations:calibrations",
    "secret": "allpass.cli.secrets:secret",
    "key": "allpass.cli.keys:key",
    "login": "allpass.cli.setup:login",
    "context": "allpass.cli.contexts:context",
    "completion": "allpass.cli.completion:completion",
    "example": "allpass.cli.example:example",
    "schema": "allpass.cli.setup:schema",
}
SERVER_COMMANDS = frozenset({"up", "demo", "trace", "simulate", "reproduce", "emulate", "images", "doctor", "smoke"})
# What other tools call it.
ELSEWHERE = {
    "submit": "run", "train": "run", "exec": "run", "launch": "run", "create": "run",
    "status": "ps", "list": "ps", "ls": "ps", "jobs": "ps", "queue": "ps",
    "stop": "cancel", "kill": "cancel", "delete": "cancel", "rm": "cancel",
    "describe": "show", "info": "show", "get": "show", "ssh": "logs -f", "attach": "logs -f", "tail": "logs -f",
    "pull": "download", "fetch": "download", "cp": "download", "prices": "offers", "gpus": "offers", "search": "offers",
    "usage": "cost", "spend": "cost", "bill": "cost", "history": "events", "update": "set", "edit": "set",
    "config": "login URL", "init": "login URL", "auth": "login URL", "setup": "login URL", "whoami": "context",
    "start": "up", "serve": "up", "server": "up", "version": "--version", "help": "--help", "why": "explain JOB",
}  # fmt: skip
COMPLETE_VARIABLE = "_ALLPASS_COMPLETE"  # set by the script of `allpass completion`
NOT_LOADED = "(could not be loaded; call it to see why)"


class CommandTree(Group):
    """Finds commands by name and loads only the one that is called."""

    _called: str | None = None

    def list_commands(self, ctx: Any) -> list[str]:
        added = [one.name for one in entry_points(group=ENTRY_POINT_GROUP) if one.name not in BUILT_IN]
        return [*BUILT_IN, *sorted(added)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in BUILT_IN:
            module, _, attribute = BUILT_IN[cmd_name].partition(":")
            return as_command(cmd_name, getattr(importlib.import_module(module), attribute))
        found = next((one for one in entry_points(group=ENTRY_POINT_GROUP) if one.name == cmd_name), None)
        if found is None:
            return None
        if COMPLETE_VARIABLE in os.environ and cmd_name != self._called:
            return as_command(cmd_name, _named)  # a Tab must not load another package
        try:
            return as_command(cmd_name, found.load())
        except Exception:
            if cmd_name == self._called:
                raise
            return as_command(cmd_name, _broken())  # help still lists the others

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self._called = name = args[0]
        if not name.startswith("-") and name not in BUILT_IN:
            known = self.list_commands(ctx)
            if name not in known:
                raise _unknown(name, known, args[1:])
        return super().resolve_command(ctx, args)

    def main(
        self,
        args: Any = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run; with `standalone_mode`, leave the process with the exit code: 0 done, 1 failed, 2 wrong usage."""

        if COMPLETE_VARIABLE in os.environ:
            from allpass.cli.completion import prepare

            prepare()

        def run() -> Any:
            return super(CommandTree, self).main(
                args, prog_name, complete_var, standalone_mode=False, windows_expand_args=windows_expand_args, **extra
            )

        if not standalone_mode:
            return run()
        sys.exit(exit_code_of(run))


def entry_points(group: str) -> Iterable[EntryPoint]:
    """What installed packages add under this name."""
    from importlib.metadata import entry_points as installed

    return installed(group=group)


def as_command(name: str, value: Any) -> Any:
    """A function or a Typer as a command called `name`."""
    if isinstance(value, typer.Typer):
        command = typer.main.get_command(value)
    else:
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(name, cls=Once)(value)
        command = typer.main.get_command(single)
    command.name = name
    command.short_help = _short_help(command.help or "") or command.short_help
    return command


def _short_help(text: str) -> str | None:
    """Help opens with an example; lists show the sentence after it."""
    paragraphs = [" ".join(one.split()) for one in text.strip().split("\n\n")]
    if len(paragraphs) < 2 or not paragraphs[0].startswith("Example:"):
        return None
    return paragraphs[1].split(". ")[0].rstrip(".")


def _unknown(name: str, known: Sequence[str], rest: Sequence[str]) -> CommandFailed:
    if name in SERVER_COMMANDS:
        return ServerPackageMissing(name)
    near = difflib.get_close_matches(name, known, n=1)
    meant = ELSEWHERE.get(name) or (near[0] if near else "--help")
    hint = f"allpass {' '.join([*rest[:1], meant]) if meant == '--help' and name == 'help' else meant}"
    return CommandFailed(f"there is no command {name!r}", hint=hint, code=WRONG_USAGE)


def _named() -> None:
    """Part of another package."""


def _broken() -> Callable[[], None]:
    def broken() -> None:
        raise RuntimeError(NOT_LOADED)

    broken.__doc__ = NOT_LOADED
    return broken


app = typer.Typer(
    cls=CommandTree,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
)


@app.callback(epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted. NO_COLOR=1 turns colours off.")
def root(
    context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version and leave.")
) -> None:
    """Example: allpass run train.py --deadline 6h --follow

    Fine-tuning that starts in seconds and finishes where it is cheap.
    """
    if version:
        typer.echo(f"allpass {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a log may hold what the terminal's encoding cannot write
    typer.main.get_command(app).main(prog_name="allpass")
