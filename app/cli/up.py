"""`allpass up`: the whole service on one machine, until Ctrl-C."""

from __future__ import annotations

import signal
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from app.stack.supervisor import Stack


class Providers(StrEnum):
    LOCAL = "local"
    EMULATED = "emulated"


def up(
    port: Annotated[int, typer.Option(min=0, max=65535, help="port of the API; 0 takes any free one")] = 7700,
    data_dir: Annotated[Path, typer.Option(help="where everything is kept")] = Path(".allpass"),
    speed: Annotated[float, typer.Option(min=0, help="factor on the start-up times of machines")] = 1.0,
    providers: Annotated[Providers, typer.Option(help="a local cloud, or Modal, Vast.ai and Lambda played here")] = (
        Providers.LOCAL
    ),
) -> None:
    """Example: allpass up --port 7700 --data-dir ~/allpass

    Serves PostgreSQL, the object store, the API, the control loop, and machines that are processes on this host.
    State survives a restart with the same --data-dir.
    """
    from rich.console import Console  # help is listed without loading the service

    from app.errors import AllpassError
    from app.stack.supervisor import Clouds, Stack, StackOptions

    console = Console(stderr=True)
    options = StackOptions(data_dir=data_dir, port=port, cloud_speed=speed, clouds=Clouds(providers.value))
    stack = Stack(options, tell=console.print)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        stack.start()
        _say_hello(console, stack)
        stack.watch()
    except AllpassError as error:
        console.print(f"[red]error:[/red] {error.message}", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        console.print("stopping; everything is kept in", str(stack.layout.root), highlight=False, soft_wrap=True)
    finally:
        stack.stop()


def _say_hello(console: Console, stack: Stack) -> None:
    console.print(f"Allpass serves on [bold]{stack.url}[/bold]   (Ctrl-C stops it)", highlight=False)
    console.print(f"  data     {stack.layout.root}", highlight=False, soft_wrap=True)
    console.print(
        f"  key      {stack.layout.client_file} (commands in this folder find it by themselves)", highlight=False
    )
    console.print(f"  API      {stack.url}/docs", highlight=False, soft_wrap=True)
    console.print("  try      allpass run examples/plain_loop.py --follow", highlight=False)


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt
