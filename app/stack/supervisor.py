"""The one-machine stack: PostgreSQL, object store, clouds and server, started in order and kept running."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING

from app.db.schema import check_schema
from app.errors import Conflict, Unavailable
from app.stack.child import Child
from app.stack.emulated import Emulated, emulated, emulator_child
from app.stack.here import host_child, join_here
from app.stack.layout import StackPaths
from app.stack.outside import beside, check_named, given_settings, own_addresses, rents, withheld_settings
from app.stack.postgres import EmbeddedPostgres
from app.stack.watching import Watch
from providers.emulators.companies import Company
from providers.local.start import KEY_VARIABLE, cloud_command
from workers.agent.blocks import USER_IDS
from workers.agent.build import build_zipapp

if TYPE_CHECKING:
    from app.stack.closing import Closing

_READY_WITHIN_S = (15.0, 45.0, 240.0, 600.0)  # each but the last is told when it is over: a schema may be brought up
_SCHEMA_WITHIN_S = 60.0
_WATCH_S = 0.2
_SERVER = "server"
_STORE_WITHIN_S = 60.0  # what a job has saved is stored in this time, usually
HOST = "127.0.0.1"


class Clouds(StrEnum):
    """Where the machines of a stack come from. All of them are processes on this host."""

    LOCAL = "local"  # one cloud of ours with three kinds of machines
    EMULATED = "emulated"  # Modal, Vast.ai and Lambda, each spoken to by its real client
    NONE = "none"


@dataclass(frozen=True, slots=True)
class StackOptions:
    """`port` of the API (0: any free one). `cloud_speed` scales the start-up times of machines.

    `settings` are extra `ALLPASS_…` variables for the server; they win over what the stack sets itself. `real`:
    accounts of the shell that are used. Without any, nothing outside this machine is rented, written or asked. `here`:
    this host is a pool of the stack.
    """

    data_dir: Path
    port: int = 7700
    cloud_speed: float = 1.0
    cloud_seed: int = 1
    clouds: Clouds = Clouds.LOCAL
    companies: tuple[Company, ...] = (Company.MODAL, Company.VAST, Company.LAMBDA)
    real: frozenset[str] = frozenset()
    here: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)


class Stack:
    """Start and stop from the main thread; all children end with this process, however it ends."""

    def __init__(self, options: StackOptions, tell: Callable[[str], None]) -> None:
        self._options = options
        self._listener = tell
        self._watch = Watch(self.say)
        self._closing: Closing | None = None
        self._serves = False
        self.layout = StackPaths(options.data_dir.resolve())
        self._lock: IO[str] | None = None
        self._postgres: EmbeddedPostgres | None = None
        self.children: dict[str, Child] = {}
        self.url = ""
        self.database_url = ""
        self.cloud_url = ""
        self.companies: tuple[Emulated, ...] = ()

    def start(self) -> None:
        """Bring everything up, in order. On failure what was started is stopped again."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def watch(self) -> None:
        """Run until interrupted, restarting children that die alone."""
        while True:
            time.sleep(_WATCH_S)
            self.restart_dead()

    def restart_dead(self) -> None:
        """One look: PostgreSQL first, since the server can do nothing without it. Never raises, never waits."""
        postgres = self._postgres
        has_database = postgres is None or (self._watch.look_at(postgres) and postgres.serves())
        for child in self.children.values():
            if has_database or child.alive() or child.name != _SERVER:
                self._watch.look_at(child)

    def save_jobs(self, *, within_s: float | None, hurried: Callable[[], bool]) -> None:
        """Have every job save and leave its machine, so that all of it goes on at the next start; then nothing is
        decided any more. To be followed by `stop`.

        Waits for at most `within_s` (None: the grace that a job has to save, and a minute to store it), and no longer
        once it is `hurried`. What a job has not saved by then it does again. Never raises.
        """
        if not self._serves:
            return
        from app.stack.closing import Closing  # loads the database layer, which nothing before this needs

        self._closing = Closing(self.database_url, tell=self.say, hurried=hurried, look_after=self.restart_dead)
        self._closing.clear(self._save_within_s() if within_s is None else within_s)

    def stop(self) -> None:
        """Server first, PostgreSQL last; stopping twice is harmless. What cannot be stopped does not keep the rest."""
        for child in reversed(self.children.values()):
            with suppress(OSError, subprocess.SubprocessError):
                child.stop()
        if self._closing is not None:
            self._closing.end()
            self._closing = None
        if self._postgres is not None:
            self._postgres.stop()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def secrets(self) -> dict[str, str]:
        return self.layout.secrets()

    def _start(self) -> None:
        port = self._options.port or free_port()
        objects_port = beside(port) if rents(self._options.real) else free_port()
        check_named(os.environ, self._options.real, port=port, objects_port=objects_port)
        self._tell_withheld()
        self.layout.create()
        self._lock = self.layout.lock()
        for one in {port, objects_port}:
            check_port_is_free(one)
        self.url = f"http://{HOST}:{port}"
        self.database_url = self._options.settings.get("ALLPASS_DATABASE_URL") or self._start_postgres()
        # Before anything is written: a newer release's data is left as it is.
        asyncio.run(check_schema(self.database_url, timeout_s=_SCHEMA_WITHIN_S, may_migrate=True))
        with self.layout.writing():
            build_zipapp(self.layout.agent)
        self._add(self._objects(objects_port))
        clouds = self._start_clouds()
        for child in self.children.values():
            self._await_ready(child)
        self._await_ready(self._add(self._server(port, f"http://{HOST}:{objects_port}", clouds)))
        self._serves = True
        if self._options.here:
            key = json.loads(self.layout.client_file.read_text())["api_key"]
            join_here(self.layout.here, self.url, key, self.say)
            self._await_ready(self._add(host_child(self.layout.here, self._log("here"))))

    def _await_ready(self, child: Child) -> None:
        """Raises Unavailable when it ends, or has not come up after a quarter of an hour."""
        for within_s in _READY_WITHIN_S:
            if child.becomes_ready(within_s):
                return
            self.say(f"{child.name} is not ready yet; what it does is in {self._log(child.name)}")
        raise Unavailable(f"{child.name} did not come up:\n{child.log_tail()}")

    def say(self, line: str) -> None:
        """To whoever still listens: a terminal may be gone."""
        with suppress(OSError, ValueError):
            self._listener(line)

    def _start_postgres(self) -> str:
        """On a port that stays the same while the stack runs, so that a restarted one is found again."""
        self._postgres = EmbeddedPostgres(self.layout.postgres, tell=self.say)
        self._postgres.start()
        return self._postgres.url()

    def _add(self, child: Child) -> Child:
        self.children[child.name] = child
        child.start()
        return child

    def _objects(self, port: int) -> Child:
        command = [sys.executable, "-P", "-m", "app.storage.server", "--root", str(self.layout.objects)]
        command += ["--host", HOST, "--port", str(port), "--die-with-parent"]
        secret = {"ALLPASS_OBJECTS_SIGNING_KEY": self.secrets()["objects_signing_key"]}
        return Child("objects", command, environment=secret, log_file=self._log("objects"), port=port)

    def _start_clouds(self) -> dict[str, str]:
        """Start them; the settings with which a server rents there. Beside real machines there are none of ours: jobs
        would be placed on those, which look cheaper."""
        if rents(self._options.real) or self._options.clouds is Clouds.NONE:
            return {}
        if self._options.clouds is Clouds.EMULATED:
            return self._start_companies()
        port = free_port()
        self.cloud_url = f"http://{HOST}:{port}"
        self._add(self._cloud(port))
        key = self.secrets()["local_cloud_key"]
        return {"ALLPASS_LOCAL_CLOUD_URL": self.cloud_url, "ALLPASS_LOCAL_CLOUD_KEY": key}

    def _start_companies(self) -> dict[str, str]:
        options, secret, settings = self._options, self.secrets()["local_cloud_key"], dict[str, str]()
        for company in options.companies:
            ports = {"port": free_port(), "admin_port": free_port()}
            folder = self.layout.emulated / company.value
            one = emulated(company, folder, host=HOST, **ports, secret=secret, speed=options.cloud_speed)
            log, host = self._log(company.value), given_to_machines()
            self._add(emulator_child(one, log, seed=options.cloud_seed, host_settings=host))
            self.companies += (one,)
            settings |= one.settings()
        return settings

    def _cloud(self, port: int) -> Child:
        command = cloud_command(
            self.layout.cloud,
            host=HOST,
            port=port,
            speed=self._options.cloud_speed,
            seed=self._options.cloud_seed,
            agent_command=shlex.join([sys.executable, "-I", "-S", str(self.layout.agent)]),
        )
        secret = {KEY_VARIABLE: self.secrets()["local_cloud_key"], **given_to_machines()}
        return Child("cloud", command, environment=secret, log_file=self._log("cloud"), port=port)

    def _server(self, port: int, objects_url: str, clouds: Mapping[str, str]) -> Child:
        settings = {
            "ALLPASS_DATABASE_URL": self.database_url,
            "ALLPASS_HOST": HOST,
            "ALLPASS_PORT": str(port),
            "ALLPASS_PUBLIC_URL": self.url,
            "ALLPASS_MIGRATE_ON_START": "true",
            "ALLPASS_CLIENT_FILE": str(self.layout.client_file),
            "ALLPASS_OBJECTS_DIR": str(self.layout.objects),
            "ALLPASS_OBJECTS_URL": objects_url,
            "ALLPASS_OBJECTS_SIGNING_KEY": self.secrets()["objects_signing_key"],
            "ALLPASS_SECRET_KEY": self.secrets()["secret_key"],
            **clouds,
            **own_addresses(os.environ, self._options.real),
        }
        environment = {**self._given_settings(), **settings, **self._options.settings}
        self._keep_for_others(environment, objects_port=int(objects_url.rsplit(":", 1)[1]))
        return Child(
            _SERVER,
            [sys.executable, "-P", "-m", "app.main"],
            environment=environment,
            log_file=self._log("server"),
            port=port,
            health_path="/readyz",
        )

    def _keep_for_others(self, environment: Mapping[str, str], *, objects_port: int) -> None:
        """What the server was started with, for commands that look at it. Accounts stay in the shell that has them."""
        open_to_all = set(environment) - withheld_settings(environment, ())
        told = {"objects_port": objects_port, "real": sorted(self._options.real)}
        told["settings"] = {name: environment[name] for name in sorted(open_to_all)}
        fresh = self.layout.server_file.with_suffix(".new")
        with self.layout.writing():
            fresh.touch(mode=0o600)
            fresh.write_text(json.dumps(told))
            fresh.replace(self.layout.server_file)

    def _log(self, name: str) -> Path:
        return self.layout.logs / f"{name}.log"

    def _save_within_s(self) -> float:
        from app.settings import Settings

        usual = Settings.model_fields["stop_grace_s"].default
        given = {**self._given_settings(), **self._options.settings}.get("ALLPASS_STOP_GRACE_S", usual)
        return float(given) + _STORE_WITHIN_S

    def _given_settings(self) -> dict[str, str]:
        """Settings from our own environment: a user who exports ALLPASS_SERVERLESS_BUDGET_S means the server."""
        return given_settings(os.environ, self._options.real)

    def _tell_withheld(self) -> None:
        withheld = withheld_settings(os.environ, self._options.real)
        if withheld:
            names = ", ".join(sorted(withheld))
            self.say(f"not used here, though this shell has them: {names} (allpass up --real names what is used)")


def given_to_machines() -> dict[str, str]:
    """Settings of this host, for those who start machines on it."""
    return {name: os.environ[name] for name in (USER_IDS,) if os.environ.get(name)}


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def check_port_is_free(port: int) -> None:
    """Raises Conflict naming the port when something listens there already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            raise Conflict(
                f"port {port} is in use; stop what listens there, or choose another with --port", param="port"
            ) from None
