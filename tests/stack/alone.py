"""Accounts at every company that are made up, and a listener in the place of all of them: who calls one is found out.

    unshare --net ... python -P -m tests.stack.alone CALLED COMMAND...

runs a command so in a network that has nothing but a loopback: there is no way to the companies themselves either.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ACCOUNTS = {
    "ALLPASS_MODAL_TOKEN_ID": "ak-" + "1" * 22,
    "ALLPASS_MODAL_TOKEN_SECRET": "as-" + "2" * 22,
    "ALLPASS_VAST_API_KEY": "3" * 64,
    "ALLPASS_LAMBDA_API_KEY": "4" * 40,
    "ALLPASS_LAMBDA_SSH_KEY": "mine",
    "ALLPASS_OBJECTS_STORE": "s3",
    "ALLPASS_S3_BUCKET": "the-teams",
    "ALLPASS_S3_ACCESS_KEY": "5" * 20,
    "ALLPASS_S3_SECRET_KEY": "6" * 40,
    "ALLPASS_LOCAL_CLOUD_KEY": "7" * 40,
    "ALLPASS_PUBLIC_URL": "https://allpass.example.com",
}
_ADDRESSES = ("MODAL_SERVER_URL", "VAST_URL", "LAMBDA_URL", "S3_ENDPOINT", "LOCAL_CLOUD_URL")


class Listener:
    """Every company at once. `called`: the first bytes of each connection."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.called: list[bytes] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def settings(self) -> dict[str, str]:
        """A shell with all accounts, whose companies are here."""
        url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        return {**ACCOUNTS, **{f"ALLPASS_{name}": url for name in _ADDRESSES}}

    def close(self) -> None:
        self._socket.close()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with connection, suppress(OSError):
                    connection.settimeout(1)
                    self.called.append(b"")
                    self.called[-1] = connection.recv(200)


@contextmanager
def listening() -> Iterator[Listener]:
    listener = Listener()
    try:
        yield listener
    finally:
        listener.close()


def alone(called: Path, *command: str) -> list[str]:
    """The command line that runs `command` in a network of its own; `called` is written when it is over."""
    own = [] if os.geteuid() == 0 else ["--map-current-user", "--keep-caps"]
    return ["unshare", "--net", *own, sys.executable, "-P", "-m", "tests.stack.alone", str(called), *command]


def main() -> int:
    called, *command = sys.argv[1:]
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with listening() as listener:
        code = subprocess.run(command, env={**os.environ, **listener.settings()}, check=False).returncode
    Path(called).write_bytes(b"\n".join(listener.called))
    return code


if __name__ == "__main__":
    sys.exit(main())
