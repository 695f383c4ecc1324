"""The server process: `python -m app.main`. Settings come from the environment."""

from __future__ import annotations

import logging
import sys

import uvicorn
from pydantic import ValidationError

from app.api.serving import serving_options
from app.collector import settle_collector
from app.db.migrate import upgrade
from app.errors import InvalidInput
from app.settings import Settings
from app.wiring import build_server


def main() -> int:
    """Serve until SIGTERM or SIGINT. Exit code 2 when the settings are wrong."""
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
    if settings.migrate_on_start:
        upgrade(settings.database_url.get_secret_value())
    try:
        application = build_server(settings)
    except InvalidInput as error:
        sys.stderr.write(f"error: setting {error.param}: {error.message}\n")
        return 2
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


if __name__ == "__main__":
    sys.exit(main())
