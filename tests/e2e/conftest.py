"""One real stack for all stories: PostgreSQL, object store, local cloud, server, and agents as machines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import allpass
from app.stack.supervisor import Stack, StackOptions
from tests.e2e.service import Service
from tests.folders import open_to_all
from tests.stack.alone import listening

# Everything that takes minutes in production takes seconds here; nothing else differs.
SETTINGS = {
    "ALLPASS_POLICY": "fixed-threshold",
    "ALLPASS_SERVERLESS_BUDGET_S": "4",
    "ALLPASS_TICK_S": "1",
    "ALLPASS_POLL_S": "0.25",
    "ALLPASS_LEADER_LEASE_S": "3",
    "ALLPASS_SWEEP_S": "1",
    "ALLPASS_METER_S": "1",
    "ALLPASS_PRICES_S": "5",
    "ALLPASS_HEARTBEAT_CHECK_S": "0.5",
    "ALLPASS_UNREACHABLE_AFTER_S": "4",
    "ALLPASS_LOST_AFTER_S": "6",
    "ALLPASS_ORPHAN_GRACE_S": "5",
    "ALLPASS_AGENT_POLL_S": "2",
    "ALLPASS_STOP_GRACE_S": "20",
    "ALLPASS_KEEP_EVERY_S": "1",
    "ALLPASS_OPENAI_SERVING_IDLE_S": "10",
    "ALLPASS_OPERATION_LEASE_S": "5",
    "ALLPASS_OPERATION_TIMEOUT_S": "4",
}


@pytest.fixture(scope="package")
def service() -> Iterator[Service]:
    """It ends with the last of these stories: a stack at rest takes a tenth of a processor at this pace."""
    with open_to_all() as folder, listening() as listener:
        stack = Stack(StackOptions(data_dir=folder / "data", port=0, cloud_speed=0.02, settings=SETTINGS), tell=print)
        # Started from a shell with accounts at every company, none of which may hear of any story.
        with pytest.MonkeyPatch.context() as shell:
            for name, value in listener.settings().items():
                shell.setenv(name, value)
            stack.start()
        try:
            with client_of(stack.layout.client_file) as client:
                yield Service(stack, client)
        finally:
            stack.stop()
        assert listener.called == []


def client_of(file: Path) -> allpass.Client:
    known = json.loads(file.read_text())
    return allpass.Client(known["url"], known["api_key"])
