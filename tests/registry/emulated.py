"""A registry on loopback that speaks the Distribution API: token service, logins, limits, and lies on request."""

from __future__ import annotations

import hashlib
import json
import threading
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass
class EmulatedRegistry:
    """`auth`: bearer (as Docker Hub), basic (as a registry behind a proxy), or none. `private`: what needs the login
    robot/hush. `answers` are used up first: (status, headers, body)."""

    auth: str = "bearer"
    private: frozenset[str] = frozenset()
    content: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)  # path and Authorization
    host: str = ""
    realm: str = ""

    def put(self, repository: str, config: Mapping[str, Any], *, layers: tuple[int, ...] = (1_000_000,)) -> str:
        """An image's digest. Only its manifest and configuration exist: layers are never to be asked for."""
        blob = json.dumps(config).encode()
        self.content[f"{repository}/blobs/{digest_of(blob)}"] = ("application/octet-stream", blob)
        manifest = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": {"digest": digest_of(blob), "size": len(blob)},
            "layers": [{"digest": digest_of(str(size).encode()), "size": size} for size in layers],
        }
        return self.put_manifest(repository, manifest)

    def put_manifest(self, repository: str, manifest: Mapping[str, Any], tag: str | None = None) -> str:
        data = json.dumps(manifest).encode()
        digest = digest_of(data)
        for name in (digest, tag):
            if name:
                self.content[f"{repository}/manifests/{name}"] = (str(manifest["mediaType"]), data)
        return digest

    def tag(self, repository: str, tag: str, digest: str) -> None:
        self.content[f"{repository}/manifests/{tag}"] = self.content[f"{repository}/manifests/{digest}"]

    def put_index(self, repository: str, tag: str, digests: Mapping[str, str], *, kind: str = OCI_INDEX) -> str:
        """`digests` by platform; one of unknown/unknown is an attestation."""
        entries = []
        for platform, digest in digests.items():
            system, architecture = platform.split("/")
            entries.append({"digest": digest, "platform": {"os": system, "architecture": architecture}})
        return self.put_manifest(repository, {"mediaType": kind, "manifests": entries}, tag)

    def start(self) -> ThreadingHTTPServer:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                return

            def do_GET(self) -> None:
                status, headers, body = registry.answer(self.path, self.headers)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return server

    def answer(self, path: str, headers: Any) -> tuple[int, dict[str, str], bytes]:
        given = headers.get("Authorization", "")
        self.requests.append((path, given))
        if path.startswith("/token"):
            return self._token(path, given)
        if self.answers:
            return self.answers.pop(0)
        name = path.removeprefix("/v2/")
        repository = name.partition("/manifests/")[0].partition("/blobs/")[0]
        if not self._is_let_in(repository, given):
            return self._challenge(repository)
        kind, data = self.content.get(name, ("", b""))
        if not kind:
            return 404, {}, b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}'
        if "/manifests/" in name and kind not in headers.get("Accept", ""):
            return 404, {}, b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "not in a format you accept"}]}'
        return 200, {"Content-Type": kind}, data

    def _is_let_in(self, repository: str, given: str) -> bool:
        if self.auth == "none":
            return True
        if self.auth == "basic":
            return _login(given) == "robot:hush"
        return given == f"Bearer token-{repository}"

    def _challenge(self, repository: str) -> tuple[int, dict[str, str], bytes]:
        if self.auth == "basic":
            return 401, {"WWW-Authenticate": 'Basic realm="here"'}, b"{}"
        realm = self.realm or f"http://{self.host}/token"
        challenge = f'Bearer realm="{realm}",service="here",scope="repository:{repository}:pull"'
        return 401, {"WWW-Authenticate": challenge}, b'{"errors": [{"code": "UNAUTHORIZED"}]}'

    def _token(self, path: str, given: str) -> tuple[int, dict[str, str], bytes]:
        """As Docker Hub: who may not have it, or asks for what is not there, gets a token that opens nothing."""
        query = parse_qs(urlsplit(path).query)
        repository = query["scope"][0].split(":")[1]
        if given and _login(given) != "robot:hush":
            return 401, {}, b'{"details": "incorrect username or password"}'
        known = any(name.startswith(f"{repository}/") for name in self.content)
        opens = known and (repository not in self.private or bool(given))
        assert query["service"] == ["here"]
        return 200, {}, json.dumps({"token": f"token-{repository if opens else 'of-nothing'}"}).encode()


def _login(header: str) -> str:
    kind, _, text = header.partition(" ")
    return b64decode(text).decode() if kind == "Basic" else ""
