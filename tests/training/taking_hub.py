"""A hub on a free loopback port, as far as its library puts files into a repository: small ones inside of a commit,
large ones before it."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

LARGE_BYTES = 10_000


@dataclass
class TakingHub:
    """`tokens`: who may write where: repositories by token. `private`: what was made so. `files`: of each repository,
    after its newest commit. `commits_fail`: the status of the next commits, in order."""

    url: str = ""
    tokens: dict[str, set[str]] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    commits_fail: list[int] = field(default_factory=list)
    commits: int = 0
    stored: dict[str, bytes] = field(default_factory=dict)  # large contents, by their sha256

    def post(self, path: str, body: bytes, writes: set[str]) -> tuple[int, Any]:
        if path == "/api/repos/create":
            return self._create(json.loads(body), writes)
        repository = path.removeprefix("/api/models/").removeprefix("/").partition(".git/")[0]
        repository = "/".join(repository.split("/")[:2])
        if repository not in writes:
            return 403, {"error": "You do not have write access to this repository."}
        if "/preupload/" in path:
            return 200, {"files": [self._mode(one) for one in json.loads(body)["files"]]}
        if path.endswith("/info/lfs/objects/batch"):
            return 200, {"transfer": "basic", "objects": [self._place(one) for one in json.loads(body)["objects"]]}
        if "/commit/" in path:
            return self._commit(repository, body)
        return 404, {"error": f"nothing here: {path}"}

    def _create(self, asked: dict[str, Any], writes: set[str]) -> tuple[int, Any]:
        repository = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
        if repository not in writes:
            return 403, {"error": "You don't have the rights to create a model under this namespace"}
        if repository in self.files:
            return 409, {"error": "You already created this model repo", "url": f"{self.url}/{repository}"}
        self.files[repository] = {}
        self.private[repository] = bool(asked.get("private") or asked.get("visibility") == "private")
        return 200, {"url": f"{self.url}/{repository}", "name": repository}

    @staticmethod
    def _mode(one: dict[str, Any]) -> dict[str, Any]:
        mode = "lfs" if one["size"] >= LARGE_BYTES else "regular"
        return {"path": one["path"], "uploadMode": mode, "shouldIgnore": False}

    def _place(self, one: dict[str, Any]) -> dict[str, Any]:
        if one["oid"] in self.stored:
            return one
        return {**one, "actions": {"upload": {"href": f"{self.url}/large/{one['oid']}"}}}

    def _commit(self, repository: str, body: bytes) -> tuple[int, Any]:
        if self.commits_fail:
            return self.commits_fail.pop(0), {"error": "the hub is not well today"}
        for line in body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "file":
                self.files[repository][value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                self.files[repository][value["path"]] = self.stored[value["oid"]]
        self.commits += 1
        return 200, {"commitUrl": f"{self.url}/{repository}/commit/{'c' * 40}", "commitOid": "c" * 40}


@contextmanager
def taking(tokens: dict[str, set[str]]) -> Iterator[TakingHub]:
    """The hub, until the end of the block."""
    hub = TakingHub(tokens=tokens)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            return

        def do_GET(self) -> None:
            repository = "/".join(self._path().split("/")[3:5])
            self._answer(200 if repository in self._writes() else 403, {})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if not self.headers.get("Authorization"):
                self._answer(401, {"error": "Invalid credentials"})
                return
            self._answer(*hub.post(self._path(), body, self._writes()))

        def do_PUT(self) -> None:
            hub.stored[self._path().rpartition("/")[2]] = self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(200, {})

        def _path(self) -> str:
            return urlsplit(self.path).path

        def _writes(self) -> set[str]:
            return hub.tokens.get((self.headers.get("Authorization") or "").removeprefix("Bearer "), set())

        def _answer(self, status: int, told: Any) -> None:
            body = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
