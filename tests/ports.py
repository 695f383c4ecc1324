"""Ports of this host that a test has to itself."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

NOBODYS_URL = "http://127.0.0.1:9"
"""Where nobody listens: below the ports that the system gives out, so that nobody is given it meanwhile either."""


@contextmanager
def reserved_port() -> Iterator[int]:
    """A free port until the end of the block: nobody listens there, and whoever the test starts may.

    A port that was looked for and let go is the next best connection's, or another test's server's. This one is held
    without listening: who connects is refused, and whoever listens with SO_REUSEADDR, as servers do, may do so.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@contextmanager
def reserved_pair() -> Iterator[int]:
    """A port as of `reserved_port` whose successor is held as well: the one that a stack's object store gets.

    The successor has to be tried: of two neighbours the system gives one to servers, the other to connections, and the
    port of a connection is nobody else's for a minute after its end.
    """
    for _ in range(100):
        with reserved_port() as port, socket.socket() as beside:
            beside.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                beside.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            yield port
            return
    raise AssertionError("no two free ports beside each other")
