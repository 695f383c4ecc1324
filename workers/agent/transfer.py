"""Bytes by signed URL, both ways: streamed, verified, in parallel, with fresh URLs whenever a try failed."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, Callable, Dict, Iterator, List, Mapping, Sequence, Tuple

from workers.agent.api import Api, Writer, refusal
from workers.agent.errors import Aborted, Changed, Corrupt, Fenced, Full, Refused, Unreachable
from workers.agent.files import BLOCK_BYTES, Piece
from workers.agent.patience import LONGEST_PAUSE_S, Backoff, patiently
from workers.agent.pieces import Content
from workers.agent.transport import FileBody, Transport

PARALLEL = 4
FAULTS_ALLOWED = 3
STALL_TIMEOUT_S = 60.0
FRESH_S = 300.0  # a third of how long the server's URLs hold
SENDFILE_BYTES = 4 * 1024 * 1024
SMALL_BYTES = 64 * 1024


def download(
    api: Api, transport: Transport, writer: Writer, pieces: Sequence[Piece], folder: Path, gone: threading.Event
) -> None:
    """Fetch `pieces` into `folder` under their paths; each is verified before it gets its name.

    Raises Corrupt, naming the file, when three tries gave wrong bytes or none; Refused, Fenced, Aborted.
    """
    for piece in pieces:
        if piece.path.startswith("/") or ".." in piece.path.split("/"):
            raise Corrupt(f"{piece.path}: leads out of its folder")
    urls = patiently(lambda: api.downloads(writer, sorted({piece.sha256 for piece in pieces})), gone)

    def fetch_one(piece: Piece) -> None:
        _fetch_patiently(api, transport, writer, piece, urls.get(piece.sha256), folder / piece.path, gone)

    in_parallel(fetch_one, pieces)


def store(
    transport: Transport,
    contents: Mapping[str, Content],
    ask: Callable[[], Mapping[str, str]],
    confirm: Callable[[], None],
    gone: threading.Event,
    on_sent: Callable[[Content], None] = lambda _: None,
    on_full: Callable[[Full], None] = lambda _: None,
    *,
    longest_pause_s: float = LONGEST_PAUSE_S,
) -> int:
    """Send what the store lacks of `contents`, then `confirm`; the number of bytes that were sent. `on_sent` is called
    with each piece, from several threads.

    `ask` gives the URLs (sha256 -> URL) of what is lacking; it is asked again after each failure, so that a broken
    upload goes on where it stopped, and every `FRESH_S`, since URLs hold for a while. An unreachable server is waited
    for, and so is a store without room (`on_full` is called then); what is refused three times, without anything taken
    in between, raises Refused; also raises Fenced, Changed and Aborted.
    """
    backoff, faults = Backoff(cap_s=longest_pause_s), 0
    sent: List[int] = []
    while True:
        if gone.is_set():
            raise Aborted("no longer wanted")
        before = len(sent)
        try:
            urls, asked_s = ask(), time.monotonic()
            lacking = [(contents[sha256], url) for sha256, url in sorted(urls.items()) if sha256 in contents]
            left_out: List[str] = []

            def send_one(pair: Tuple[Content, str]) -> None:
                if time.monotonic() - asked_s > FRESH_S:  # noqa: B023 - it runs within this turn
                    left_out.append(pair[0].sha256)  # noqa: B023
                    return
                send(transport, pair[0], pair[1], gone)
                sent.append(pair[0].size_bytes)
                on_sent(pair[0])

            in_parallel(send_one, lacking)
            if left_out:
                continue
            confirm()
        except Fenced:
            raise
        except Refused:
            faults = 1 if len(sent) > before else faults + 1
            if faults >= FAULTS_ALLOWED:
                raise
            gone.wait(backoff.next_s())
        except Unreachable as error:
            if isinstance(error, Full):
                on_full(error)
            if len(sent) > before:
                backoff.reset()
            gone.wait(backoff.next_s())
        else:
            return sum(sent)


def _fetch_patiently(
    api: Api, transport: Transport, writer: Writer, piece: Piece, url: object, target: Path, gone: threading.Event
) -> None:
    backoff, faults, reason = Backoff(), 0, "the server gave no URL for it"
    while faults < FAULTS_ALLOWED:
        if gone.is_set():
            raise Aborted("no longer wanted")
        try:
            if not isinstance(url, str):
                url = api.downloads(writer, [piece.sha256]).get(piece.sha256)
            if url is None:
                faults += 1
            else:
                fetch(transport, str(url), piece, target, gone)
                return
        except Fenced:
            raise
        except (Corrupt, Refused) as error:
            faults, reason = faults + 1, str(error)
        except Unreachable:
            gone.wait(backoff.next_s())
        url = None  # a fresh one for the next try
    raise Corrupt(f"{piece.path}: {reason}")


def fetch(transport: Transport, url: str, piece: Piece, target: Path, gone: threading.Event) -> None:
    """One try, into `target`, which is whole or absent. Raises Corrupt, Refused, Unreachable, Aborted; OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".allpass-part")
    digest, size = hashlib.sha256(), 0
    try:
        with transport.exchange("GET", url, headers={}, timeout_s=STALL_TIMEOUT_S) as answer, part.open("wb") as file:
            if answer.status != 200:
                raise refusal(answer.status, answer.read(4096))
            for block in iter(lambda: answer.read(BLOCK_BYTES), b""):
                if gone.is_set():
                    raise Aborted("no longer wanted")
                digest.update(block)
                size += len(block)
                if size > piece.size_bytes:
                    raise Corrupt(f"more than the promised {piece.size_bytes} bytes came")
                file.write(block)
        if digest.hexdigest() != piece.sha256:
            raise Corrupt(f"sha256 is {digest.hexdigest()}, expected {piece.sha256} ({size} bytes)")
        part.replace(target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()


def send(transport: Transport, content: Content, url: str, gone: threading.Event) -> None:
    """Store one piece. Raises Unreachable, Refused, Changed, Unsafe, Aborted; OSError."""
    headers = {"Content-Length": str(content.size_bytes)}
    body = _ContentBody(content, gone)
    with transport.exchange("PUT", url, headers=headers, body=body, timeout_s=STALL_TIMEOUT_S) as answer:
        text = answer.read()
        if answer.status >= 300:
            raise refusal(answer.status, text)


class _ContentBody(FileBody):
    def __init__(self, content: Content, gone: threading.Event) -> None:
        self._content = content
        self._gone = gone

    def blocks(self) -> Iterator[bytes]:
        """Many small files make one block: each of its own would be a packet."""
        gathered = bytearray()
        for file, offset, length in self._stretches(BLOCK_BYTES):
            gathered += _read(file, offset, length)
            if len(gathered) >= BLOCK_BYTES:
                yield bytes(gathered)
                gathered.clear()
        if gathered:
            yield bytes(gathered)

    def send(self, connection: socket.socket) -> None:
        gathered = bytearray()
        for file, offset, length in self._stretches(SENDFILE_BYTES):
            if length < SMALL_BYTES:
                gathered += _read(file, offset, length)
            if gathered and (length >= SMALL_BYTES or len(gathered) >= BLOCK_BYTES):
                connection.sendall(gathered)
                gathered.clear()
            if length >= SMALL_BYTES and connection.sendfile(file, offset, length) < length:
                raise Changed("a file became shorter while it was sent")
        if gathered:
            connection.sendall(gathered)

    def _stretches(self, most_bytes: int) -> Iterator[Tuple[BinaryIO, int, int]]:
        for file, offset, length in self._content.files():
            for start in range(offset, offset + length, most_bytes):
                if self._gone.is_set():
                    raise Aborted("no longer wanted")
                yield file, start, min(most_bytes, offset + length - start)


def _read(file: BinaryIO, offset: int, length: int) -> bytes:
    file.seek(offset)
    block = file.read(length)
    if len(block) < length:
        raise Changed("a file became shorter while it was sent")
    return block


def in_parallel(work: Callable[..., None], items: Sequence[object]) -> None:
    """Run `work` on each item; the first error is raised when all are through."""
    if len(items) <= 1:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="transfer") as pool:
        futures = [pool.submit(work, item) for item in items]
    for future in futures:
        future.result()


def distinct(pieces: Sequence[Piece]) -> List[Dict[str, object]]:
    """The wire form of `pieces`, each content once."""
    return [piece.as_wire() for piece in {piece.sha256: piece for piece in pieces}.values()]
