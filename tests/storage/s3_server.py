"""An S3 service on loopback: moto keeps the objects, a gate in front does what moto leaves out.

The gate verifies every signature with botocore's own signer (not with the code under test), payload hashes, expiry
and signed lengths, and can be told to fail or to be lax in the ways that real services are.
"""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from app.storage.s3 import S3Store
from app.storage.s3_place import S3Place, s3_place
from tests.storage.object_server import MAX_OBJECT_BYTES, RealClock

ACCESS_KEY, SECRET_KEY = "AKIAALLPASSTESTS", "the+secret/of tests"
REGION = "eu-central-1"
_buckets = itertools.count()

Environ = dict[str, Any]
Answer = tuple[int, str, str]


@dataclass
class Gate:
    """How the service behaves. `refuse` sees each request (method, path, query) first and may answer it."""

    application: Any
    honours_payload_query: bool = True
    checks_checksums: bool = True
    honours_conditions: bool = True
    cut_bodies: int = 0  # so many answers to GET break off after half of their bytes
    refuse: Callable[[str, str, str], Answer | None] | None = None
    requests: list[tuple[str, str]] = field(default_factory=list)
    most_at_once: int = 0
    _at_once: int = 0
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _moto: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        with self._guard:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            self.requests.append((environ["REQUEST_METHOD"], f"{environ['PATH_INFO']}?{environ['QUERY_STRING']}"))
        try:
            length = int(environ.get("CONTENT_LENGTH") or 0)
            body = environ["wsgi.input"].read(length) if length else b""
            answer = self._answer(environ, body)
            if answer is not None:
                return _xml(answer, environ, start_response)
            environ["wsgi.input"] = io.BytesIO(body)
            if not self.honours_conditions:
                environ.pop("HTTP_IF_NONE_MATCH", None)
            with self._moto:  # a real service replaces objects atomically; moto closes them under their readers
                found = list(self.application(environ, start_response))
            return self._cut(environ, found)
        finally:
            with self._guard:
                self._at_once -= 1

    def reset(self) -> None:
        """Behave as a strict service, and forget what was asked."""
        self.honours_payload_query = self.checks_checksums = self.honours_conditions = True
        self.refuse = None
        self.cut_bodies = 0
        self.requests.clear()
        self.most_at_once = 0

    def count(self, method: str, text: str) -> int:
        return sum(1 for asked, path in self.requests if asked == method and text in path)

    def _cut(self, environ: Environ, body: list[bytes]) -> Iterable[bytes]:
        data = b"".join(body)
        if self.cut_bodies and environ["REQUEST_METHOD"] == "GET" and len(data) > 1000:
            self.cut_bodies -= 1
            yield data[: len(data) // 2]
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionResetError("cut by the test")
        yield data

    def _answer(self, environ: Environ, body: bytes) -> Answer | None:
        if self.refuse is not None:
            found = self.refuse(environ["REQUEST_METHOD"], environ["PATH_INFO"], environ["QUERY_STRING"])
            if found is not None:
                return found
        found = self._signature(environ, body)
        told = environ.get("HTTP_X_AMZ_CHECKSUM_SHA256")
        actual = base64.b64encode(hashlib.sha256(body).digest()).decode()
        if found is None and self.checks_checksums and told not in (None, actual):
            return 400, "BadDigest", "The SHA256 you specified did not match the calculated checksum."
        return found

    def _signature(self, environ: Environ, body: bytes) -> Answer | None:
        query = dict(parse_qsl(environ["QUERY_STRING"], keep_blank_values=True))
        if "X-Amz-Signature" in query:
            return self._signed_url(environ, body, query)
        parts = dict(
            part.strip().split("=", 1) for part in environ.get("HTTP_AUTHORIZATION", "").split(" ", 1)[-1].split(",")
        )
        headers = {name: _header(environ, name) for name in parts["SignedHeaders"].split(";")}
        payload = headers["x-amz-content-sha256"]
        refused = _check(
            environ, headers, parts["Credential"], parts["Signature"], headers["x-amz-date"], payload, query
        )
        if refused is None and hashlib.sha256(body).hexdigest() != payload:
            return 400, "XAmzContentSHA256Mismatch", "The provided hash does not match what was computed."
        return refused

    def _signed_url(self, environ: Environ, body: bytes, query: dict[str, str]) -> Answer | None:
        signature = query.pop("X-Amz-Signature")
        headers = {name: _header(environ, name) for name in query["X-Amz-SignedHeaders"].split(";")}
        unsigned = [name for name in environ if name.startswith("HTTP_X_AMZ_")]
        if any(name[5:].lower().replace("_", "-") not in headers for name in unsigned):
            return 403, "AccessDenied", "There were headers present in the request which were not signed"
        hashed = query.get("X-Amz-Content-Sha256") if self.honours_payload_query else None
        # A service that ignores the hash in the query still covers it as a part of the query.
        payloads = [hashed] if hashed else ["UNSIGNED-PAYLOAD", query.get("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")]
        refused: Answer | None = None
        for payload in payloads:
            refused = _check(
                environ, headers, query["X-Amz-Credential"], signature, query["X-Amz-Date"], payload, query
            )
            if refused is None:
                break
        if refused is not None:
            return refused
        begun = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        if datetime.now(UTC) >= begun + timedelta(seconds=int(query["X-Amz-Expires"])):
            return 403, "AccessDenied", "Request has expired"
        if hashed and hashlib.sha256(body).hexdigest() != hashed:
            return 400, "XAmzContentSHA256Mismatch", "The provided hash does not match what was computed."
        for name in [name for name in query if name.startswith("x-amz-meta-")]:
            environ["HTTP_" + name.upper().replace("-", "_")] = query[name]
        return None


class S3Server:
    """The service, its buckets, and stores that use it. `gate` is changed by tests."""

    def __init__(self) -> None:
        self.gate = Gate(DomainDispatcherApplication(create_backend_app))
        self._server = make_server("127.0.0.1", 0, self.gate, threaded=True, request_handler=_Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def new_bucket(self, region: str = REGION) -> str:
        name = f"allpass-tests-{next(_buckets)}"
        s3_backends[DEFAULT_ACCOUNT_ID]["aws"].create_bucket(name, region)
        return name

    def place(self, bucket: str, **other: Any) -> S3Place:
        settings: dict[str, Any] = {
            "endpoint": self.url,
            "public_endpoint": None,
            "region": REGION,
            "bucket": bucket,
            "prefix": "here/",
            "addressing": "auto",
            "access_key": ACCESS_KEY,
            "secret_key": SECRET_KEY,
        }
        return s3_place(**{**settings, **other})

    def store(self, bucket: str, *, part_bytes: int = 16 * 1024**2, attempts: int = 2, **other: Any) -> S3Store:
        return S3Store(
            self.place(bucket, **other),
            max_object_bytes=MAX_OBJECT_BYTES,
            clock=RealClock(),
            timeout_s=10.0,
            attempts=attempts,
            part_bytes=part_bytes,
        )

    def keys(self, bucket: str) -> list[str]:
        return sorted(s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets[bucket].keys)

    def uploads(self, bucket: str) -> list[str]:
        """Multipart uploads that are neither completed nor aborted."""
        return list(s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets[bucket].multiparts)


def _check(
    environ: Environ,
    headers: dict[str, str],
    credential: str,
    signature: str,
    moment: str,
    payload: str,
    query: dict[str, str],
) -> Answer | None:
    """Sign the request again with botocore and compare."""
    access_key, _day, region, *_ = credential.split("/")
    if access_key != ACCESS_KEY:
        return 403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records."
    if region != REGION:
        return 400, "AuthorizationHeaderMalformed", f"the region '{region}' is wrong; expecting '{REGION}'"
    signer = S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", region)
    raw_path = environ.get("RAW_URI", environ.get("REQUEST_URI", environ["PATH_INFO"])).split("?")[0]
    request = AWSRequest(
        environ["REQUEST_METHOD"],
        f"http://{environ['HTTP_HOST']}{raw_path}",
        headers={**headers, "x-amz-content-sha256": payload},
        params=query,
    )
    request.context["timestamp"] = moment
    canonical = signer.canonical_request(request)
    if "x-amz-content-sha256" not in headers:  # of a URL the hash is no header: take botocore's line for it out
        lines = [line for line in canonical.split("\n") if not line.startswith("x-amz-content-sha256:")]
        canonical = "\n".join(lines).replace(";x-amz-content-sha256\n", "\n")
    expected = signer.signature(signer.string_to_sign(request, canonical), request)
    if expected != signature:
        return 403, "SignatureDoesNotMatch", "The request signature we calculated does not match."
    return None


def _header(environ: Environ, name: str) -> str:
    plain = name.upper().replace("-", "_")
    return str(environ.get(plain if plain in ("CONTENT_LENGTH", "CONTENT_TYPE") else f"HTTP_{plain}", ""))


def _xml(answer: Answer, environ: Environ, start_response: Any) -> list[bytes]:
    status, code, message = answer
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    body = b"" if environ["REQUEST_METHOD"] == "HEAD" else text
    start_response(f"{status} no", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


class _Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_: object) -> None:
        """Requests are recorded by the gate."""
