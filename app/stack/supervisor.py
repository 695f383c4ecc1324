"""The one-machine stack: PostgreSQL, object store, clouds and server, started in order and kept running."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO

from app.errors import Conflict
from app.stack.child import Child
from app.stack.emulated import Emulated, emulated, emulator_child
from app.stack.layout import Layout
from app.stack.postgres import EmbeddedPostgres
from providers.emulators.companies import Company
from providers.local.start import KEY_VARIABLE, cloud_command
from workers.agent.blocks import USER_IDS
from workers.agent.build import build_zipapp

_READY_WITHIN_S = 60.0
_WATCH_S = 0.2
_RESTART_PAUSE_S = 1.0
HOST = "127.0.0.1"


class Clouds(StrEnum):
    """Where the machines of a stack come from. All of them are processes on this host."""

    LOCAL = "local"  # one cloud of ours with three kinds of machines
    EMULATED = "emulated"  # Modal, Vast.ai and Lambda, each spoken to by its real client


@dataclass(frozen=True, slots=True)
class StackOptions:
    """`port` of the API (0: any free one). `cloud_speed` scales the start-up times of machines.

    `settings` are extra `ALLPASS_…` variables for the server; they win over what the stack sets itself.
    """

    data_dir: Path
    port: int = 7700
    cloud_speed: float = 1.0
    cloud_seed: int = 1
    clouds: Clouds = Clouds.LOCAL
    settings: Mapping[str, str] = field(default_factory=dict)


class Stack:
    """Start and stop from the main thread; all children end with this process, however it ends."""

    def __init__(self, options: StackOptions, tell: Callable[[str], None]) -> None:
        self._options = options
        self._tell = tell
        self.layout = Layout(options.data_dir.resolve())
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
        """One look: PostgreSQL first, since the server needs it."""
        if self._postgres is not None and not self._postgres.alive():
            self._tell("PostgreSQL ended; starting it again")
            self._postgres.start()
        for child in self.children.values():
            if not child.alive():
                self._tell(f"{child.name} ended; starting it again")
                time.sleep(_RESTART_PAUSE_S if child.restarts else 0)
                child.restart()

    def stop(self) -> None:
        """Server first, PostgreSQL last; stopping twice is harmless."""
        for child in reversed(self.children.values()):
            child.stop()
        if self._postgres is not None:
            self._postgres.stop()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def secrets(self) -> dict[str, str]:
        return self.layout.secrets()

    def _start(self) -> None:
        self.layout.create()
        self._lock = self.layout.lock()
        port = self._options.port or free_port()
        check_port_is_free(port)
        self.url = f"http://{HOST}:{port}"
        with self.layout.writing():
            build_zipapp(self.layout.agent)
        self.database_url = self._options.settings.get("ALLPASS_DATABASE_URL") or self._start_postgres()
        objects_port = free_port()
        self._add(self._objects(objects_port))
        clouds = self._start_clouds()
        for child in self.children.values():
            child.wait_until_ready(_READY_WITHIN_S)
        server = self._add(self._server(port, f"http://{HOST}:{objects_port}", clouds))
        server.wait_until_ready(_READY_WITHIN_S)

    def _start_postgres(self) -> str:
        """On a port that stays the same while the stack runs, so that a restarted one is found again."""
        self._postgres = EmbeddedPostgres(self.layout.postgres)
        self._postgres.start()
        return self._postgres.url()

    def _add(self, child: Child) -> Child:
        self.children[child.name] = child
        child.start()
        return child

    def _objects(self, port: int) -> Child:
        command = [sys.executable, "-m", "app.storage.server", "--root", str(self.layout.objects)]
        command += ["--host", HOST, "--port", str(port), "--die-with-parent"]
        secret = {"ALLPASS_OBJECTS_SIGNING_KEY": self.secrets()["objects_signing_key"]}
        return Child("objects", command, environment=secret, log_file=self._log("objects"), port=port)

    def _start_clouds(self) -> dict[str, str]:
        """Start them; the settings with which a server rents there."""
        if self._options.clouds is Clouds.EMULATED:
            return self._start_companies()
        port = free_port()
        self.cloud_url = f"http://{HOST}:{port}"
        self._add(self._cloud(port))
        key = self.secrets()["local_cloud_key"]
        return {"ALLPASS_LOCAL_CLOUD_URL": self.cloud_url, "ALLPASS_LOCAL_CLOUD_KEY": key}

    def _start_companies(self) -> dict[str, str]:
        options, secret, settings = self._options, self.secrets()["local_cloud_key"], dict[str, str]()
        for company in Company:
            ports = {"port": free_port(), "admin_port": free_port()}
            one = emulated(company, host=HOST, **ports, secret=secret, speed=options.cloud_speed)
            folder = self.layout.emulated / company.value
            log, host = self._log(company.value), given_to_machines()
            self._add(emulator_child(one, folder, log, seed=options.cloud_seed, host_settings=host))
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
        }
        return Child(
            "server",
            [sys.executable, "-m", "app.main"],
            environment={**_given_settings(), **settings, **self._options.settings},
            log_file=self._log("server"),
            port=port,
            health_path="/readyz",
        )

    def _log(self, name: str) -> Path:
        return self.layout.logs / f"{name}.log"


def _given_settings() -> dict[str, str]:
    """Settings from our own environment: a user who exports ALLPASS_SERVERLESS_BUDGET_S means the server."""
    return {name: value for name, value in os.environ.items() if name.startswith("ALLPASS_")}


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
