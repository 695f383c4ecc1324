"""The command: its options, its output's last line and its exit code. What it does is in `app.cli.demo.play`."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.up import Providers


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="keep the data directory and print where it is")] = False,
    steps: Annotated[int, typer.Option(min=50, max=5000, help="training steps of the long job")] = 400,
    providers: Annotated[Providers, typer.Option(help="a local cloud, or Modal, Vast.ai and Lambda played here")] = (
        Providers.LOCAL
    ),
) -> None:
    """Example: ./allpass demo

    Starts everything on this machine and runs three jobs: a short fine-tune that finishes on serverless, a long one
    that moves to a cheaper machine at an exact step, and one whose code fails. Needs no account and no GPU. The last
    line of the output is one JSON object; the exit code is 0 only if all of it came out right.
    """
    from app.cli.demo.play import play  # help is listed without loading the service

    code = play(keep=keep, steps=steps, providers=providers)
    if code:
        raise typer.Exit(code)
