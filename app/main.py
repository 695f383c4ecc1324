"""The server process: `python -m app.main`. Settings come from the environment.

With `migrate` it brings the schema up to date, with `bucket` it makes the bucket of objects, with `owner-key` it prints
a new API key that may do everything, and leaves. With `downgrade REVISION` it takes the schema back to what an earlier
release knows.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import socket
import sys
from collections.abc import Sequence

import uvicorn
from pydantic import ValidationError

from app.api.serving import serving_options
from app.collector import settle_collector
from app.db.migrate import downgrade, upgrade
from app.db.readiness import reach_database
from app.db.schema import check_schema
from app.errors import Conflict, InvalidInput, Unavailable
from app.services.nodes.check_addresses import check_addresses
from app.settings import Settings
from app.wiring import build_server, make_bucket, new_owner_key

_MIGRATE, _BUCKET, _OWNER_KEY, _DOWNGRADE = "migrate", "bucket", "owner-key", "downgrade"


def main(arguments: Sequence[str] = ()) -> int:
    """Serve until SIGTERM or SIGINT. Exit code 2 when the arguments or settings are wrong, 1 when what they name cannot
    be had now: the database does not answer, or is of another release, or the port is taken."""
    unknown = [word for word in arguments if word not in {_MIGRATE, _BUCKET, _OWNER_KEY}]
    if unknown and not (arguments[0] == _DOWNGRADE and len(arguments) == len(unknown) == 2):
        sys.stderr.write(
            f"error: unknown arguments {' '.join(unknown)}; "
            f"there are `{_MIGRATE}`, `{_BUCKET}`, `{_OWNER_KEY}` and `{_DOWNGRADE} REVISION`\n"
        )
        return 2
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("apscheduler").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        settings = Settings()
    except ValidationError as error:
        for problem in error.errors(include_url=False, include_input=False):
            name = "_".join(str(part) for part in problem["loc"]).upper()
            sys.stderr.write(f"error: setting ALLPASS_{name}: {problem['msg']}\n")
        return 2
    try:
        if arguments:
            _prepare(settings, arguments)
            return 0
        if settings.role != "api":
            check_addresses(settings)
        _check_port(settings)
        _prepare_database(settings)
        application = build_server(settings)
    except InvalidInput as error:
        setting = f"setting {error.param}: " if (error.param or "").startswith("ALLPASS_") else ""
        sys.stderr.write(f"error: {setting}{error.message}\n")
        return 2
    except (Conflict, Unavailable) as error:
        sys.stderr.write(f"error: {error.message}\n")
        return 1
    settle_collector()
    uvicorn.run(
        application,
        host=settings.host,
        port=settings.port,
        **serving_options(),
        timeout_graceful_shutdown=5,
        timeout_keep_alive=75,
    )
    return 0


def _prepare(settings: Settings, arguments: Sequence[str]) -> None:
    if arguments[0] == _DOWNGRADE:
        _reach(settings)
        downgrade(settings.database_url.get_secret_value(), arguments[1])
        return
    if _MIGRATE in arguments:
        _prepare_database(settings.model_copy(update={"migrate_on_start": True}))
    if _BUCKET in arguments:
        asyncio.run(make_bucket(settings))
    if _OWNER_KEY in arguments:
        _prepare_database(settings)
        sys.stdout.write(json.dumps(asyncio.run(new_owner_key(settings))) + "\n")


def _prepare_database(settings: Settings) -> None:
    url, timeout_s = settings.database_url.get_secret_value(), settings.database_timeout_s
    _reach(settings)
    if settings.migrate_on_start:
        upgrade(url)
    else:
        asyncio.run(check_schema(url, timeout_s=timeout_s))


def _reach(settings: Settings) -> None:
    url = settings.database_url.get_secret_value()
    asyncio.run(reach_database(url, timeout_s=settings.database_timeout_s))


def _check_port(settings: Settings) -> None:
    """Said before anything is begun: a control loop that starts only to end again would disturb the leader."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise InvalidInput(
                    f"{settings.host}:{settings.port} cannot be listened on ({error.strerror}); "
                    "name an address of this host and a free port",
                    param="ALLPASS_HOST",
                ) from None
            raise Conflict(
                f"{settings.host}:{settings.port} is in use; stop what listens there, or set ALLPASS_PORT to another"
            ) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
