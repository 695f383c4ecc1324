"""A hub of models on a free loopback port, as far as its library asks for one: what a model has, and its files."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

COMMIT = "c" * 40
BLOCK_BYTES = 1024 * 1024
LARGE_BYTES = 1000  # from here on files are named for their sha256


@dataclass
class Hub:
    """`models`: files by name. `got`: "model/file" as often as it was downloaded. `tokens`: what callers proved
    themselves with. Files named in `held` wait for `release`. `bytes_per_s`: of one connection; None: no
    limit."""

    url: str = ""
    models: dict[str, dict[str, bytes]] = field(default_factory=dict)
    got: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    release: threading.Event = field(default_factory=threading.Event)
    bytes_per_s: float | None = None

    def described(self, model: str) -> bytes:
        siblings = [{"rfilename": name, "size": len(data)} for name, data in self.models[model].items()]
        return json.dumps({"id": model, "modelId": model, "sha": COMMIT, "siblings": siblings}).encode()

    def listed(self, model: str) -> bytes:
        files = self.models[model].items()
        entries = [{"type": "file", "path": name, "size": len(data), "oid": blob_name(data)} for name, data in files]
        return json.dumps(entries).encode()


def blob_name(data: bytes) -> str:
    """What the hub calls a file by its content."""
    if len(data) >= LARGE_BYTES:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # as git names it


@contextmanager
def serving(models: dict[str, dict[str, bytes]]) -> Iterator[Hub]:
    """The hub, until the end of the block."""
    hub = Hub(models=models)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            return

        def do_HEAD(self) -> None:
            self._serve(with_body=False)

        def do_GET(self) -> None:
            self._serve(with_body=True)

        def _serve(self, *, with_body: bool) -> None:
            path = urlsplit(self.path).path.lstrip("/")
            if self.headers.get("Authorization"):
                hub.tokens.append(self.headers["Authorization"])
            model, _, rest = path.removeprefix("api/models/").partition("/resolve/")
            name = rest.partition("/")[2]  # after the revision
            data = hub.models.get(model, {}).get(name)
            if data is not None:
                if with_body:
                    hub.got.append(f"{model}/{name}")
                    if name in hub.held and not hub.release.wait(60):
                        raise AssertionError("nobody released the readers")
                self._answer(200, data, {"ETag": f'"{blob_name(data)}"', "X-Repo-Commit": COMMIT}, with_body=with_body)
            elif model in hub.models and not rest:
                self._answer(200, hub.described(model), {}, with_body=with_body)
            elif model.removesuffix("/tree/main") in hub.models:
                self._answer(200, hub.listed(model.removesuffix("/tree/main")), {}, with_body=with_body)
            else:
                self._answer(404, b"{}", {"X-Error-Code": "EntryNotFound"}, with_body=with_body)

        def _answer(self, status: int, body: bytes, headers: dict[str, str], *, with_body: bool) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self._send(body)

        def _send(self, body: bytes) -> None:
            began_s = time.monotonic()
            for sent in range(0, len(body), BLOCK_BYTES):
                if hub.bytes_per_s is not None:
                    time.sleep(max(0.0, began_s + sent / hub.bytes_per_s - time.monotonic()))
                self.wfile.write(body[sent : sent + BLOCK_BYTES])

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            return  # who is killed hangs up in the middle of things

    server = Server(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield hub
    finally:
        hub.release.set()
        server.shutdown()
        server.server_close()
