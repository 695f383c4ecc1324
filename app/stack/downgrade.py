"""`python -m app.stack.downgrade DATA_DIR REVISION`: take the database of a one-machine stack back to what an earlier
release knows. To be run with the newer release, while `allpass up` does not run; the data directory stays locked."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from app.db.migrate import downgrade
from app.errors import AllpassError, InvalidInput
from app.stack.layout import StackPaths
from app.stack.postgres import EmbeddedPostgres


def main(arguments: Sequence[str]) -> int:
    """0: the database is at that revision; 1: it cannot be taken there now; 2: the arguments are wrong."""
    if len(arguments) != 2:
        sys.stderr.write("error: expected a data directory and a revision, e.g. .allpass 0014\n")
        return 2
    try:
        take_back(StackPaths(Path(arguments[0]).resolve()), arguments[1])
    except InvalidInput as error:
        sys.stderr.write(f"error: {error.message}\n")
        return 2
    except AllpassError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return 1
    return 0


def take_back(layout: StackPaths, revision: str) -> None:
    """With only PostgreSQL running. Raises what `downgrade` raises, and InvalidInput for a directory without data."""
    if not (layout.postgres / "PG_VERSION").exists():
        raise InvalidInput(f"{layout.root} holds no database of Allpass; name the directory that `allpass up` uses")
    with layout.lock():
        server = EmbeddedPostgres(layout.postgres)
        server.start()
        try:
            downgrade(server.url(), revision)
        finally:
            server.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
