"""What tests of clients share."""

from __future__ import annotations

import socket

import pytest


@pytest.fixture(scope="module")
def unused_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
