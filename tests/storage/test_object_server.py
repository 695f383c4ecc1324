"""The object store's server, as a real process spoken to over real HTTP."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from app.storage.directory import DirectoryStore
from app.storage.signing import Grant, signed_url
from tests.storage.conftest import StartServer
from tests.storage.object_server import (
    SIGNING_KEY,
    ServerProcess,
    eventually,
    key_of,
    sha256_of,
    soon_ms,
)

MIB = 1024 * 1024


def _put_url(store: DirectoryStore, data: bytes) -> str:
    return store.sign_put(key_of(data), sha256=sha256_of(data), size_bytes=len(data), expires_ms=soon_ms())


def _get_url(store: DirectoryStore, data: bytes) -> str:
    return store.sign_get(key_of(data), expires_ms=soon_ms())


def _error_code(response: httpx.Response) -> str:
    body = response.json()["error"]
    assert set(body) == {"code", "message", "param", "request_id", "retryable"}
    assert body["message"]
    return str(body["code"])


def _begin_upload(url: str, body: bytes, *, length: int) -> socket.socket:
    """Send the head of a PUT and the first part of its body; the rest is up to the test."""
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname, parts.port), timeout=60)
    head = f"PUT {parts.path}?{parts.query} HTTP/1.1\r\nHost: store\r\nContent-Length: {length}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


async def test_upload_and_download_with_their_headers(server: ServerProcess, http: httpx.AsyncClient) -> None:
    """PUT answers 201, then 200 for what is known; GET and HEAD describe the object; errors have one shape."""
    store, data = server.store(), secrets.token_bytes(100_000)
    first = await http.put(_put_url(store, data), content=data)
    assert (first.status_code, first.json()) == (
        201,
        {"key": key_of(data), "sha256": sha256_of(data), "size_bytes": len(data)},
    )
    assert (await http.put(_put_url(store, data), content=data)).status_code == 200
    got, head = await http.get(_get_url(store, data)), await http.head(_get_url(store, data))
    assert got.content == data
    assert head.content == b""
    for response in (got, head):
        assert response.status_code == 200
        assert response.headers["content-length"] == str(len(data))
        assert response.headers["etag"] == f'"{sha256_of(data)}"'
        assert response.headers["accept-ranges"] == "bytes"
    missing = await http.get(_get_url(store, b"never stored"))
    assert (missing.status_code, _error_code(missing)) == (404, "object_missing")


async def test_health_and_unknown_routes(http: httpx.AsyncClient) -> None:
    """/healthz answers without a signature; what is not served says so in the common error shape."""
    assert (await http.get("/healthz")).json() == {"status": "ok"}
    nowhere, deleting = await http.get("/nowhere"), await http.delete("/objects/" + "a" * 64)
    assert (nowhere.status_code, _error_code(nowhere)) == (404, "not_found")
    assert (deleting.status_code, _error_code(deleting)) == (405, "method_not_allowed")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("bytes=0-0", slice(0, 1)),
        ("bytes=0-", slice(0, 1000)),
        ("bytes=10-19", slice(10, 20)),
        ("bytes=990-5000", slice(990, 1000)),
        ("bytes=999-", slice(999, 1000)),
        ("bytes=-1", slice(999, 1000)),
        ("bytes=-5000", slice(0, 1000)),
    ],
)
async def test_a_single_range(server: ServerProcess, http: httpx.AsyncClient, asked: str, expected: slice) -> None:
    """One range is answered with 206, its bytes and where they lie."""
    store, data = server.store(), bytes(n % 251 for n in range(1000))
    await http.put(_put_url(store, data), content=data)
    response = await http.get(_get_url(store, data), headers={"Range": asked})
    assert response.status_code == 206
    assert response.content == data[expected]
    assert response.headers["content-range"] == f"bytes {expected.start}-{expected.stop - 1}/1000"


@pytest.mark.parametrize("asked", ["bytes=1000-", "bytes=5000-6000", "bytes=-0"])
async def test_a_range_outside_the_object(server: ServerProcess, http: httpx.AsyncClient, asked: str) -> None:
    """A range that holds no byte is 416 and tells the size."""
    store, data = server.store(), bytes(n % 251 for n in range(1000))
    await http.put(_put_url(store, data), content=data)
    response = await http.get(_get_url(store, data), headers={"Range": asked})
    assert (response.status_code, _error_code(response)) == (416, "range_unsatisfiable")
    assert response.headers["content-range"] == "bytes */1000"


@pytest.mark.parametrize("asked", ["bytes=0-1,5-6", "bytes=9-3", "lines=1-2", "bytes=", "bytes=a-b", "bytes=-"])
async def test_what_is_not_one_range_is_ignored(server: ServerProcess, http: httpx.AsyncClient, asked: str) -> None:
    """Several ranges, other units and nonsense get the whole object, as HTTP asks."""
    store, data = server.store(), bytes(n % 251 for n in range(1000))
    await http.put(_put_url(store, data), content=data)
    response = await http.get(_get_url(store, data), headers={"Range": asked})
    assert (response.status_code, response.content) == (200, data)


async def test_a_body_of_the_wrong_size_or_hash_stores_nothing(server: ServerProcess, http: httpx.AsyncClient) -> None:
    """Too long is 413, too short 400, without a length 411, other bytes 422; nothing of it stays."""
    store, data = server.store(), secrets.token_bytes(5000)
    url = _put_url(store, data)

    async def without_length() -> AsyncIterator[bytes]:
        yield data

    answers = {
        "too long": await http.put(url, content=data + b"x"),
        "too short": await http.put(url, content=data[:-1]),
        "other bytes": await http.put(url, content=data[::-1]),
        "no length": await http.put(url, content=without_length()),
    }
    assert {name: (answer.status_code, _error_code(answer)) for name, answer in answers.items()} == {
        "too long": (413, "too_large"),
        "too short": (400, "length_wrong"),
        "other bytes": (422, "object_corrupt"),
        "no length": (411, "length_required"),
    }
    assert await store.head(key_of(data)) is None
    assert server.temporary_files() == []


async def test_tampered_and_expired_urls_are_refused(server: ServerProcess, http: httpx.AsyncClient) -> None:
    """Each refusal is 403 with its own code, whatever part was changed; keys that are none are 422."""
    store, data, other = server.store(), b"mine", b"not mine"
    await store.put(key_of(other), other, sha256=sha256_of(other))
    get, put = _get_url(store, data), _put_url(store, data)
    expired = signed_url(server.url, Grant("GET", key_of(data), time.time_ns() // 1_000_000), SIGNING_KEY.encode())
    refusals = {
        "other object": (await http.get(get.replace(key_of(data), key_of(other))), "url_signature_wrong"),
        "more bytes": (await http.put(put.replace("size=4", "size=5"), content=b"mine!"), "url_signature_wrong"),
        "longer life": (await http.get(expired.replace("expires=1", "expires=9")), "url_signature_wrong"),
        "unsigned": (await http.get(get.split("?", maxsplit=1)[0]), "url_malformed"),
        "one more word": (await http.get(get + "&x=1"), "url_malformed"),
        "put with get": (await http.put(get, content=data), "url_for_other_method"),
        "get with put": (await http.get(put), "url_for_other_method"),
        "expired": (await http.get(expired), "url_expired"),
    }
    for name, (answer, code) in refusals.items():
        assert (name, answer.status_code, _error_code(answer)) == (name, 403, code)
    outside = await http.get("/objects/..%2f..%2fetc%2fpasswd?" + get.split("?")[1])
    assert (outside.status_code, _error_code(outside)) == (422, "invalid_input")


async def test_concurrent_uploads_of_one_object(server: ServerProcess) -> None:
    """Many clients uploading the same object at once all succeed, and it is stored once and whole."""
    store, data = server.store(), secrets.token_bytes(2 * MIB)
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        answers = await asyncio.gather(*(client.put(_put_url(store, data), content=data) for _ in range(8)))
    assert {answer.status_code for answer in answers} <= {200, 201}
    assert await store.get(key_of(data)) == data
    eventually(lambda: server.temporary_files() == [], "temporary files are gone")


async def test_a_torn_upload_leaves_nothing(server: ServerProcess, http: httpx.AsyncClient) -> None:
    """When the client goes away in the middle, its temporary file goes too, and a whole upload then works."""
    store, data = server.store(), secrets.token_bytes(4 * MIB)
    url = _put_url(store, data)
    connection = _begin_upload(url, data[: 3 * MIB], length=len(data))
    eventually(lambda: len(server.temporary_files()) == 1, "the upload has begun")
    connection.close()
    eventually(lambda: server.temporary_files() == [], "the temporary file is removed")
    assert await store.head(key_of(data)) is None
    assert (await http.put(url, content=data)).status_code == 201


def test_a_stalled_upload_is_ended(start_server: StartServer) -> None:
    """A client that stops sending is told so after the idle time, and its part is removed."""
    server = start_server("--idle-timeout-ms", "300")
    data = secrets.token_bytes(2 * MIB)
    with _begin_upload(_put_url(server.store(), data), data[: MIB + 1], length=len(data)) as connection:
        assert connection.recv(65_536).startswith(b"HTTP/1.1 408 ")
    eventually(lambda: server.temporary_files() == [], "the temporary file is removed")


def test_a_stalled_reader_is_let_go(start_server: StartServer) -> None:
    """A client that stops reading does not hold the object open for ever."""
    server = start_server("--idle-timeout-ms", "3000")
    data = secrets.token_bytes(32 * MIB)
    asyncio.run(server.store().put(key_of(data), data, sha256=sha256_of(data)))
    parts = urlsplit(_get_url(server.store(), data))
    assert server.process is not None
    files, name = Path(f"/proc/{server.process.pid}/fd"), sha256_of(data)

    def is_open() -> bool:
        return any(os.path.realpath(link).endswith(name) for link in files.iterdir())

    with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
        connection.sendall(f"GET {parts.path}?{parts.query} HTTP/1.1\r\nHost: store\r\n\r\n".encode())
        eventually(is_open, "the download has begun")
        eventually(lambda: not is_open(), "the server gives up on the reader")


async def test_killed_in_the_middle_of_an_upload_no_partial_object_appears(start_server: StartServer) -> None:
    """After kill -9 during an upload the restarted store has no trace of it, keeps the rest, and takes it anew."""
    server = start_server()
    store, kept, data = server.store(), b"kept", secrets.token_bytes(4 * MIB)
    await store.put(key_of(kept), kept, sha256=sha256_of(kept))
    connection = _begin_upload(_put_url(store, data), data[: 3 * MIB], length=len(data))
    eventually(lambda: len(server.temporary_files()) == 1, "the upload has begun")
    server.kill()
    connection.close()
    assert len(server.temporary_files()) == 1
    server.start()
    assert server.temporary_files() == []
    assert "removed 1 torn upload" in server.greeting
    assert [info.key async for info in store.list("")] == [key_of(kept)]
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        assert (await client.put(_put_url(store, data), content=data)).status_code == 201
        assert (await client.get(_get_url(store, data))).content == data


def test_large_objects_pass_in_bounded_memory(start_server: StartServer) -> None:
    """64 MiB in and out raise the server's peak memory by a few MiB only."""
    server = start_server()
    store, data = server.store(), secrets.token_bytes(64 * MIB)
    with httpx.Client(timeout=60, trust_env=False) as client:
        warm = secrets.token_bytes(4 * MIB)
        client.put(_put_url(store, warm), content=warm).raise_for_status()
        client.get(_get_url(store, warm)).raise_for_status()
        before_bytes = server.peak_memory_bytes()
        client.put(_put_url(store, data), content=data).raise_for_status()
        assert client.get(_get_url(store, data)).content == data
    assert server.peak_memory_bytes() - before_bytes < 12 * MIB


async def test_a_full_disk_is_507_and_leaves_nothing(start_server: StartServer) -> None:
    """When the file system takes no more, the client is told so, nothing stays, and small objects still work."""
    server = start_server(wrapper=("bash", "-c", 'ulimit -f 2048; exec "$@"', "limited"))
    store, data, small = server.store(), secrets.token_bytes(4 * MIB), b"small"
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        refused = await client.put(_put_url(store, data), content=data)
        assert (refused.status_code, _error_code(refused)) == (507, "store_full")
        assert refused.json()["error"]["retryable"] is True
        assert server.temporary_files() == []
        assert (await client.put(_put_url(store, small), content=small)).status_code == 201


def test_it_starts_fast_because_it_imports_little() -> None:
    """The process loads none of the service's heavy packages (it then answers about 0.4 s after being started)."""
    program = "import sys, app.storage.server; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.split())
    heavy = {"pydantic", "fastapi", "sqlalchemy", "asyncpg", "boto3", "botocore", "numpy", "scipy", "httpx", "allpass"}
    assert {"app", "h11"} <= loaded
    assert not loaded & (heavy | {"uvicorn", "starlette"})


@pytest.fixture
def dying_parent(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that starts the server with --die-with-parent and tells its process id."""
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-m', 'app.storage.server', '--root', sys.argv[1],"
        " '--port', '0', '--die-with-parent'], stdout=subprocess.PIPE, text=True)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "ALLPASS_OBJECTS_SIGNING_KEY": SIGNING_KEY},
    )
    assert parent.stdout is not None
    server_pid = int(parent.stdout.readline())
    yield parent, server_pid
    parent.kill()
    parent.wait()
    parent.stdout.close()


def test_it_dies_with_its_parent(dying_parent: tuple[subprocess.Popen[str], int]) -> None:
    """When the supervisor is killed outright, the store does not stay behind."""
    parent, server_pid = dying_parent
    assert _is_alive(server_pid)
    parent.send_signal(signal.SIGKILL)
    eventually(lambda: not _is_alive(server_pid), "the store ends with its parent")


@pytest.mark.parametrize("key", ["", "too short"])
def test_it_refuses_to_start_without_a_real_key(tmp_path: Path, key: str) -> None:
    """Without a signing key the process ends at once and names the variable to set."""
    done = subprocess.run(
        [sys.executable, "-m", "app.storage.server", "--root", str(tmp_path), "--port", "0"],
        capture_output=True,
        text=True,
        env={**os.environ, "ALLPASS_OBJECTS_SIGNING_KEY": key},
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "at least 32" in done.stderr


def _is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_it_stops_when_it_is_asked_to(start_server: StartServer) -> None:
    """SIGTERM ends it within moments, with code 0, though clients keep connections to it."""
    server = start_server()
    with httpx.Client(trust_env=False) as client:
        client.get(server.url + "/healthz").raise_for_status()
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=10) == 0
