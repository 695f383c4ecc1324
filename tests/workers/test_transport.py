"""The agent's connections, and their end."""

from __future__ import annotations

import http.client
import socket

import pytest

from workers.agent.errors import Unreachable
from workers.agent.transport import Transport


def test_an_exchange_that_was_about_to_connect_ends_with_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent leaves at that very moment: nobody waits for an answer that may take as long as a poll."""
    transport = Transport()
    connect = http.client.HTTPConnection.connect

    def leave_first(connection: http.client.HTTPConnection) -> None:
        transport.close()
        connect(connection)

    monkeypatch.setattr(http.client.HTTPConnection, "connect", leave_first)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(Unreachable, match="leaving"), transport.exchange("GET", url, headers={}, timeout_s=60):
            pass
