"""The object store as a process of its own: `python -m app.storage.server --root DIR --port N`.

It knows nothing of the rest of Allpass, so it starts in a fraction of a second. The signing key comes from
ALLPASS_OBJECTS_SIGNING_KEY: a command line would show it to every user of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from app.errors import AllpassError
from app.storage.directory import DirectoryStore
from app.storage.endpoints import ObjectEndpoints
from app.storage.http_server import HttpServer
from app.storage.incoming import sweep
from app.storage.signing import check_signing_key

KEY_VARIABLE = "ALLPASS_OBJECTS_SIGNING_KEY"
_PR_SET_PDEATHSIG = 1
_PARENT_POLL_S = 0.5
_EXIT_USAGE = 2
_STOP_WITHIN_S = 3.0


class WallClock:
    """Real time."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep_ms(self, duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM. Prints one line, `listening on <url>`, once requests are accepted."""
    options = _parser().parse_args(arguments)
    if options.die_with_parent:
        die_with_parent()
    try:
        signing_key = os.environ.get(KEY_VARIABLE, "")
        endpoints = ObjectEndpoints(
            DirectoryStore(
                options.root,
                f"http://{options.host}:{options.port}",
                signing_key,
                max_object_bytes=options.max_object_bytes,
                clock=WallClock(),
            ),
            signing_key=check_signing_key(signing_key),
            clock=WallClock(),
        )
        swept = sweep(options.root)
        listener = _listen(options.host, options.port)
    except (AllpassError, OSError) as error:
        print(f"allpass object store: {error}", file=sys.stderr)
        return _EXIT_USAGE
    host, port = listener.getsockname()[:2]
    left = f" (removed {swept} torn uploads)" if swept else ""
    print(f"listening on http://{host}:{port}{left}", flush=True)
    _serve_until_stopped(HttpServer(listener, endpoints, idle_timeout_s=options.idle_timeout_ms / 1000))
    return 0


def _serve_until_stopped(server: HttpServer) -> None:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server.start()
    stop.wait()
    server.close(_STOP_WITHIN_S)


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent dies; where it cannot, watch the parent.

    SIGKILL is right: the store is made to survive it, and nothing is left running whatever the parent's end.
    """
    parent = os.getppid()
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) == 0:
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)
        return
    threading.Thread(target=_watch, args=(parent,), daemon=True, name="parent-watch").start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_S)
    os._exit(1)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(1024)
    return listener


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m app.storage.server", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder of the objects; created when missing")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=7701, help="0 picks a free one (default: 7701)")
    parser.add_argument("--max-object-bytes", type=int, default=64 * 1024**3)
    parser.add_argument("--idle-timeout-ms", type=int, default=60_000, help="silence that ends a transfer")
    parser.add_argument("--die-with-parent", action="store_true", help="end when the starting process ends")
    return parser


if __name__ == "__main__":
    sys.exit(main())
