"""What every process that plays a company needs of its host: a lock on its data, sockets, and an eye on its parent."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

EXIT_USAGE = 2
_PARENT_CHECK_S = 0.5


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises OSError when the address cannot be had."""
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    """Where the socket listens."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def lock(file: Path) -> IO[str] | None:
    """Held until it is closed, at the latest when this process ends; None when somebody else holds it."""
    held = file.open("w")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        held.close()
        return None
    return held


async def leave_with_parent(parent_pid: int | None, leave: Callable[[], None]) -> None:
    """Call `leave` when that process is our parent no more. None: never.

    The system tells us on Linux only, and only of the thread that started us: so we look for ourselves as well.
    """
    while parent_pid is not None:
        if os.getppid() != parent_pid:
            leave()
            return
        await asyncio.sleep(_PARENT_CHECK_S)


def refuse(message: str) -> int:
    """Say why there is no start; the exit code."""
    sys.stderr.write(f"error: {message}\n")
    return EXIT_USAGE
