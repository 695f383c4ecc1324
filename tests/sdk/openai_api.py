"""OpenAI's API of files and fine-tunings, as far as reading goes, behind a real socket on loopback.

It speaks the wire that OpenAI's own client understands (`test_openai_api.py` asks it with that client). `faults` are
used up by one request each: a reply to give, or None for "answer as usual"; `instead` are replies by path that stay.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

KEY = "sk-proj-of-the-tests-0123456789"
MODEL = "gpt-4o-mini-2024-07-18"
CREATED = 1_750_000_000
ORGANIZATION = "org-example"


@dataclass
class Reply:
    """`cut`: so many bytes are missing at the end, and the connection breaks there."""

    status: int
    body: bytes | dict[str, Any] = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut: int = 0

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


def problem(status: int, message: str, code: str | None = None, param: str | None = None, **headers: str) -> Reply:
    """An error as OpenAI writes it."""
    kind = {401: "invalid_request_error", 429: "requests", 500: "server_error"}.get(status, "invalid_request_error")
    told = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return Reply(status, told, {name.replace("_", "-"): value for name, value in headers.items()})


@dataclass
class OpenAiApi:
    """`jobs`: newest first. `requests`: path with query, and the headers, of each that arrived."""

    files: dict[str, tuple[dict[str, Any], bytes]] = field(default_factory=dict)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    events: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    checkpoints: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    faults: list[Reply | None] = field(default_factory=list)
    instead: dict[str, Reply] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    url: str = ""

    def paths(self) -> list[str]:
        return [urlsplit(path).path.removeprefix("/v1") for path, _ in self.requests]

    def add_file(self, content: bytes, purpose: str = "fine-tune", name: str = "train.jsonl") -> str:
        file_id = f"file-{len(self.files):024}"
        told = {"id": file_id, "object": "file", "bytes": len(content), "created_at": CREATED, "filename": name}
        self.files[file_id] = ({**told, "purpose": purpose, "status": "processed", "status_details": None}, content)
        return file_id

    def add_job(self, training_file: str, *, steps: int = 6, **changes: Any) -> dict[str, Any]:
        """One that has succeeded after `steps` steps and three epochs; now the newest."""
        number = len(self.jobs)
        job_id = f"ftjob-{number:024}"
        numbers = {"n_epochs": 3, "batch_size": 1, "learning_rate_multiplier": 1.8}
        table = "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy\n" + "".join(
            f"{step},{2 / step:.5f},{0.5 + step / 100},{2.2 / step if step % 3 == 0 else ''},\n"
            for step in range(1, steps + 1)
        )
        results = self.add_file(base64.b64encode(table.encode()), "fine-tune-results", "step_metrics.csv")
        job: dict[str, Any] = {
            "object": "fine_tuning.job", "id": job_id, "model": MODEL, "created_at": CREATED + number,
            "finished_at": CREATED + number + 900, "fine_tuned_model": f"ft:{MODEL}:example:sums:{number:08}",
            "organization_id": ORGANIZATION, "result_files": [results], "status": "succeeded",
            "validation_file": None, "training_file": training_file, "hyperparameters": numbers,
            "trained_tokens": 5768, "error": None, "seed": 683058546, "estimated_finish": None, "integrations": [],
            "metadata": None, "method": {"type": "supervised", "supervised": {"hyperparameters": numbers}},
            **changes,
        }  # fmt: skip
        self.jobs.insert(0, job)
        self.events[job_id] = [_event(job_id, step, steps) for step in range(steps, 0, -1)]
        self.events[job_id].append(_message(job_id, f"Created fine-tuning job: {job_id}"))
        self.checkpoints[job_id] = [_checkpoint(job, step) for step in (steps, steps // 2)]
        return job

    def answer(self, method: str, path: str, headers: dict[str, str]) -> Reply:
        self.requests.append((path, headers))
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            return fault
        parts = urlsplit(path)
        if headers.get("authorization") != f"Bearer {KEY}":
            return problem(
                401,
                f"Incorrect API key provided: {headers.get('authorization', '')[7:15]}****. You can find your API key "
                "at https://platform.openai.com/account/api-keys.",
                "invalid_api_key",
            )
        route = parts.path.removeprefix("/v1")
        if route in self.instead:
            return self.instead[route]
        return self._route(method, route, {name: values[0] for name, values in parse_qs(parts.query).items()})

    def _route(self, method: str, route: str, query: dict[str, str]) -> Reply:  # noqa: PLR0911  (a table of routes)
        match [method, *route.strip("/").split("/")]:
            case ["GET", "files", file_id]:
                return self._file(file_id, content=False)
            case ["GET", "files", file_id, "content"]:
                return self._file(file_id, content=True)
            case ["GET", "fine_tuning", "jobs"]:
                return _page(self.jobs, query)
            case ["GET", "fine_tuning", "jobs", job_id, *rest] if any(one["id"] == job_id for one in self.jobs):
                if not rest:
                    return Reply(200, next(one for one in self.jobs if one["id"] == job_id))
                if rest in (["events"], ["checkpoints"]):
                    return _page(getattr(self, rest[0]).get(job_id, []), query)
            case ["GET", "fine_tuning", "jobs", job_id, *_]:
                return problem(404, f"Could not find fine tune: {job_id}", "fine_tune_not_found", "fine_tune_id")
        return problem(404, f"Invalid URL ({method} /v1{route})")

    def _file(self, file_id: str, *, content: bool) -> Reply:
        if file_id not in self.files:
            return problem(404, f"No such File object: {file_id}", param="id")
        told, stored = self.files[file_id]
        return Reply(200, stored, {"content-type": "application/octet-stream"}) if content else Reply(200, told)


@contextmanager
def serving(api: OpenAiApi) -> Iterator[str]:
    """The address of it, with `/v1`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            reply = api.answer("GET", self.path, {name.lower(): value for name, value in self.headers.items()})
            content = reply.content
            self.send_response(reply.status)
            for name, value in {"content-type": "application/json", **reply.headers}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) - reply.cut])
            self.close_connection = bool(reply.cut)

        def log_message(self, format: str, *args: Any) -> None:
            """Tests look at `api.requests`."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    api.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield api.url
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _page(items: list[Any], query: dict[str, str]) -> Reply:
    limit = int(query.get("limit", "20"))
    if not 1 <= limit <= 100:
        return problem(400, f"{limit} is not between 1 and 100", "invalid_value", "limit")
    ids = [one["id"] for one in items]
    start = ids.index(query["after"]) + 1 if "after" in query else 0
    shown = items[start : start + limit]
    return Reply(200, {"object": "list", "data": shown, "has_more": start + limit < len(items)})


def _event(job_id: str, step: int, steps: int) -> dict[str, Any]:
    loss = 2 / step
    data = {"step": step, "total_steps": steps, "train_loss": loss, "train_mean_token_accuracy": 0.5 + step / 100}
    told = _message(job_id, f"Step {step}/{steps}: training loss={loss:.2f}", number=step)
    return {**told, "data": data, "type": "metrics"}


def _message(job_id: str, message: str, number: int = 0) -> dict[str, Any]:
    told = {"object": "fine_tuning.job.event", "id": f"ftevent-{job_id[-6:]}{number:06}", "level": "info"}
    return {**told, "created_at": CREATED + number, "message": message, "data": None, "type": "message"}


def _checkpoint(job: dict[str, Any], step: int) -> dict[str, Any]:
    return {
        "object": "fine_tuning.job.checkpoint", "id": f"ftckpt_{job['id'][-6:]}{step:06}", "created_at": CREATED + step,
        "fine_tuned_model_checkpoint": f"{job['fine_tuned_model']}:ckpt-step-{step}", "fine_tuning_job_id": job["id"],
        "metrics": {"step": step, "full_valid_loss": 2.2 / step, "full_valid_mean_token_accuracy": 0.7},
        "step_number": step,
    }  # fmt: skip
