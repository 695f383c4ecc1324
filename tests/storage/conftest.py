"""A real object store on loopback, and the adapters that sit the conformance suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from app.ports.objects import ObjectStore
from app.storage.directory import DirectoryStore
from tests.storage.object_server import ServerProcess

StartServer = Callable[..., ServerProcess]


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    with ExitStack() as stack:

        def start(*options: str, wrapper: tuple[str, ...] = ()) -> ServerProcess:
            server = ServerProcess(tmp_path / "objects", options, wrapper).start()
            stack.callback(server.kill)
            return server

        yield start


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for the tests of a file that do not disturb it."""
    process = ServerProcess(tmp_path_factory.mktemp("objects")).start()
    yield process
    process.kill()


@pytest.fixture
async def http(server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=20, trust_env=False) as client:
        yield client


@pytest.fixture(params=["directory"])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    """Each adapter of the port in turn, its signed URLs answered by a real server: a new adapter adds a fixture
    of this name pattern and its name above."""
    adapter: ObjectStore = request.getfixturevalue(f"{request.param}_store")
    return adapter


@pytest.fixture
def directory_store(server: ServerProcess) -> DirectoryStore:
    return server.store()
