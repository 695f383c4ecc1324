"""`allpass node`: make this very host one of a pool, or have it leave."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from allpass.cli.faults import CommandFailed
from allpass.cli.group import make_group

node = make_group()
_Root = Annotated[
    Path | None, typer.Option("--root", help="The folder to work in; default: /var/lib/allpass-host as root.")
]


@node.callback()
def nodes() -> None:
    """Example: allpass node join --token-file token

    Make this host one of a pool of your own machines, or have it leave.
    """


@node.command("join")
def join(
    url: Annotated[str | None, typer.Option("--url", help="Address of the service; default: the one you use.")] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="A file with the pool's token; default: standard input.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="What the pool shows; default: the host's name.")] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="As switch=leaf-3: where it is; repeat.")
    ] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="Give its processors, for jobs that need no GPU.")] = False,
    keep_free_gb: Annotated[
        str | None, typer.Option("--keep-free-gb", help="Of its disk; default: a twentieth, 5 GB at least.")
    ] = None,
    root: _Root = None,
) -> None:
    """Example: allpass node join --token-file token

    Make this host one of the pool whose token you have (allpass pool token POOL). Its GPUs are found; those that others
    use are left to them. It works as a unit of systemd where that runs, else as a plain process.
    """
    options = [*(["--cpu"] if cpu else []), *(["--name", name] if name else [])]
    options += [word for one in label or [] for word in ("--label", one)]
    options += ["--keep-free-gb", keep_free_gb] if keep_free_gb else []
    options += ["--root", str(root.absolute())] if root else []
    script = _script_of(url or _configured_url())
    with tempfile.TemporaryDirectory(prefix="allpass-join-") as folder:
        kept = Path(folder) / "join.sh"
        kept.write_text(script)
        if token_file is not None:
            options += ["--token-file", str(token_file.absolute())]
        elif not sys.stdin.isatty():
            piped = Path(folder) / "token"
            piped.touch(mode=0o600)
            piped.write_text(sys.stdin.read(1000))
            options += ["--token-file", str(piped)]
        raise typer.Exit(subprocess.run(["/bin/sh", str(kept), *options], check=False).returncode)  # noqa: S603 - ours


@node.command("leave")
def leave(
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return at once.")] = False, root: _Root = None
) -> None:
    """Example: allpass node leave

    Have what runs on this host move away, then leave nothing of the pool behind.
    """
    raise typer.Exit(_own_program(root, ["leave", *(["--no-wait"] if no_wait else [])]))


@node.command("status")
def status(root: _Root = None) -> None:
    """Example: allpass node status

    Say what this host is to its pool; exit code 1 when it does not work.
    """
    raise typer.Exit(_own_program(root, ["status"]))


def _own_program(root: Path | None, words: list[str]) -> int:
    usual = Path("/var/lib/allpass-host") if os.geteuid() == 0 else Path.home() / ".allpass" / "host"
    place = (root or usual).absolute()
    program = place / "allpass-host.pyz"
    if not program.is_file():
        raise CommandFailed(f"this host is in no pool: nothing works in {place}", hint="allpass node join")
    argv = [sys.executable, "-I", "-S", str(program), "--root", str(place), *words]
    return subprocess.run(argv, check=False).returncode  # noqa: S603 - our own program


def _configured_url() -> str:
    from allpass.cli.session import connect

    with connect() as client:
        return client.url


def _script_of(url: str) -> str:
    from allpass.cli.ssh_hosts import script_of

    return script_of(url)
