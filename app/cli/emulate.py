"""`allpass emulate`: one of the rental companies, or a Kubernetes cluster, played on this host, until Ctrl-C."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from providers.emulators.companies import Company, kubeconfig_in

if TYPE_CHECKING:
    from rich.console import Console

_KEYS_FILE = "keys.json"
_EXIT_USAGE = 2


def emulate(
    company: Annotated[Company, typer.Argument(help="whose interface, habits and bill to play")],
    data_dir: Annotated[
        Path | None, typer.Option(help="where machines, bills and keys are kept [default: .allpass/emulated/COMPANY]")
    ] = None,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="of the company's own interface; 0: any")] = None,
    admin_port: Annotated[int | None, typer.Option(min=0, max=65535, help="for faults and the ledger; 0: any")] = None,
    speed: Annotated[float, typer.Option(min=0, help="factor on all delays: 1 as in reality, 0 none")] = 0.1,
    seed: Annotated[int, typer.Option(help="of prices, supply and start-up times")] = 1,
    tails: Annotated[bool, typer.Option(help="some machines start very late, or never")] = True,
    switches: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="a habit to change")] = None,
    machines_die_with_emulator: Annotated[bool, typer.Option(help="else they run on until the next start")] = True,
) -> None:
    """Example: allpass emulate lambda --speed 0.05

    Plays a rental company on this host, or with `kubernetes` a cluster. Its machines are real processes here; nothing
    is rented, nothing costs. Prints the settings with which a server rents from it, for a file that a shell reads.
    State survives a restart with the same --data-dir; a cluster begins anew, and its pods end with it.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if company is Company.MODAL and find_spec("modal") is None:
        needs = "[red]error:[/red] the emulated Modal needs the package modal: pip install 'modal>=1.6,<1.7'"
        console.print(needs, highlight=False, soft_wrap=True)
        raise typer.Exit(_EXIT_USAGE)
    if company is Company.KUBERNETES and not machines_die_with_emulator:
        wrong = "[red]error:[/red] a cluster that starts again knows no pod of before: leave out"
        console.print(f"{wrong} --no-machines-die-with-emulator", highlight=False, soft_wrap=True)
        raise typer.Exit(_EXIT_USAGE)
    folder = (data_dir or Path(".allpass/emulated") / company.value).resolve()
    command = _command(
        company, folder, host, port, admin_port, speed, seed, tails, switches or [], machines_die_with_emulator
    )
    raise typer.Exit(_run(command, company, folder, speed, console))


def _command(
    company: Company,
    folder: Path,
    host: str,
    port: int | None,
    admin_port: int | None,
    speed: float,
    seed: int,
    tails: bool,
    switches: list[str],
    machines_die_with_emulator: bool,
) -> list[str]:
    from providers.emulators.serving import emulator_command

    command = emulator_command(
        company.value,
        folder,
        host=host,
        port=port,
        admin_port=admin_port,
        speed=speed,
        seed=seed,
        tails=tails,
        machines_die_with_emulator=machines_die_with_emulator,
    )
    for switch in switches:
        command += ["--set", switch]
    return command


def _run(command: list[str], company: Company, folder: Path, speed: float, console: Console) -> int:
    """The emulator's exit code. It says on standard error what it has to complain of."""
    keys = _keys(company, folder)
    # Our own program.
    process = subprocess.Popen(command, env={**os.environ, **keys}, stdout=subprocess.PIPE, text=True)  # noqa: S603
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        line = process.stdout.readline() if process.stdout else ""
        if line:
            _tell(company, json.loads(line), keys, folder, speed, console)
        return process.wait()
    except KeyboardInterrupt:  # the terminal has sent it to the emulator as well
        console.print(f"stopping; everything is kept in {folder}", markup=False, highlight=False, soft_wrap=True)
        process.terminate()
        return process.wait()


def _keys(company: Company, folder: Path) -> dict[str, str]:
    """The customer's key and the admin port's: from the environment, else made once and kept in the data directory."""
    from providers.emulators.serving import ADMIN_KEY_VARIABLE, KEY_VARIABLE

    file = folder / _KEYS_FILE
    kept: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    if not kept:
        customer = secrets.token_hex(16)
        kept[KEY_VARIABLE] = f"ak-{customer}:as-{secrets.token_hex(16)}" if company is Company.MODAL else customer
        kept[ADMIN_KEY_VARIABLE] = secrets.token_hex(16)
        folder.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
            json.dump(kept, stream)
    return {name: os.environ.get(name) or value for name, value in kept.items()}


def _tell(
    company: Company, told: Mapping[str, Any], keys: Mapping[str, str], folder: Path, speed: float, console: Console
) -> None:
    from app.stack.emulated import connection_settings
    from providers.emulators.serving import ADMIN_KEY_VARIABLE, KEY_VARIABLE

    console.print(
        f"An emulated [bold]{company.value}[/bold] serves on {told['url']}   (Ctrl-C stops it)", highlight=False
    )
    console.print(f"  admin    {told['admin_url']}", highlight=False)
    if company is Company.KUBERNETES:
        way = f"  way in   kubectl --kubeconfig {shlex.quote(str(kubeconfig_in(folder)))}"
        console.print(way, markup=False, highlight=False, soft_wrap=True)
    console.print(f"  data     {folder}", markup=False, highlight=False, soft_wrap=True)
    console.print("  settings of a server that rents from it:", highlight=False)
    lines = connection_settings(company, str(told["url"]), keys[KEY_VARIABLE], speed, folder)
    lines[ADMIN_KEY_VARIABLE] = keys[ADMIN_KEY_VARIABLE]
    sys.stdout.writelines(f"{name}={shlex.quote(value)}\n" for name, value in lines.items())
    sys.stdout.flush()
