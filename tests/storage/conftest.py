"""A real object store on loopback, and the adapters that sit the conformance suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from app.ports.objects import ObjectStore
from app.storage.directory import DirectoryStore
from app.storage.s3 import S3Store
from tests.storage.object_server import ServerProcess
from tests.storage.s3_server import S3Server

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
    async with httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as client:
        yield client


@pytest.fixture(params=["directory", "s3"])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    """Each adapter of the port in turn, its signed URLs answered by a real server: a new adapter adds a fixture
    of this name pattern and its name above."""
    adapter: ObjectStore = request.getfixturevalue(f"{request.param}_store")
    return adapter


@pytest.fixture
def directory_store(server: ServerProcess) -> DirectoryStore:
    return server.store()


@pytest.fixture(scope="session")
def s3_service() -> Iterator[S3Server]:
    """One service for all; its objects are in memory."""
    server = S3Server()
    yield server
    server.close()


@pytest.fixture
def s3_server(s3_service: S3Server) -> Iterator[S3Server]:
    """The service behaving as it should; what a test changes about it is undone."""
    s3_service.gate.reset()
    yield s3_service
    s3_service.gate.reset()


@pytest.fixture
async def s3_store(s3_server: S3Server) -> AsyncIterator[S3Store]:
    """A store on a bucket of its own, set up as the server does at its start."""
    store = s3_server.store(s3_server.new_bucket())
    assert await store.check() is None
    yield store
    await store.close()
