"""Proxies that stand between the internet and a service, each with one habit that breaks something."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

IMPATIENT_S = 3  # long enough for what a busy machine answers at once
_METHODS = ["GET", "POST", "PUT", "HEAD", "DELETE"]


class _Quiet(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]  # of a test's own loop: Ctrl-C is for pytest
        yield


@asynccontextmanager
async def serving(app: ASGIApp, *, certificate: Path | None = None) -> AsyncIterator[str]:
    """The address of an application on a free port of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        files = {} if certificate is None else {"ssl_certfile": str(certificate), "ssl_keyfile": str(certificate)}
        server = _Quiet(uvicorn.Config(app, log_level="critical", lifespan="off", ws="none", loop="none", **files))
        task = asyncio.create_task(server.serve([listening]))
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            scheme = "http" if certificate is None else "https"
            yield f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = server.force_exit = True
            await task


def front(upstream: str, habit: str = "none") -> Starlette:
    """Passes everything on to `upstream`, but for its habit."""

    async def handle(request: Request) -> Response:
        early = _at_once(request, habit, upstream)
        if early is not None:
            return early
        body = await request.body()
        if habit == "small bodies" and len(body) > 1_000_000:
            return PlainTextResponse("Request Entity Too Large", status_code=413)
        drop = {"host", "range"} if habit == "no ranges" else {"host"}
        headers = {name: value for name, value in request.headers.items() if name not in drop}
        limit_s = IMPATIENT_S if habit == "impatient" else 60.0
        async with httpx.AsyncClient(trust_env=False, timeout=limit_s) as http:
            url = f"{upstream}{request.url.path}?{request.url.query}"
            try:
                answer = await http.request(request.method, url, content=body, headers=headers)
            except httpx.TimeoutException:
                return PlainTextResponse("Gateway Timeout", status_code=504)
            except httpx.HTTPError:
                return PlainTextResponse("Bad Gateway", status_code=502)
        content = answer.content[::-1] if habit == "changes bytes" else answer.content
        kept = {name: value for name, value in answer.headers.items() if name in {"content-type", "content-range"}}
        return Response(content, answer.status_code, kept)

    return Starlette(routes=[Route("/{path:path}", handle, methods=_METHODS)])


def _at_once(request: Request, habit: str, upstream: str) -> Response | None:
    if habit == "redirects":
        return RedirectResponse(f"{upstream}{request.url.path}", status_code=308)
    if habit == "login page":
        return PlainTextResponse("<html>Please log in</html>")
    return None


def own_certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A self-signed certificate for 127.0.0.1, and authorities that accept it."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = folder / "own.pem"
    file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return file, ssl.create_default_context(cadata=made.public_bytes(serialization.Encoding.PEM).decode())
