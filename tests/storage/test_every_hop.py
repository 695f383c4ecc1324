"""From the memory of one training to the disk of the next: a byte that changes on the way is found wherever it changes,
and each party hashes the bytes once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from allpass.training import noted_file
from allpass.training.noted_file import NotedFile
from app.ports.objects import content_key
from app.storage import directory, incoming
from app.storage.directory import DirectoryStore
from app.storage.endpoints import ObjectEndpoints
from app.storage.http_server import HttpServer
from tests.storage.object_server import PROJECT, SIGNING_KEY, RealClock, soon_ms
from workers.agent import fetching, pieces, transfer
from workers.agent.api import Api, Writer
from workers.agent.errors import Changed, Corrupt, Refused
from workers.agent.fetching import Fetcher, fetch_checkpoint
from workers.agent.files import Fence
from workers.agent.pieces import CutFolder, Manifest, cut
from workers.agent.transfer import store as send
from workers.agent.transport import Transport
from workers.agent.uploading import prove

PIECE_BYTES = 1024 * 1024
STATE_BYTES = 3 * PIECE_BYTES + 4096
SPOILED = PIECE_BYTES + 500_000  # this byte, in the second piece


class Wire:
    """Between the machines and the store: passes on what comes, but for one byte of a body, if `spoils` names a way."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.spoils = ""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                there = socket.create_connection(("127.0.0.1", self._port))
                for way, source, target in (("up", here, there), ("down", there, here)):
                    threading.Thread(target=self._pass, args=(way, source, target), daemon=True).start()

    def _pass(self, way: str, source: socket.socket, target: socket.socket) -> None:
        passed = 0
        with contextlib.suppress(OSError), source:
            while data := bytearray(source.recv(65_536)):
                if self.spoils == way and passed > 500_000:
                    data[-1] ^= 1
                    passed = 0
                passed += len(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


class Words:
    """What the control plane would answer."""

    def __init__(self, objects: DirectoryStore) -> None:
        self._objects = objects

    def puts(self, saved: CutFolder) -> dict[str, str]:
        lacking = {one.sha256: one.size_bytes for one in saved.contents.values() if not self.path(one.sha256).exists()}
        return {
            sha256: self._objects.sign_put(_key(sha256), sha256=sha256, size_bytes=size, expires_ms=soon_ms())
            for sha256, size in lacking.items()
        }

    def downloads(self, _: Writer, sha256s: Sequence[str]) -> Mapping[str, str]:
        return {sha256: self._objects.sign_get(_key(sha256), expires_ms=soon_ms()) for sha256 in sha256s}

    def path(self, sha256: str) -> Path:
        return self._objects.root / _key(sha256)


def _key(sha256: str) -> str:
    return content_key(PROJECT, sha256)


class Way:
    """A state's way from one machine over the store to another one, stage by stage."""

    def __init__(self, folder: Path, words: Words) -> None:
        self.state = secrets.token_bytes(STATE_BYTES)
        self.source, self.target = folder / "source", folder / "target"
        self.words = words
        self._gone = threading.Event()
        self._fence = Fence(folder, None)
        self._transport = Transport()
        self.source.mkdir()
        self.target.mkdir()

    def save(self) -> CutFolder:
        with NotedFile(self.source / "state", STATE_BYTES, PIECE_BYTES) as file:
            file.write(memoryview(self.state))
        saved = cut(self._fence, self.source, ["state"], self._gone)
        assert len(saved.unproven) == len(saved.contents) == 4
        return saved

    def upload(self, saved: CutFolder) -> None:
        send(
            self._transport,
            saved.contents,
            lambda: self.words.puts(saved),
            lambda: None,
            self._gone,
            longest_pause_s=0.01,
        )

    def prove(self, saved: CutFolder) -> None:
        """As before a commit, of pieces that the store had already."""
        prove(list(saved.contents.values()), self._gone)

    def download(self, saved: CutFolder) -> None:
        writer = Writer(run_id="run_1", job_id="job_1", epoch=1)
        link = Fetcher(cast(Api, self.words), self._transport, writer, self._gone)
        fetch_checkpoint(link, Manifest("ckpt_1", 1, saved.files), self.target)

    def close(self) -> None:
        self._transport.close()


@pytest.fixture
def wire_and_way(tmp_path: Path) -> Iterator[tuple[Wire, Way]]:
    listener = socket.create_server(("127.0.0.1", 0))
    wire = Wire(listener.getsockname()[1])
    objects = DirectoryStore(tmp_path / "objects", wire.url, SIGNING_KEY, max_object_bytes=2**30, clock=RealClock())
    endpoints = ObjectEndpoints(objects, signing_key=SIGNING_KEY.encode(), clock=RealClock())
    server = HttpServer(listener, endpoints, idle_timeout_s=20)
    server.start()
    way = Way(tmp_path, Words(objects))
    yield wire, way
    way.close()
    server.close(grace_s=5)
    wire.close()


def _spoil(path: Path, at: int) -> None:
    """One bit, and as nobody would notice by the file's time."""
    facts = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def _second_piece(saved: CutFolder) -> str:
    return saved.files[0].spans[1].sha256


def test_nothing_changes_and_all_arrives(wire_and_way: tuple[Wire, Way]) -> None:
    """Over the same way, without damage, the state is what it was."""
    _, way = wire_and_way
    saved = way.save()
    way.upload(saved)
    way.download(saved)
    assert (way.target / "state").read_bytes() == way.state


def test_a_byte_that_changes_on_the_source_s_disk_is_found_by_the_store(wire_and_way: tuple[Wire, Way]) -> None:
    """Between the writer's hash and the sending: the store takes no such piece."""
    _, way = wire_and_way
    saved = way.save()
    _spoil(way.source / "state", SPOILED)
    with pytest.raises(Refused, match="sha256"):
        way.upload(saved)
    assert not way.words.path(_second_piece(saved)).exists()


def test_a_byte_that_changes_on_the_way_to_the_store_is_found_by_it(wire_and_way: tuple[Wire, Way]) -> None:
    """However often it is sent: nothing is stored under a name that it does not have."""
    wire, way = wire_and_way
    saved, wire.spoils = way.save(), "up"
    with pytest.raises(Refused, match="sha256"):
        way.upload(saved)
    for sha256 in saved.contents:
        path = way.words.path(sha256)
        assert not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() == sha256


def test_a_byte_that_changes_in_the_store_is_found_by_the_target(wire_and_way: tuple[Wire, Way]) -> None:
    """sendfile hands on what the disk has, unread: the target names the piece that is damaged."""
    _, way = wire_and_way
    saved = way.save()
    way.upload(saved)
    _spoil(way.words.path(_second_piece(saved)), SPOILED - PIECE_BYTES)
    with pytest.raises(Corrupt) as found:
        way.download(saved)
    assert found.value.sha256 == _second_piece(saved)


def test_a_byte_that_changes_on_the_way_to_the_target_is_found_by_it(wire_and_way: tuple[Wire, Way]) -> None:
    """A wire that spoils every try makes the target give up."""
    wire, way = wire_and_way
    saved = way.save()
    way.upload(saved)
    wire.spoils = "down"
    with pytest.raises(Corrupt):
        way.download(saved)


def test_a_byte_that_changes_on_the_source_while_the_store_has_the_piece_is_found_before_the_commit(
    wire_and_way: tuple[Wire, Way],
) -> None:
    """What is not sent is not proven by the store, so the agent reads it."""
    _, way = wire_and_way
    saved = way.save()
    way.upload(saved)
    _spoil(way.source / "state", SPOILED)
    with pytest.raises(Changed, match="not what its note says"):
        way.prove(saved)


_HASHING = [noted_file, pieces, transfer, incoming, directory, fetching]


def test_each_party_hashes_the_bytes_once(wire_and_way: tuple[Wire, Way], monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer, who names them; the store, which believes no name; the target, which believes no disk and no wire."""
    _, way = wire_and_way
    hashed, lock = 0, threading.Lock()

    class Counting:
        def __init__(self, first: bytes = b"") -> None:
            self._digest = hashlib.sha256()
            self.update(first)

        def update(self, part: bytes | memoryview) -> None:
            nonlocal hashed
            with lock:
                hashed += len(part)
            self._digest.update(part)

        def hexdigest(self) -> str:
            return self._digest.hexdigest()

    for module in _HASHING:
        monkeypatch.setattr(module, "hashlib", SimpleNamespace(sha256=Counting), raising=False)
    saved = way.save()
    assert hashed == STATE_BYTES
    way.upload(saved)
    assert hashed == 2 * STATE_BYTES
    way.download(saved)
    assert hashed == 3 * STATE_BYTES
    assert (way.target / "state").read_bytes() == way.state
