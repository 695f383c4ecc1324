"""Bytes by signed URL, both ways: streamed, verified, in parallel, with fresh URLs whenever a try failed."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, Callable, Dict, Iterator, List, Mapping, Sequence

from workers.agent.api import Api, Writer, refusal
from workers.agent.errors import Aborted, Changed, Corrupt, Fenced, Refused, Unreachable
from workers.agent.files import BLOCK_BYTES, Piece
from workers.agent.patience import Backoff, patiently
from workers.agent.transport import Transport

PARALLEL = 4
FAULTS_ALLOWED = 3
STALL_TIMEOUT_S = 60.0
Source = Callable[[Piece], BinaryIO]


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

    def fetch(piece: Piece) -> None:
        _fetch_patiently(api, transport, writer, piece, urls.get(piece.sha256), folder / piece.path, gone)

    _in_parallel(fetch, pieces)


def store(
    transport: Transport,
    pieces: Sequence[Piece],
    source: Source,
    ask: Callable[[], Mapping[str, str]],
    confirm: Callable[[], None],
    gone: threading.Event,
) -> None:
    """Send what the store lacks of `pieces`, then `confirm`.

    `ask` gives the URLs (sha256 -> URL) of what is lacking; it is asked again after each failure, so that a broken
    upload goes on where it stopped and an expired URL is replaced. An unreachable server is waited for; anything
    refused three times raises Refused; also raises Fenced, Changed and Aborted.
    """
    by_hash = {piece.sha256: piece for piece in pieces}
    backoff, faults = Backoff(), 0
    while True:
        if gone.is_set():
            raise Aborted("no longer wanted")
        try:
            urls = ask()
            lacking = [(by_hash[sha256], url) for sha256, url in sorted(urls.items()) if sha256 in by_hash]
            _in_parallel(lambda pair: _send(transport, pair[0], source, pair[1], gone), lacking)
            confirm()
        except Fenced:
            raise
        except Refused:
            faults += 1
            if faults >= FAULTS_ALLOWED:
                raise
            gone.wait(backoff.next_s())
        except Unreachable:
            gone.wait(backoff.next_s())
        else:
            return


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
                _fetch(transport, str(url), piece, target, gone)
                return
        except Fenced:
            raise
        except (Corrupt, Refused) as error:
            faults, reason = faults + 1, str(error)
        except Unreachable:
            gone.wait(backoff.next_s())
        url = None  # a fresh one for the next try
    raise Corrupt(f"{piece.path}: {reason}")


def _fetch(transport: Transport, url: str, piece: Piece, target: Path, gone: threading.Event) -> None:
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


def _send(transport: Transport, piece: Piece, source: Source, url: str, gone: threading.Event) -> None:
    with source(piece) as file:
        headers = {"Content-Length": str(piece.size_bytes)}
        body = _exactly(file, piece, gone)
        with transport.exchange("PUT", url, headers=headers, body=body, timeout_s=STALL_TIMEOUT_S) as answer:
            text = answer.read()
            if answer.status >= 300:
                raise refusal(answer.status, text)


def _exactly(file: BinaryIO, piece: Piece, gone: threading.Event) -> Iterator[bytes]:
    left = piece.size_bytes
    while left > 0:
        if gone.is_set():
            raise Aborted("no longer wanted")
        block = file.read(min(BLOCK_BYTES, left))
        if not block:
            raise Changed(f"{piece.path} became shorter while it was sent")
        left -= len(block)
        yield block


def _in_parallel(work: Callable[..., None], items: Sequence[object]) -> None:
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
