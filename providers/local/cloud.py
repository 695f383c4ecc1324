"""The local cloud: a rental company played on this host, as one process.

    python -m providers.local.cloud --data-dir D --port 7702 --speed 0.1 --seed 1 --die-with-parent

It rents out "machines": real processes that run the agent, boot as slowly as real ones (times `--speed`), cost what
real ones cost, and die without warning when they are terminated. The API is described in `providers.local.api`; its key
comes from the environment variable ALLPASS_LOCAL_CLOUD_KEY. Once it answers, one line of JSON on standard output says
where: {"event": "listening", "url": "http://127.0.0.1:7702"}.

It ends on SIGTERM or SIGINT, and with its parent where that is asked for; by default its machines go with it however it
ends. With `--no-machines-die-with-cloud` they go on, and the next cloud on the same data directory takes them up.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from providers.local.api import ABORT, build_app
from providers.local.company import CompanyOptions, LocalCompany
from providers.local.market import LocalCatalogue
from providers.local.start import DEFAULT_AGENT_COMMAND, DEFAULT_PORT, KEY_VARIABLE
from providers.local.store import Store
from workers.machines.launch import AgentSetup
from workers.machines.prctl import die_with_parent
from workers.machines.premises import leave_with_parent, listen, lock, refuse, url_of

if TYPE_CHECKING:
    from uvicorn._types import ASGIApplication

_GRACEFUL_S = 1


@dataclass(frozen=True, slots=True)
class CloudOptions:
    """The command line. `parent_pid` None: we stay when our parent goes."""

    data_dir: Path
    host: str
    port: int
    speed: float
    seed: int
    agent_command: str
    parent_pid: int | None
    machines_die_with_cloud: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until told to end; the exit code."""
    options = parse_options(arguments)
    api_key = os.environ.pop(KEY_VARIABLE, "")
    if not api_key:
        return refuse(f"{KEY_VARIABLE} is not set; it holds the key that callers must present")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    if options.parent_pid is not None:
        die_with_parent(signal.SIGTERM)
        if os.getppid() != options.parent_pid:
            return 0  # it went before we had asked to be told
    options.data_dir.mkdir(parents=True, exist_ok=True)
    options.data_dir.chmod(0o711)  # machines may run user code as other users, who pass through
    locked = lock(options.data_dir / "cloud.lock")
    if locked is None:
        return refuse(f"another local cloud runs on {options.data_dir}; stop it or choose another --data-dir")
    with locked, listen(options.host, options.port) as listener:
        asyncio.run(_serve(options, api_key, listener))
    return 0


def parse_options(arguments: Sequence[str] | None) -> CloudOptions:
    """Read the command line; ends the process with a message when it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m providers.local.cloud", description="The local cloud.")
    parser.add_argument("--data-dir", type=Path, required=True, help="machines, bills and logs are kept here")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="0 takes a free one")
    parser.add_argument("--speed", type=float, default=0.1, help="factor on start-up times; 1 is real, 0 is none")
    parser.add_argument("--seed", type=int, default=1, help="of prices and start-up times")
    parser.add_argument(
        "--agent-command",
        default=DEFAULT_AGENT_COMMAND,
        help="what a machine runs; {python} and {agent_zipapp} are filled in (default: %(default)s)",
    )
    parser.add_argument(
        "--die-with-parent", type=int, nargs="?", const=os.getppid(), metavar="PID", help="end when our parent ends"
    )
    parser.add_argument("--machines-die-with-cloud", action=argparse.BooleanOptionalAction, default=True)
    given = parser.parse_args(arguments)
    try:
        LocalCatalogue(given.seed, given.speed)
    except ValueError as error:
        parser.error(str(error))
    return CloudOptions(
        data_dir=given.data_dir.resolve(),
        host=given.host,
        port=given.port,
        speed=given.speed,
        seed=given.seed,
        agent_command=given.agent_command,
        parent_pid=given.die_with_parent,
        machines_die_with_cloud=given.machines_die_with_cloud,
    )


async def _serve(options: CloudOptions, api_key: str, listener: socket.socket) -> None:
    store = Store(options.data_dir / "cloud.sqlite")
    company = LocalCompany(_company_options(options), store, LocalCatalogue(options.seed, options.speed), _now_ms)
    server = _Server(build_app(company, api_key), url_of(listener))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, server.leave)
    watching_parent = asyncio.create_task(leave_with_parent(options.parent_pid, server.leave))
    try:
        await company.start()
        await server.serve(sockets=[listener])
    finally:
        watching_parent.cancel()
        await company.stop()
        store.close()


def _company_options(options: CloudOptions) -> CompanyOptions:
    cache_dir = options.data_dir / "cache"
    cache_dir.mkdir(exist_ok=True)
    command = _agent_command(options.agent_command, options.data_dir / "agent.pyz")
    return CompanyOptions(options.data_dir, AgentSetup(command, cache_dir), options.machines_die_with_cloud)


def _agent_command(template: str, zipapp: Path) -> list[str]:
    if "{agent_zipapp}" in template:
        # imported here: only who runs our agent needs it
        from workers.agent.build import build_zipapp

        build_zipapp(zipapp)
    filled = {"{python}": sys.executable, "{agent_zipapp}": str(zipapp)}
    words = shlex.split(template)
    for name, value in filled.items():
        words = [word.replace(name, value) for word in words]
    return words


class _Server(uvicorn.Server):
    """Says when it listens, and leaves the signals to us."""

    def __init__(self, app: Starlette, url: str) -> None:
        config = uvicorn.Config(
            cast("ASGIApplication", app),  # two spellings of the same ASGI types
            http=_AbortableProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=_GRACEFUL_S,
        )
        super().__init__(config)
        self._url = url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        sys.stdout.write(json.dumps({"event": "listening", "url": self._url}) + "\n")
        sys.stdout.flush()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    def leave(self) -> None:
        """Finish what is under way, then return from `serve`."""
        self.should_exit = True


class _AbortableProtocol(HttpToolsProtocol):
    """Lets the application close a connection without an answer, which ASGI has no word for."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)[ABORT] = self.transport.abort


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    sys.exit(main())
