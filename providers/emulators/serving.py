"""The process around an emulator: options, keys, sockets, signals, and the line that says where it listens.

    python -m providers.emulators.vast --data-dir D --port 7722 --admin-port 7732 --speed 0.1 --seed 1

Two keys come from the environment: ALLPASS_EMULATOR_KEY is what a customer of the company must present (in the
company's own manner), ALLPASS_EMULATOR_ADMIN_KEY opens the admin port. Once both ports answer, one line of JSON on
standard output says where: {"event": "listening", "name": "vast", "url": "http://...", "admin_url": "http://..."}.

It ends on SIGTERM or SIGINT, and with its parent where that is asked for; by default what runs on its machines ends
with it, however it goes. With `--no-machines-die-with-emulator` that runs on, and the next emulator on the same data
directory takes it up. The books (machines, bills, what was scripted of the market) survive in either case.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from starlette.applications import Starlette

from providers.emulators import wrong_clock
from providers.emulators.admin import MARKET_SCRIPT, Action, Admin
from providers.emulators.estate import Estate, EstateOptions
from providers.emulators.faults import FaultKind, FaultScript
from providers.emulators.market import EmulatedMarket, Good
from providers.emulators.meter import Rule
from providers.emulators.startup import Startup, StartupTimes
from providers.emulators.switches import Switches, Value
from providers.emulators.wire import HttpFront
from workers.machines.prctl import die_with_parent
from workers.machines.premises import leave_with_parent, listen, lock, refuse, url_of

KEY_VARIABLE = "ALLPASS_EMULATOR_KEY"
ADMIN_KEY_VARIABLE = "ALLPASS_EMULATOR_ADMIN_KEY"
_ORIGIN = "market-origin-ms"


class Front(Protocol):
    """The company's side of the wire. `wire.HttpFront` is one for HTTP."""

    async def open(self, listener: socket.socket) -> None:
        """Accept connections on this bound and listening socket; returns when that works."""
        ...

    async def close(self) -> None:
        """Stop; harmless when repeated. Calls that hang are cut off."""
        ...


@dataclass(frozen=True, slots=True)
class Grounds:
    """What an emulator is built on. `key` is what its customers must present."""

    estate: Estate
    market: EmulatedMarket
    startup: StartupTimes
    faults: FaultScript
    switches: Switches
    rule: Rule
    key: str
    seed: int
    speed: float
    now_ms: Callable[[], int]
    data_dir: Path


@dataclass(frozen=True, slots=True)
class Built:
    """An emulator: its side of the wire, and what it adds to the admin port."""

    front: Front
    actions: Mapping[str, Action] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Emulation:
    """One company. `build` is called once, inside the event loop, before the estate is opened.

    `scheme` is that of the printed URL. `switches` are names with defaults (see `switches`); `ops` and `kinds` those of
    its faults.
    """

    name: str
    default_port: int
    default_admin_port: int
    rule: Rule
    startup: Startup
    goods: Sequence[Good]
    ops: Sequence[str]
    build: Callable[[Grounds], Built]
    kinds: Mapping[str, FaultKind] = field(default_factory=dict)
    switches: Mapping[str, Value] = field(default_factory=dict)
    listing_lag_ms: int = 0
    scheme: str = "http"


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """The command line. `parent_pid` None: we stay when our parent goes."""

    data_dir: Path
    host: str
    port: int
    admin_port: int
    speed: float
    seed: int
    tails: bool
    switches: tuple[str, ...]
    parent_pid: int | None
    machines_die_with_emulator: bool


def emulator_command(
    name: str,
    data_dir: Path,
    *,
    host: str = "127.0.0.1",
    port: int | None = 0,
    admin_port: int | None = 0,
    speed: float = 0.0,
    seed: int = 1,
    tails: bool = False,
    switches: Mapping[str, Value] | None = None,
    die_with_parent: bool = True,
    machines_die_with_emulator: bool = True,
) -> list[str]:
    """The command line of an emulator (a name of `companies.Company`) as a child of the calling process.

    A port of 0 is any free one, of None the emulator's own. Its environment must hold both keys. With
    `die_with_parent` it must be started by the main thread: on Linux the system reports the end of the thread, not of
    the process.
    """
    module = "lambda_cloud" if name == "lambda" else name
    command = [sys.executable, "-P", "-m", f"providers.emulators.{module}", "--data-dir", str(data_dir)]
    command += ["--host", host]
    for option, value in (("--port", port), ("--admin-port", admin_port)):
        command += [] if value is None else [option, str(value)]
    command += ["--speed", str(speed), "--seed", str(seed)]
    command += ["--tails" if tails else "--no-tails"]
    command += ["--machines-die-with-emulator" if machines_die_with_emulator else "--no-machines-die-with-emulator"]
    for switch, setting in (switches or {}).items():
        command += ["--set", f"{switch}={str(setting).lower() if isinstance(setting, bool) else setting}"]
    if die_with_parent:
        command += ["--die-with-parent", str(os.getpid())]
    return command


def run(emulation: Emulation, arguments: Sequence[str] | None = None) -> int:
    """Run until told to end; the exit code: 0, or 2 with a line on standard error saying what is wrong."""
    options = parse_options(emulation, arguments)
    keys = os.environ.pop(KEY_VARIABLE, ""), os.environ.pop(ADMIN_KEY_VARIABLE, "")
    for variable, key in zip((KEY_VARIABLE, ADMIN_KEY_VARIABLE), keys, strict=True):
        if not key:
            return refuse(f"{variable} is not set; it holds a key that callers must present")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    if options.parent_pid is not None:
        die_with_parent(signal.SIGTERM)
        if os.getppid() != options.parent_pid:
            return 0  # it went before we had asked to be told
    options.data_dir.mkdir(parents=True, exist_ok=True)
    options.data_dir.chmod(0o711)  # machines may run user code as other users, who pass through
    locked = lock(options.data_dir / "emulator.lock")
    if locked is None:
        return refuse(f"another emulator runs on {options.data_dir}; stop it or choose another --data-dir")
    with ExitStack() as held:
        held.enter_context(locked)
        listeners = []
        for port in (options.port, options.admin_port):
            try:
                listeners.append(held.enter_context(listen(options.host, port)))
            except OSError as error:
                return refuse(f"cannot listen on {options.host}, port {port}: {error}")
        asyncio.run(_serve(emulation, options, keys, listeners[0], listeners[1]))
    return 0


def parse_options(emulation: Emulation, arguments: Sequence[str] | None) -> ServingOptions:
    """Read the command line; ends the process with a message when it is wrong."""
    module = "lambda_cloud" if emulation.name == "lambda" else emulation.name
    parser = argparse.ArgumentParser(prog=f"python -m providers.emulators.{module}")
    parser.add_argument("--data-dir", type=Path, required=True, help="machines, bills and logs are kept here")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=emulation.default_port, help="of the company's API; 0: a free one")
    parser.add_argument("--admin-port", type=int, default=emulation.default_admin_port, help="0: a free one")
    parser.add_argument("--speed", type=float, default=0.1, help="factor on all delays; 1 is real, 0 is none")
    parser.add_argument("--seed", type=int, default=1, help="of prices, supply and start-up times")
    parser.add_argument("--tails", action=argparse.BooleanOptionalAction, default=True, help="some starts never end")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a switch")
    parser.add_argument(
        "--die-with-parent", type=int, nargs="?", const=os.getppid(), metavar="PID", help="end when our parent ends"
    )
    parser.add_argument("--machines-die-with-emulator", action=argparse.BooleanOptionalAction, default=True)
    given = parser.parse_args(arguments)
    try:
        StartupTimes(emulation.startup, seed=given.seed, speed=given.speed)
        switches_of(emulation, given.set)
    except ValueError as error:
        parser.error(str(error))
    return ServingOptions(
        data_dir=given.data_dir.resolve(),
        host=given.host,
        port=given.port,
        admin_port=given.admin_port,
        speed=given.speed,
        seed=given.seed,
        tails=given.tails,
        switches=tuple(given.set),
        parent_pid=given.die_with_parent,
        machines_die_with_emulator=given.machines_die_with_emulator,
    )


async def _serve(
    emulation: Emulation,
    options: ServingOptions,
    keys: tuple[str, str],
    listener: socket.socket,
    admin_listener: socket.socket,
) -> None:
    leave = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, leave.set)
    watching_parent = asyncio.create_task(leave_with_parent(options.parent_pid, leave.set))
    grounds = lay_grounds(emulation, options, keys[0])
    built = emulation.build(grounds)
    admin = HttpFront(admin_app(grounds, built, keys[1]))
    try:
        await grounds.estate.open()
        await built.front.open(listener)
        await admin.open(admin_listener)
        _say(
            {
                "event": "listening",
                "name": emulation.name,
                "url": url_of(listener, emulation.scheme),
                "admin_url": url_of(admin_listener, "http"),
            }
        )
        await leave.wait()
    finally:
        watching_parent.cancel()
        await built.front.close()
        await admin.close()
        await grounds.estate.close()


def switches_of(emulation: Emulation, given: Iterable[str]) -> Switches:
    """The company's, and those that all have. Raises ValueError for a text of `given` that is no NAME=VALUE."""
    switches = Switches({**emulation.switches, **wrong_clock.SWITCHES})
    for text in given:
        switches.set_text(text)
    return switches


def lay_grounds(emulation: Emulation, options: ServingOptions, key: str) -> Grounds:
    """Everything that an emulator is built on, from its description and the command line."""
    switches = switches_of(emulation, options.switches)
    around = EstateOptions(
        options.data_dir,
        die_with_us=options.machines_die_with_emulator,
        surroundings=partial(wrong_clock.surroundings, switches, options.data_dir),
    )
    estate = Estate(around, _now_ms)
    origin_ms = estate.recall(_ORIGIN)
    if origin_ms is None:
        origin_ms = _now_ms()
        estate.remember(_ORIGIN, origin_ms)
    market = EmulatedMarket(
        emulation.goods,
        seed=options.seed,
        speed=options.speed,
        origin_ms=origin_ms,
        listing_lag_ms=emulation.listing_lag_ms,
    )
    market.restore(estate.recall(MARKET_SCRIPT, {}))
    return Grounds(
        estate=estate,
        market=market,
        startup=StartupTimes(emulation.startup, seed=options.seed, speed=options.speed, tails=options.tails),
        faults=FaultScript(emulation.ops, emulation.kinds),
        switches=switches,
        rule=emulation.rule,
        key=key,
        seed=options.seed,
        speed=options.speed,
        now_ms=_now_ms,
        data_dir=options.data_dir,
    )


def admin_app(grounds: Grounds, built: Built, admin_key: str) -> Starlette:
    """What is served on the admin port."""
    return Admin(
        key=admin_key,
        estate=grounds.estate,
        faults=grounds.faults,
        switches=grounds.switches,
        market=grounds.market,
        rule=grounds.rule,
        actions=built.actions,
    ).app()


def _say(event: Mapping[str, str]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
