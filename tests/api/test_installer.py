"""Where machines get uv from: nodes alone, and packed."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.core.model.node import NodeState
from app.db.engine import Database
from app.db.tables import nodes
from app.services.kit.node_tokens import TokenMint, token_sha256
from app.settings import Settings
from tests.api.served import serve, settings_for
from tests.seeds import seed_node, seed_project

HERE = os.uname().machine
_PATIENCE_S = 60.0  # it is packed the first time


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return settings_for(database_url, tmp_path / "objects")


@pytest.fixture
def url(settings: Settings) -> Iterator[str]:
    with serve(settings) as url:
        yield url


async def test_a_node_is_told_of_uv_and_gets_it(database: Database, settings: Settings, url: str) -> None:
    """What it gets has the hash and the size that it was told, once it is unpacked."""
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        node_id = await seed_node(connection, project_id, state=NodeState.READY)
        token = TokenMint.of(settings).token(node_id)
        await connection.execute(nodes.update().where(nodes.c.id == node_id).values(token_sha256=token_sha256(token)))
    head = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=f"{url}/v1/agent", timeout=_PATIENCE_S) as client:
        told = (await client.post("/installer", json={"machine": HERE}, headers=head)).json()
        got = await client.get(f"/installers/{told['sha256']}", headers=head)
        program = gzip.decompress(got.content)
        assert (hashlib.sha256(program).hexdigest(), len(program)) == (told["sha256"], told["size_bytes"])
        other = await client.post("/installer", json={"machine": "riscv64"}, headers=head)
        assert other.json() == {"sha256": None, "size_bytes": None}
        assert (await client.get(f"/installers/{'0' * 64}", headers=head)).status_code == 404
        assert (await client.get("/installers/uv", headers=head)).status_code == 422
        assert (await client.post("/installer", json={"machine": HERE})).status_code == 401
        assert (await client.get(f"/installers/{told['sha256']}")).status_code == 401
