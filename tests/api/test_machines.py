"""From a bootstrap script to a node: the real script, the real agent, the real server."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from app.core.model.money import Money
from app.core.model.node import NodeState, Tier
from app.core.model.offer import Offer
from app.db.engine import Database
from app.db.nodes.join_tokens import add_join_token
from app.db.nodes.tenure import clear_token
from app.db.tables import nodes
from app.ports.provider import MachineRequest
from app.services.kit.node_tokens import TokenMint, token_sha256
from app.services.nodes.agent_program import agent_program
from app.settings import Settings
from providers.bootstrap import bootstrap_script
from tests.api.served import serve, settings_for
from tests.seeds import seed_node, seed_project

FORGOTTEN = 3
_PATIENCE_S = 60.0


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return settings_for(database_url, tmp_path / "objects")


@pytest.fixture
def url(settings: Settings) -> Iterator[str]:
    with serve(settings) as url:
        yield url


async def _ordered(database: Database, settings: Settings, url: str) -> tuple[str, str]:
    """A node whose machine has been ordered: its id, and the script that the machine was given."""
    mint = TokenMint.of(settings)
    expires_ms = time.time_ns() // 1_000_000 + 600_000
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        node_id = await seed_node(connection, project_id, state=NodeState.BOOTING, token_sha256=b"not yet")
        join_sha256 = token_sha256(mint.join_token(node_id, 1))
        await add_join_token(connection, node_id, 1, join_sha256, expires_ms=expires_ms)
    offer = Offer("vast", "o1", Tier.MARKETPLACE, "A100", 1, 40 * 2**30, 8, 64 * 2**30, Money.usd("0.70"), 30_000)
    bootstrap = {
        "ALLPASS_URL": url,
        "ALLPASS_AGENT_SHA256": agent_program().sha256,
        "ALLPASS_JOIN_TOKEN": mint.join_token(node_id, 1),
    }
    request = MachineRequest(node_id, offer, offer.price_per_hour, "image", tuple(bootstrap.items()))
    return node_id, bootstrap_script(request)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Callable[[str, str], subprocess.Popen[bytes]]]:
    """Starts a machine: a script, and the name of its disk."""
    started: list[subprocess.Popen[bytes]] = []

    def start(script: str, disk: str) -> subprocess.Popen[bytes]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environ = {"PATH": path, "ALLPASS_AGENT_ROOT": str(tmp_path / disk)}
        started.append(subprocess.Popen(["/bin/sh", "-c", script], env=environ, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(_PATIENCE_S)


async def _wait_for_call(database: Database, node_id: str, process: subprocess.Popen[bytes]) -> None:
    """Until its agent has called home."""
    until = time.monotonic() + _PATIENCE_S
    ready = nodes.select().where(nodes.c.id == node_id, nodes.c.state == NodeState.READY)
    while True:
        async with database.transaction() as connection:
            if (await connection.execute(ready)).first() is not None:
                return
        assert process.poll() is None, f"the machine ended with {process.returncode}"
        assert time.monotonic() < until, "the machine does not call"
        await asyncio.sleep(0.02)


async def test_a_machine_becomes_a_node_once_and_stays_it(
    database: Database,
    settings: Settings,
    url: str,
    machines: Callable[[str, str], subprocess.Popen[bytes]],
) -> None:
    """It fetches the agent, joins and is ready; its twin is refused and ends; after a reboot it is the node again; when
    the node is given back, it ends too."""
    node_id, script = await _ordered(database, settings, url)
    machine = machines(script, "disk-1")
    await _wait_for_call(database, node_id, machine)

    twin = machines(script, "disk-2")
    assert twin.wait(_PATIENCE_S) == FORGOTTEN

    machine.kill()
    machine.wait(_PATIENCE_S)
    async with database.transaction() as connection:
        await connection.execute(nodes.update().values(state=NodeState.UNREACHABLE))
    rebooted = machines(script, "disk-1")
    await _wait_for_call(database, node_id, rebooted)

    async with database.transaction() as connection:
        await clear_token(connection, node_id)
    assert rebooted.wait(_PATIENCE_S) == FORGOTTEN
    assert machines(script, "disk-1").wait(_PATIENCE_S) == FORGOTTEN


def test_the_program_is_served_to_anybody_under_its_hash_alone(url: str) -> None:
    """It may be kept for ever; any other hash is not there, and what is no hash is refused."""
    program = agent_program()
    answer = httpx.get(f"{url}/agent/{program.sha256}.pyz")
    assert answer.status_code == 200
    assert hashlib.sha256(answer.content).hexdigest() == program.sha256
    assert "immutable" in answer.headers["cache-control"]
    other = httpx.get(f"{url}/agent/{'0' * 64}.pyz")
    assert (other.status_code, other.json()["error"]["code"]) == (404, "not_found")
    assert "cache-control" not in other.headers
    assert httpx.get(f"{url}/agent/latest.pyz").status_code == 422
    assert httpx.get(f"{url}/agent/{program.sha256}").status_code == 404


def test_another_process_builds_the_very_same_program() -> None:
    """What one process announces, every other of the same release serves."""
    source = "from app.services.nodes.agent_program import agent_program; print(agent_program().sha256)"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True, timeout=_PATIENCE_S
    )
    assert done.stdout.strip() == agent_program().sha256
