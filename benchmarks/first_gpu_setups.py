"""Set-ups that are wrong, and the servers that make them so."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOST, PUBLIC = "127.0.0.1", "11.0.0.1"  # of loopback in a network of the benchmark's own; the second is no private one
API, STORE = f"http://{HOST}:7700", f"http://{HOST}:7701"


@dataclass(frozen=True)
class Setup:
    """`settings` over those that are right ("" takes one away), and the `code` that has to be among the findings.
    `credit_micros`: what the emulated account has."""

    name: str
    code: str
    settings: Mapping[str, str] = field(default_factory=dict)
    credit_micros: int = 0


class Front(BaseHTTPRequestHandler):
    """A proxy with a habit, which is the server's name."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        habit, upstream = self.server.habit, self.server.upstream  # type: ignore[attr-defined]  # set below
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if habit == "login":
            self._answer(200, b"<html>please log in</html>")
        elif habit == "redirect":
            self._answer(301, b"", {"Location": API + self.path})
        elif habit == "small" and len(body) > 1_000_000:
            self._answer(413, b"too large")
        else:
            self._pass_on(habit, upstream, body)

    do_POST = do_PUT = do_HEAD = do_DELETE = do_GET  # noqa: N815 (the names that the server looks for)

    def _pass_on(self, habit: str, upstream: tuple[str, int], body: bytes) -> None:
        left_out = {"host", "connection", *({"range"} if habit == "whole" else ())}
        headers = {name: value for name, value in self.headers.items() if name.lower() not in left_out}
        connection = HTTPConnection(*upstream, timeout=60)
        try:
            connection.request(self.command, self.path, body or None, headers)
            answer = connection.getresponse()
            content = answer.read()
        except OSError:
            self._answer(502, b"bad gateway")
            return
        finally:
            connection.close()
        if habit == "changes":
            content = content[::-1]
        kept = {name: value for name in ("Content-Type", "Content-Range") if (value := answer.headers.get(name))}
        self._answer(answer.status, content, kept)

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        late_s = 3600 if self.server.habit == "late" else 0  # type: ignore[attr-defined]  # set below
        self.send_response_only(status)
        self.send_header("Date", formatdate(time.time() - late_s, usegmt=True))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def front(habit: str, upstream: str) -> Iterator[str]:
    """The address of a proxy before `upstream`."""
    server = ThreadingHTTPServer((HOST, 0), Front)
    host, _, port = upstream.removeprefix("http://").partition(":")
    server.habit, server.upstream = habit, (host, int(port))  # type: ignore[attr-defined]  # read by the handler
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def setups(fronts: Mapping[str, str], vast_port: int, empty_database: str) -> list[Setup]:
    """Each beside a set-up in which nothing is wrong. `fronts`: addresses by habit."""
    public = {"ALLPASS_VAST_URL": f"http://{PUBLIC}:{vast_port}", "ALLPASS_PRIVATE_ADDRESSES": ""}
    service = {
        "ALLPASS_SECRET_KEY": "s" * 40, "ALLPASS_OBJECTS_SIGNING_KEY": "o" * 40, "ALLPASS_DATABASE_URL": empty_database,
    }  # fmt: skip

    def api(habit: str) -> dict[str, str]:
        return {"ALLPASS_PUBLIC_URL": fronts[habit]}

    def store(habit: str) -> dict[str, str]:
        return {"ALLPASS_OBJECTS_URL": fronts[f"store {habit}"]}

    return [
        Setup("no key", "no_account", {"ALLPASS_VAST_API_KEY": ""}),
        Setup("a wrong key", "provider_auth_failed", {"ALLPASS_VAST_API_KEY": "w" * 40}),
        Setup("half a token", "setting_wrong", {"ALLPASS_MODAL_TOKEN_ID": "ak-1"}),
        Setup("no SSH key at Lambda", "setting_wrong", {"ALLPASS_LAMBDA_API_KEY": "l" * 40}),
        Setup("a company that does not answer", "provider_transient", {"ALLPASS_VAST_URL": f"http://{HOST}:9"}),
        Setup("no credit", "account_no_credit", credit_micros=1),
        Setup("a loopback address", "address_private", {**public, "ALLPASS_PUBLIC_URL": API}),
        Setup("a private store", "address_private", {**public, "ALLPASS_OBJECTS_URL": "http://10.0.0.5:7701"}),
        Setup("no TLS", "address_not_encrypted", {**public, "ALLPASS_PUBLIC_URL": f"http://{PUBLIC}:7700"}),
        Setup("no web address", "address_not_http", {**public, "ALLPASS_PUBLIC_URL": "gpu.example.com"}),
        Setup("a password in the address", "address_has_password", {"ALLPASS_PUBLIC_URL": f"http://a:b@{HOST}:7700"}),
        Setup("a name that nobody knows", "public_url_name_unknown", {"ALLPASS_PUBLIC_URL": "http://nobody.invalid"}),
        Setup("nobody listens", "public_url_refused", {"ALLPASS_PUBLIC_URL": f"http://{HOST}:9"}),
        Setup("a login page", "public_url_somebody_else", api("login")),
        Setup("a redirect", "public_url_redirects", api("redirect")),
        Setup("a tunnel that is down", "public_url_nothing_behind", api("down")),
        Setup("small bodies", "large_report_refused", api("small")),
        Setup("no store", "store_refused", {"ALLPASS_OBJECTS_URL": f"http://{HOST}:9"}),
        Setup("a store behind small bodies", "store_body_limit", store("small")),
        Setup("a cache before the store", "store_changes_bytes", store("changes")),
        Setup("no parts", "store_no_ranges", store("whole")),
        Setup("an image of nobody", "image_not_published", {**public, "ALLPASS_NODE_IMAGE": "allpass/node:1"}),
        Setup("no name of an image", "setting_wrong", {**public, "ALLPASS_NODE_IMAGE": "You/Node:"}),
        Setup("a clock that is off", "clock_off", {"ALLPASS_VAST_URL": fronts["late"]}),
        Setup("a setting that is none", "setting_wrong", {"ALLPASS_POLL_S": "soon"}),
        Setup("a database without tables", "database_conflict", service),
        Setup(
            "no database", "database_unavailable", {**service, "ALLPASS_DATABASE_URL": f"postgresql://a@{HOST}:9/none"}
        ),
    ]  # fmt: skip
