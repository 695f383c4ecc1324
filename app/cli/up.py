"""`allpass up`: the whole service on one machine, until Ctrl-C."""

from __future__ import annotations

import json
from contextlib import suppress
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from app.stack.supervisor import Stack, StackOptions


_IN_CHECKOUT = Path(__file__).parents[2].joinpath("allpass").is_file()  # else installed from a wheel


class Providers(StrEnum):
    LOCAL = "local"
    EMULATED = "emulated"
    NONE = "none"


def up(
    port: Annotated[int, typer.Option(min=0, max=65535, help="port of the API; 0 takes any free one")] = 7700,
    data_dir: Annotated[Path, typer.Option(help="where everything is kept")] = Path(".allpass"),
    speed: Annotated[float, typer.Option(min=0, help="factor on the start-up times of machines")] = 1.0,
    providers: Annotated[
        Providers | None,
        typer.Option(
            help="a local cloud, Modal, Vast.ai and Lambda played here, or none [default: local; with --here: none]",
            show_default=False,
        ),
    ] = None,
    here: Annotated[
        bool | None,
        typer.Option(
            "--here/--not-here",
            help="this host's own GPUs as a pool, or its processors [default: asked where it has a GPU]",
            show_default=False,
        ),
    ] = None,
    real: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="accounts of this shell to use, and pay for: modal, vast, lambda, another provider, s3",
        ),
    ] = "",
    training: Annotated[
        bool, typer.Option("--training", help="with torch, transformers and peft, for machines that are this host")
    ] = False,
    context: Annotated[
        str, typer.Option(help="name under which commands in any folder find this stack; none: they do not")
    ] = "local",
    save_within: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="how long a stop waits for jobs to save [default: ALLPASS_STOP_GRACE_S and a minute]",
        ),
    ] = None,
) -> None:
    """Example: allpass up --port 7700 --data-dir ~/allpass

    Serves PostgreSQL, the object store, the API, the control loop, and machines that are processes on this host.
    State survives a restart with the same --data-dir. Ctrl-C (or SIGTERM) has running jobs save first, and they go on
    from there at the next start; a second one does not wait for them.

    Keys of accounts in this shell are not used unless --real names them. With --real vast,modal machines are rented
    there and nowhere else; ALLPASS_PUBLIC_URL and ALLPASS_OBJECTS_URL say how they reach the port and the one after.
    """
    from rich.console import Console  # help is listed without loading the service

    from app.stack.supervisor import Clouds, StackOptions

    console = Console(stderr=True)
    if training and not _has_torch():
        console.print("[red]error:[/red] --training: torch is not installed here", highlight=False)
        console.print(
            "  try: pip install 'allpass-server[training]', or ./allpass up --training in a checkout", markup=False
        )
        raise typer.Exit(1)
    named = _named(real, providers)
    is_here = _asked_for_here(data_dir) if here is None and providers is None and not real else bool(here)
    clouds = Clouds((providers or (Providers.NONE if is_here else Providers.LOCAL)).value)
    options = StackOptions(data_dir=data_dir, port=port, cloud_speed=speed, clouds=clouds, real=named, here=is_here)
    _serve(console, options, context, save_within)


def _serve(console: Console, options: StackOptions, context: str, save_within_s: float | None) -> None:
    """Until it is asked to stop. Raises typer.Exit where it cannot start."""
    from rich.markup import escape

    from app.cli.wishes import StopSignals
    from app.errors import AllpassError
    from app.stack.supervisor import Stack

    wishes = StopSignals()
    stack = Stack(options, tell=lambda line: _tell(console, line))
    try:
        with wishes.heard():
            stack.start()
            _say_hello(console, stack, _remember(stack, context))
            stack.watch()
    except AllpassError as error:
        console.print(f"[red]error:[/red] {escape(error.message)}", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        stack.say(f"stopping; everything is kept in {stack.layout.root}")
        stack.save_jobs(within_s=save_within_s, hurried=lambda: wishes.hurried)
    finally:
        stack.stop()


def _asked_for_here(data_dir: Path) -> bool:
    """At the first start on a host with a GPU, before a terminal; later starts go by what was said then."""
    import sys

    if (data_dir / "here" / "member.json").is_file():
        return True
    if data_dir.exists() or not sys.stdin.isatty():
        return False
    from app.stack.here import gpus_here

    found = gpus_here()
    if not found:
        return False
    what = found[0] if len(found) == 1 else f"{len(found)} GPUs ({found[0]})"
    return typer.confirm(f"This host has {what}. Use it for jobs, at no price? (no: a cloud is played)", default=True)


def _named(real: str, providers: Providers | None) -> frozenset[str]:
    from app.errors import InvalidInput
    from app.stack.outside import read_real, rents

    try:
        named = read_real(real)
    except InvalidInput as error:
        raise typer.BadParameter(error.message, param_hint="--real") from None
    if rents(named) and providers is Providers.EMULATED:
        raise typer.BadParameter(
            "machines are rented there and nowhere else: leave out --providers", param_hint="--real"
        )
    return named


def _tell(console: Console, line: str) -> None:
    with suppress(SystemExit):  # how rich takes it that nobody reads any more; a stack goes on
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _has_torch() -> bool:
    return find_spec("torch") is not None


def _remember(stack: Stack, context: str) -> str:
    """Where commands find the stack, in words. A home that cannot be written to stops nothing."""
    from allpass.config import remember_stack
    from allpass.errors import ConfigurationError

    if context == "none":
        return "commands in this folder find it by themselves"
    told = json.loads(stack.layout.client_file.read_text())
    try:
        is_current = remember_stack(context, told["url"], told["api_key"])
    except (ConfigurationError, OSError) as error:
        return f"commands in this folder find it by themselves; others do not: {error}"
    if is_current:
        return f"commands in any folder find it by themselves (context {context})"
    return f"commands in this folder find it by themselves, others with: allpass context use {context}"


def _first_job() -> str:
    """A command that works where this one was typed."""
    script = Path("examples", "plain_loop.py")
    if script.is_file():
        return f"allpass run {script} --follow"
    return f"allpass example {script.name} && allpass run {script.name} --follow"


def _say_hello(console: Console, stack: Stack, found: str) -> None:
    lines = [
        f"Allpass serves on {stack.url}   (Ctrl-C stops it)",
        f"  data     {stack.layout.root}",
        f"  key      {stack.layout.client_file}",
        f"           {found}",
        f"  look     {stack.url}/   (sign in with that key)",
        f"  API      {stack.url}/docs",
        f"  try      {_first_job()}",
    ]
    if not _has_torch():
        how = "./allpass up --training" if _IN_CHECKOUT else "pip install 'allpass-server[training]'"
        lines.append(f"  torch    not installed: {how}, or --pip torch with a job")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
