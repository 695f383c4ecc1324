"""The connections of the object store's server: how they are kept, what ends them, and what clients may not do."""

from __future__ import annotations

import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from app.errors import AllpassError
from app.storage.directory import DirectoryStore
from app.storage.http_connection import FileSlice, Reply, Request
from app.storage.http_server import HttpServer
from tests.storage.conftest import StartServer
from tests.storage.object_server import ServerProcess, eventually, key_of, sha256_of, soon_ms

MIB = 1024 * 1024


class Client:
    """One connection, spoken to byte by byte."""

    def __init__(self, url: str, timeout_s: float = 20.0) -> None:
        parts = urlsplit(url)
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout=timeout_s)
        self._held = b""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self, *, without_body: bool = False) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next answer."""
        while b"\r\n\r\n" not in self._held:
            self._more()
        head, _, self._held = self._held.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        length = 0 if without_body else int(headers.get("content-length", 0))
        while len(self._held) < length:
            self._more()
        body, self._held = self._held[:length], self._held[length:]
        return int(first.split()[1]), headers, body

    def is_over(self) -> bool:
        """Whether the server has closed, after all that it said."""
        return not self._held and self.socket.recv(1) == b""

    def _more(self) -> None:
        data = self.socket.recv(65_536)
        assert data, f"the connection ended after {self._held[:200]!r}"
        self._held += data


def _head(method: str, url: str, *headers: str) -> bytes:
    parts = urlsplit(url)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: store", *headers, "", ""]).encode()


def _put_url(store: DirectoryStore, data: bytes) -> str:
    return store.sign_put(key_of(data), sha256=sha256_of(data), size_bytes=len(data), expires_ms=soon_ms())


def _get_url(store: DirectoryStore, data: bytes) -> str:
    return store.sign_get(key_of(data), expires_ms=soon_ms())


def _open_in(server: ServerProcess, word: str) -> int:
    """How many descriptors of the server lead to that."""
    assert server.process is not None
    links = (os.path.realpath(link) for link in Path(f"/proc/{server.process.pid}/fd").iterdir())
    return sum(word in link for link in links)


def test_requests_follow_each_other_on_one_connection(server: ServerProcess) -> None:
    """Uploads, downloads, refusals and heads keep the connection, whatever came before them on it."""
    store, data = server.store(), secrets.token_bytes(3 * MIB + 17)
    with Client(server.url) as client:
        for expected in (201, 200):  # the second body is of no interest, and is read all the same
            client.send(_head("PUT", _put_url(store, data), f"Content-Length: {len(data)}") + data)
            assert client.answer()[0] == expected
        client.send(_head("HEAD", _get_url(store, data)))
        assert client.answer(without_body=True)[1]["content-length"] == str(len(data))
        client.send(_head("HEAD", _get_url(store, b"not there")))
        assert client.answer(without_body=True)[0] == 404
        client.send(_head("GET", _get_url(store, data), "Range: bytes=1000000-2999999"))
        assert client.answer()[2] == data[1_000_000:3_000_000]
        client.send(_head("PUT", _put_url(store, data[:-1]), "Content-Length: 9") + b"too short")
        assert client.answer()[0] == 400
        client.send(_head("GET", _get_url(store, data)))
        assert client.answer()[2] == data


def test_requests_that_are_sent_before_the_answer_are_answered_in_order(server: ServerProcess) -> None:
    """A client may send the next head, even half of it, behind a body: nothing of it is taken for the body."""
    store, data, other = server.store(), b"one object", b"and another"
    heads = [_head("PUT", _put_url(store, one), f"Content-Length: {len(one)}") + one for one in (data, other)] + [
        _head("GET", _get_url(store, data)),
        _head("GET", _get_url(store, other)),
    ]
    everything = b"".join(heads)
    with Client(server.url) as client:
        client.send(everything[:-20])
        assert [client.answer()[0] for _ in range(2)] == [201, 201]
        assert client.answer()[2] == data
        client.send(everything[-20:])
        assert client.answer()[2] == other


def test_who_asks_whether_to_send_is_told(server: ServerProcess) -> None:
    """`Expect: 100-continue` is answered before the body; a refusal comes instead of it, and nothing waits for a body
    that will not be sent."""
    store, data = server.store(), secrets.token_bytes(50_000)
    asking = (f"Content-Length: {len(data)}", "Expect: 100-continue")
    with Client(server.url) as client:
        client.send(_head("PUT", _put_url(store, data), *asking))
        assert client.answer()[0] == 100
        client.send(data)
        assert client.answer()[0] == 201
    with Client(server.url) as client:
        client.send(_head("PUT", _put_url(store, data).replace("size=", "size=1"), *asking))
        assert client.answer()[0] == 403
        assert client.is_over()


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"nonsense\r\n\r\n", 400, "request_malformed"),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400, "request_malformed"),  # no Host
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nX : y\r\n\r\n", 400, "request_malformed"),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400, "request_malformed"),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 2\r\n\r\n", 400, "request_malformed"),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", 400, "request_malformed"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "request_malformed"),  # TLS
        (b"GET /" + b"a" * 40_000, 431, "request_head_too_large"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10_000, 431, "request_head_too_large"),
    ],
)
def test_what_is_no_request_is_refused_and_ends_the_connection(
    server: ServerProcess, sent: bytes, status: int, code: str
) -> None:
    """The common shape of errors, though nothing was understood; then the connection is closed."""
    with Client(server.url) as client:
        client.send(sent)
        answered, _, body = client.answer()
        assert answered == status
        assert f'"code": "{code}"'.encode() in body
        client.socket.shutdown(socket.SHUT_WR)
        assert client.is_over()


def test_a_body_in_chunks_is_refused_even_beside_a_length(server: ServerProcess) -> None:
    """Two words on where a body ends are how a second request is hidden in it: nothing behind them is read as one."""
    store, data = server.store(), b"some bytes"
    hidden = _head("GET", server.url + "/healthz")
    headers = (f"Content-Length: {len(data)}", "Transfer-Encoding: chunked")
    with Client(server.url) as client:
        client.send(_head("PUT", _put_url(store, data), *headers) + b"0\r\n\r\n" + hidden)
        assert client.answer()[0] == 411
        client.socket.shutdown(socket.SHUT_WR)
        assert client.is_over()


def test_a_body_that_nobody_wants_is_read_only_so_far(server: ServerProcess) -> None:
    """A refused upload of terabytes is answered at once, and its connection is closed instead of being read."""
    store, data = server.store(), b"small"
    with Client(server.url) as client:
        client.send(_head("PUT", _put_url(store, data), f"Content-Length: {10**15}"))
        assert client.answer()[0] == 413
        assert client.is_over()


def test_a_whole_url_is_a_path_and_two_slashes_are_no_host(server: ServerProcess) -> None:
    """Clients that take the store for a proxy send all of the URL; a path that begins like a host is not found."""
    store, data = server.store(), b"seen through a proxy"
    httpx.put(_put_url(store, data), content=data, trust_env=False).raise_for_status()
    url = _get_url(store, data)
    with Client(server.url) as client:
        client.send(f"GET {url} HTTP/1.1\r\nHost: store\r\n\r\n".encode())
        assert client.answer()[2] == data
        client.send(f"GET //evil{urlsplit(url).path}?{urlsplit(url).query} HTTP/1.1\r\nHost: store\r\n\r\n".encode())
        assert client.answer()[0] == 404
        client.send(b"GET evil HTTP/1.1\r\nHost: store\r\n\r\n")
        assert client.answer()[0] == 404


def test_an_old_client_gets_its_answer_and_the_end(server: ServerProcess) -> None:
    """HTTP/1.0, and whoever asks for it, has the connection closed behind the answer."""
    for head in (b"GET /healthz HTTP/1.0\r\n\r\n", b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"):
        with Client(server.url) as client:
            client.send(head)
            status, headers, _ = client.answer()
            assert (status, headers["connection"]) == (200, "close")
            client.socket.shutdown(socket.SHUT_WR)
            assert client.is_over()


def test_a_head_that_trickles_in_is_given_up(start_server: StartServer) -> None:
    """A byte now and then does not hold a thread: a head has as long as any other silence may last, and no longer."""
    server = start_server("--idle-timeout-ms", "500")
    with Client(server.url) as client:
        end_s = time.monotonic() + 15
        with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
            for byte in b"GET /healthz HTTP/1.1\r\nX: " + b"y" * 1000:
                client.send(bytes([byte]))
                assert time.monotonic() < end_s, "the server listens for ever"
                time.sleep(0.05)


def test_a_body_that_comes_slowly_is_taken(start_server: StartServer) -> None:
    """A client that is slow, but not silent, has its upload stored however long that takes."""
    server = start_server("--idle-timeout-ms", "700")
    store, data = server.store(), secrets.token_bytes(12)
    with Client(server.url) as client:
        client.send(_head("PUT", _put_url(store, data), f"Content-Length: {len(data)}"))
        for byte in data:
            client.send(bytes([byte]))
            time.sleep(0.15)
        assert client.answer()[0] == 201


def test_an_object_that_lost_its_end_breaks_the_connection(server: ServerProcess) -> None:
    """The client can tell that it has not got all: no answer looks complete, and none follows it."""
    store, data = server.store(), secrets.token_bytes(2 * MIB)
    httpx.put(_put_url(store, data), content=data, trust_env=False).raise_for_status()
    path = server.root / key_of(data)
    with path.open("r+b") as file, Client(server.url) as client:
        client.send(_head("GET", _get_url(store, data), "Range: bytes=0-9"))
        client.answer()
        file.truncate(MIB)
        client.send(_head("GET", _get_url(store, data), f"Range: bytes={MIB - 5}-{2 * MIB}"))
        status, headers, body = client.answer()
        assert (status, headers["content-range"], body) == (
            206,
            f"bytes {MIB - 5}-{MIB - 1}/{MIB}",
            data[MIB - 5 : MIB],
        )
    eventually(lambda: _open_in(server, sha256_of(data)) == 0, "the object is closed")


def test_many_uploads_downloads_and_refusals_leave_nothing_open(start_server: StartServer) -> None:
    """After clients of all kinds, also those that vanish, the server has as many descriptors as at first."""
    server = start_server()
    store, data = server.store(), secrets.token_bytes(2 * MIB)
    httpx.put(_put_url(store, data), content=data, trust_env=False).raise_for_status()
    eventually(lambda: _open_in(server, "socket:") == 1, "only the listener is open")
    before = _open_in(server, "")

    def use(number: int) -> None:
        fresh = secrets.token_bytes(MIB + number)
        with Client(server.url) as client:
            client.send(_head("PUT", _put_url(store, fresh), f"Content-Length: {len(fresh)}") + fresh)
            client.answer()
            client.send(_head("GET", _get_url(store, fresh)))
            assert client.answer()[2] == fresh
            client.send(_head("GET", _get_url(store, data), "Range: bytes=99999999-"))
            assert client.answer()[0] == 416
            client.send(_head("GET", _get_url(store, data)))  # and away, in the middle of it
        with Client(server.url) as client:
            client.send(_head("PUT", _put_url(store, b"never"), "Content-Length: 5") + b"nev")

    threads = [threading.Thread(target=use, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(lambda: _open_in(server, "") == before, "everything is closed")
    assert server.temporary_files() == []


class Slow:
    """Answers when it is allowed to."""

    def __init__(self) -> None:
        self.begun, self.allowed = threading.Semaphore(0), threading.Event()

    def answer(self, request: Request) -> Reply:
        self.begun.release()
        self.allowed.wait(20)
        return Reply(200, {}, request.target.encode())

    def refuse(self, error: AllpassError) -> Reply:
        return Reply(error.http_status, {}, error.error_code.encode())


@pytest.fixture
def slow() -> Iterator[tuple[Slow, HttpServer, str]]:
    answers = Slow()
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = HttpServer(listener, answers, idle_timeout_s=20, most_connections=2)
    server.start()
    yield answers, server, url
    answers.allowed.set()
    server.close(grace_s=5)
    assert not [thread for thread in threading.enumerate() if thread.name in ("accept", "connection")]


def test_one_connection_too_many_is_told_to_come_again(slow: tuple[Slow, HttpServer, str]) -> None:
    """Beyond the most that are served at once a client hears why, and is served when another one has left."""
    answers, _, url = slow
    answers.allowed.set()
    with Client(url) as first, Client(url) as second, Client(url) as third:
        for client in (first, second):
            client.send(_head("GET", url + "/x"))
            assert client.answer()[2] == b"/x"
        status, _, body = third.answer()
        assert (status, body) == (503, b"store_busy")
        assert third.is_over()
        first.socket.close()

        def is_served() -> bool:
            with Client(url) as another:
                another.send(_head("GET", url + "/y"))
                return another.answer()[0] == 200

        eventually(is_served, "there is room again")


def test_closing_waits_for_what_is_under_way_and_not_for_who_is_silent(slow: tuple[Slow, HttpServer, str]) -> None:
    """A request that was taken is answered; a connection between two requests ends at once."""
    answers, server, url = slow
    with Client(url) as silent, Client(url) as busy:
        busy.send(_head("GET", url + "/busy"))
        assert answers.begun.acquire(timeout=10)
        closing = threading.Thread(target=server.close, args=(10,))
        closing.start()
        assert silent.is_over()
        assert closing.is_alive()
        answers.allowed.set()
        assert busy.answer()[2] == b"/busy"
        closing.join(10)
        assert not closing.is_alive()
    with pytest.raises(ConnectionRefusedError):
        Client(url)


def test_closing_has_an_end_though_a_client_does_not_read(tmp_path: Path) -> None:
    """A download that its client does not take holds nobody up beyond the grace time, and its file is closed."""
    path = tmp_path / "large"
    path.write_bytes(bytes(64 * MIB))
    opened = path.open("rb", buffering=0)

    class Large(Slow):
        def answer(self, request: Request) -> Reply:
            return Reply(200, {}, FileSlice(opened, 0, 64 * MIB))

    listener = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(listener, Large(), idle_timeout_s=60)
    server.start()
    with Client(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
        client.send(_head("GET", "http://x/y"))
        assert re.match(rb"HTTP/1.1 200", client.socket.recv(12))
        begun_s = time.monotonic()
        server.close(grace_s=0.2)
        assert time.monotonic() - begun_s < 10
    assert opened.closed
