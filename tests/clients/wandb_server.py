"""W&B as far as a run needs it: the GraphQL that its library asks with, and the stream of a run's files."""

from __future__ import annotations

import gzip
import json
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "k" * 40


@dataclass
class KeptRun:
    """`lines`: of its history, as they lie there. `told`: what it was opened with, each time."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    told: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class WandbServer:
    """`refuses`: every key. `stalls`: no question is answered until the test is over."""

    refuses: bool = False
    stalls: bool = False
    runs: dict[tuple[str, str], KeptRun] = field(default_factory=dict)
    url: str = ""
    is_over: threading.Event = field(default_factory=threading.Event)

    def graphql(self, query: str, told: dict[str, Any]) -> dict[str, Any]:
        if "mutation UpsertBucket" in query:
            run = self.runs.setdefault((told["project"], told["name"]), KeptRun())
            run.told.append(told)
            return {"upsertBucket": {"bucket": self.bucket(told["project"], told["name"]), "inserted": True}}
        if "query RunResumeStatus" in query:
            if (told["project"], told["name"]) not in self.runs:
                return {"model": None}
            return {"model": {"bucket": self.bucket(told["project"], told["name"]), **self.project(told["project"])}}
        if "mutation CreateRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in told["files"]]
            return {"createRunFiles": {"runID": "one", "uploadHeaders": [], "files": files}}
        return {}

    def project(self, name: str) -> dict[str, Any]:
        return {"id": "p1", "name": name, "entity": {"id": "e1", "name": "team"}}

    def bucket(self, project: str, name: str) -> dict[str, Any]:
        run = self.runs[project, name]
        tail = [json.dumps(line) for line in run.lines[-1:]]
        return {
            "id": "b1", "name": name, "displayName": run.told[0].get("displayName"), "description": None,
            "sweepName": None,
            "config": run.told[0].get("config") or "{}", "project": self.project(project), "tags": [], "notes": "",
            "summaryMetrics": json.dumps(run.lines[-1]) if run.lines else "{}", "logLineCount": 0, "eventsLineCount": 0,
            "historyLineCount": len(run.lines), "historyTail": json.dumps(tail), "eventsTail": "[]",
            "wandbConfig": '{"t": 1}',
        }  # fmt: skip

    def stream(self, project: str, name: str, body: dict[str, Any]) -> None:
        history = body.get("files", {}).get("wandb-history.jsonl")
        if history is not None:
            run = self.runs[project, name]
            del run.lines[history["offset"] :]
            run.lines += [json.loads(line) for line in history["content"]]


@contextmanager
def serving(**options: Any) -> Iterator[WandbServer]:
    server = WandbServer(**options)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *told: Any) -> None: ...

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            if server.stalls:
                server.is_over.wait(60)
            if self.path.startswith("/sdk/"):
                return self.answer(404, {})
            name = b64decode(self.headers.get("authorization", "").partition(" ")[2]).decode()
            if server.refuses or (name != f"api:{KEY}" and not self.path.startswith("/upload/")):
                return self.answer(401, {"errors": [{"message": "user is not logged in"}]})
            if self.path == "/graphql":
                asked = json.loads(body)
                return self.answer(200, {"data": server.graphql(asked["query"], asked["variables"])})
            if self.path.endswith("/file_stream"):
                *_, project, run, _ = self.path.split("/")
                server.stream(project, run, json.loads(body))
            return self.answer(200, {"exitcode": None, "limits": {}})

        do_PUT = do_POST  # noqa: N815 - its base finds it by this name

        def answer(self, status: int, told: dict[str, Any]) -> None:
            content = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.is_over.set()
        http.shutdown()
        http.server_close()
