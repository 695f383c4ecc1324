"""The REST contract and its object store in memory, as one handler: for mock transports, and behind a real socket.

Faults are injected by appending to `faults`: each is used up by one request and is an exception to raise, a response
to give, or None for "answer as usual". Without `on_stream` it is an older service, which has no stream of events.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from allpass.wire.apps import AppRequest, BundleUploadRequest
from allpass.wire.controls import JobUpdate
from allpass.wire.jobs import JobRequest, SweepRequest
from allpass.wire.plan import PlanRequest
from allpass.wire.ticks import ReplayRequest
from tests.sdk.fake_lending import FakeLending

KEY = "ap_test_key"
NOW = "2030-01-01T12:00:00Z"
Fault = Exception | httpx.Response | None


@dataclass
class FakeService:
    """`requests` is everything that arrived, in order. Jobs are plain dicts, edited by tests."""

    base: str = "http://allpass.test"
    page_size: int = 3
    requests: list[httpx.Request] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    apps: dict[str, dict[str, Any]] = field(default_factory=dict)
    sweeps: dict[str, list[str]] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    events: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    logs: dict[str, list[str]] = field(default_factory=dict)
    metrics: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    artifacts: dict[str, dict[str, str]] = field(default_factory=dict)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    decisions: list[dict[str, Any]] = field(default_factory=list)
    replay: dict[str, Any] = field(default_factory=dict)  # what every replay comes to, but for its id
    replays: list[tuple[int, ReplayRequest]] = field(default_factory=list)
    plan: dict[str, Any] = field(default_factory=dict)
    planned: list[PlanRequest] = field(default_factory=list)
    pieces: dict[str, list[tuple[bytes, int, int]]] = field(default_factory=dict)  # of an artifact, by its sha256
    checkpoint_steps: tuple[int, ...] = (10, 20)  # of every job
    expired_links: int = 0
    thins: bool = True
    on_wait: Callable[[str], None] = lambda job_id: None
    on_stream: Callable[[str, int], httpx.Response] | None = None
    warnings: list[str] = field(default_factory=list)  # told of each job that is submitted
    standbys: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    lending: FakeLending = field(default_factory=FakeLending)
    _replies: dict[str, httpx.Response] = field(default_factory=dict)
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __call__(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, Exception):
            raise fault
        if fault is not None:
            return fault
        if request.url.path.startswith("/objects/"):
            return self._object(request)
        if request.headers.get("authorization") != f"Bearer {KEY}" and request.url.path != "/healthz":
            return problem(401, "unauthenticated", "this API key is not known")
        key = request.headers.get("idempotency-key")
        if request.method == "POST" and not key:
            return problem(400, "invalid_request", "an Idempotency-Key is needed")
        if key in self._replies:
            return self._replies[key]
        reply = self._route(request)
        if key and reply.status_code < 300:
            self._replies[key] = reply
        return reply

    def add_job(self, **changes: Any) -> dict[str, Any]:
        job_id = f"job_{next(self._ids):020d}"
        job = {
            "id": job_id, "app_id": "app_1", "app_name": "LLM-finetune", "app_version": 1, "sweep_id": None,
            "name": "Fine-tuning", "status": "queued", "reason": None, "message": None, "where": None, "epoch": 0,
            "moves": 0, "faults": 0, "step": 0, "total_steps": None, "checkpoint_step": None,
            "soft_deadline": "2030-01-01T18:00:00Z", "submitted_at": NOW, "started_at": None, "ended_at": None,
            "cost": 0, "max_cost": None, "max_duration_s": None, "max_hourly": None,
            "max_wait_s": None, "retries": None, "retried": 0, "warnings": [],
            "labels": {}, "parameters": {}, "template": {},
            **changes,
        }  # fmt: skip
        self.jobs[job["id"]] = job
        return job

    def add_event(self, job_id: str, kind: str, message: str = "", **data: Any) -> None:
        events = self.events.setdefault(job_id, [])
        position = len(events) + 1
        events.append({"position": position, "at": NOW, "kind": kind, "message": message or kind, "data": data})

    def paths(self) -> list[str]:
        return [f"{one.method} {one.url.path}" for one in self.requests]

    def _object(self, request: httpx.Request) -> httpx.Response:
        if "authorization" in request.headers:
            return httpx.Response(400, text="credentials do not belong here")
        name = request.url.path.removeprefix("/objects/")
        if request.method == "PUT":
            if hashlib.sha256(request.content).hexdigest() != name:
                return httpx.Response(422, text="the hash is another one")
            self.objects[name] = request.content
            return httpx.Response(200)
        if self.expired_links > 0:
            self.expired_links -= 1
            return httpx.Response(403, text="this link has expired")
        return httpx.Response(200, content=self.objects[name]) if name in self.objects else httpx.Response(404)

    def _route(self, request: httpx.Request) -> httpx.Response:  # noqa: PLR0911  (a table of routes)
        parts = request.url.path.strip("/").split("/")
        query = request.url.params
        if (answer := self.lending.answer(request)) is not None:
            return answer
        if request.method == "POST":
            return self._write(parts, request)
        if request.method == "PATCH" and parts[:2] == ["v1", "jobs"] and parts[2] in self.jobs:
            return self._change(self.jobs[parts[2]], JobUpdate.model_validate_json(request.content))
        if parts[-1] == "standbys":
            return ok({"items": self.standbys.get(parts[2], [])})
        if parts in (["healthz"], ["readyz"]):
            return ok({"status": "ok", "parts": {"database": "ok"}, "version": "0.1.0"})
        if parts == ["v1", "apps"]:
            return self._page(list(self.apps.values()), query)
        if parts == ["v1", "nodes"]:
            gone = query.get("all") == "true"
            return self._page([one for one in self.nodes if gone or one["ended_at"] is None], query)
        if parts == ["v1", "pressure"]:
            most = int(query.get("limit", "20"))
            return ok({"policy": "allpass" if self.decisions else None, "decisions": self.decisions[:most]})
        if parts == ["v1", "ticks"]:
            return self._page(self.decisions, query)
        if parts == ["v1", "jobs"]:
            wanted = query.get("status")
            states = None if wanted is None else wanted.split(",")
            return self._page([one for one in self.jobs.values() if states is None or one["status"] in states], query)
        if parts[:2] == ["v1", "sweeps"] and parts[2] in self.sweeps:
            return ok({"id": parts[2], "jobs": [self.jobs[one] for one in self.sweeps[parts[2]]]})
        if parts[:2] == ["v1", "jobs"] and parts[2] in self.jobs:
            return self._job(parts[2], parts[3:], request)
        return problem(404, "not_found", f"there is no {parts[-1]}")

    def _write(self, parts: list[str], request: httpx.Request) -> httpx.Response:  # noqa: PLR0911, PLR0912  (a table of routes)
        if parts == ["v1", "jobs", "plan"]:
            self.planned.append(PlanRequest.model_validate_json(request.content))
            return ok(self.plan)
        if parts[:2] == ["v1", "ticks"]:
            self.replays.append((int(parts[2]), ReplayRequest.model_validate_json(request.content)))
            return ok({"id": int(parts[2]), **self.replay})
        if parts == ["v1", "bundles"]:
            wanted = BundleUploadRequest.model_validate_json(request.content)
            known = wanted.sha256 in self.objects
            return ok(
                {"sha256": wanted.sha256, "upload_url": None if known else f"{self.base}/objects/{wanted.sha256}"}
            )
        if parts == ["v1", "apps"]:
            app = AppRequest.model_validate_json(request.content).model_dump(mode="json")
            number = next(self._ids)
            made = {"id": f"app_{number}", "version": 1, "version_id": f"ver_{number}", "created_at": NOW, **app}
            self.apps[made["id"]] = made
            return ok(made, 201)
        if parts == ["v1", "jobs"]:
            return ok(self._submit(JobRequest.model_validate_json(request.content)), 201)
        if parts == ["v1", "sweeps"]:
            sweep = SweepRequest.model_validate_json(request.content)
            fields = sweep.model_dump(exclude_unset=True)
            jobs = [self._submit(JobRequest(**{**fields, "parameters": one})) for one in sweep.parameters]
            sweep_id = f"swp_{next(self._ids)}"
            self.sweeps[sweep_id] = [one["id"] for one in jobs]
            return ok({"id": sweep_id, "jobs": jobs}, 201)
        if parts[-1] in ("pause", "resume") and parts[2] in self.jobs:
            job = self.jobs[parts[2]]
            if parts[-1] == "pause" and job.get("unsaved") and not json.loads(request.content or b"{}"):
                lost = job["step"] - job["checkpoint_step"]
                message = f"lose_steps: pausing it now would lose {lost} steps"
                return problem(409, "steps_would_be_lost", message, param="lose_steps")
            return self._steer(self.jobs[parts[2]], parts[-1])
        if parts[-1] == "resize" and parts[2] in self.jobs:
            job = self.jobs[parts[2]]
            if (code := job.get("refuses")) is not None:
                return problem(409, code, f"it cannot have so many: {code}", param="gpus")
            (what, number), *more = json.loads(request.content).items()
            assert not more, "as older servers know it"
            words = {"gpus": "GPUs", "nodes": "machines"}
            return ok({**job, "message": f"its owner wants it on {number} {words[what]}"})
        if "standby" in parts[3:] and parts[2] in self.jobs:
            return self._stand_by(self.jobs[parts[2]], request.content, ends=parts[-1] == "end")
        if parts[-1] == "cancel" and parts[2] in self.jobs:
            job = self.jobs[parts[2]]
            if job["status"] in ("succeeded", "failed", "cancelled"):
                return problem(409, "conflict", f"the job has {job['status']}")
            job.update(status="cancelled", ended_at=NOW)
            return ok(job)
        return problem(404, "not_found", "there is no such thing")

    def _stand_by(self, job: dict[str, Any], content: bytes, *, ends: bool) -> httpx.Response:
        if (code := job.get("refuses")) is not None:
            return problem(409, code, f"it cannot stand by: {code}")
        why = "its owner calls it back" if ends else None
        shown = {
            "id": "stby_1", "job_id": job["id"], "state": "called_back" if ends else "leaving", "gpus": 2,
            "used_gpus": 1, "asked_at": NOW, "until": "2030-01-01T08:00:00Z", "rebate_share": 0.7,
            "paid": 300_000, "rebate": 700_000, "price_per_hour": 1_080_000, "why": why, "slack_ms": -7_200_000,
        }  # fmt: skip
        self.standbys = {job["id"]: [{**shown, "asked": json.loads(content or b"{}")}]}
        return ok(shown)

    def _steer(self, job: dict[str, Any], verb: str) -> httpx.Response:
        if job["status"] in ("succeeded", "failed", "cancelled"):
            return problem(409, "conflict", f"the job has {job['status']}")
        if verb == "resume" and job["max_cost"] is not None and job["cost"] >= job["max_cost"]:
            return problem(409, "conflict", "has cost $2.00 of at most $1.00: raise max_cost_usd", param="max_cost_usd")
        job.update(status="paused" if verb == "pause" else "waiting", reason="user" if verb == "pause" else None)
        return ok(job)

    def _change(self, job: dict[str, Any], change: JobUpdate) -> httpx.Response:
        given = change.model_fields_set
        if "max_cost_usd" in given:
            usd = change.max_cost_usd
            job["max_cost"] = None if usd is None else round(usd * 1_000_000)
        if "max_hourly_usd" in given:
            usd = change.max_hourly_usd
            job["max_hourly"] = None if usd is None else round(usd * 1_000_000)
        for name in ("max_wait_s", "retries"):
            if name in given:
                job[name] = getattr(change, name)
        if "max_duration_s" in given:
            job["max_duration_s"] = change.max_duration_s
        merged = {**job["labels"], **change.labels}
        job["labels"] = {name: value for name, value in merged.items() if value is not None}
        return ok(job)

    def _explain(self, job_id: str) -> httpx.Response:
        deadline = {"at": NOW, "given": True, "estimated_finish_at": None, "slack_ms": None, "text": "in 6 h"}
        because = [{"text": "no node has room", "data": {"nodes": 2}}, {"text": "it left\x1b[31m", "data": {}}]
        upcoming = [{"text": "starts", "data": {}}, {"text": "or not", "data": {}}]
        told = {"job_id": job_id, "status": "waiting", "headline": "waiting for 41 s", "because": because}
        return ok({**told, "next": upcoming, "deadline": deadline, "history": f"/v1/jobs/{job_id}/events"})

    def _submit(self, request: JobRequest) -> dict[str, Any]:
        plain = request.model_dump(mode="json")
        name = plain["name"] or self.apps.get(request.app_id, {}).get("name", "app")
        return self.add_job(
            app_id=request.app_id,
            name=name,
            template=plain["template"],
            parameters=plain["parameters"],
            warnings=self.warnings,
        )

    def _job(self, job_id: str, rest: list[str], request: httpx.Request) -> httpx.Response:  # noqa: PLR0911  (a table of routes)
        query = request.url.params
        waits = int(query.get("wait_s", 0)) > 0
        if not rest:
            return ok(self.jobs[job_id])
        if rest == ["events"]:
            after = int(query.get("after", 0))
            if waits:
                self.on_wait(job_id)
            news = [one for one in self.events.get(job_id, []) if one["position"] > after]
            return ok({"data": news[: self.page_size], "next_cursor": None})
        if rest == ["events", "stream"] and self.on_stream is not None:
            return self.on_stream(job_id, int(request.headers["last-event-id"]))
        if rest == ["logs", "search"]:
            return self._search(job_id, query)
        if rest == ["logs"]:
            return self._log(job_id, int(query.get("position") or 0), waits)
        if rest == ["metrics"]:
            after = int(query.get("after", -1))
            points = [one for one in self.metrics.get(job_id, []) if one["step"] > after]
            if "max_points" in query and self.thins:
                return ok({"data": points[:1] + points[1:][-1:], "next_cursor": None})
            return self._page_by_step(points)
        if rest == ["explain"]:
            return self._explain(job_id)
        if rest == ["timeline"]:
            return ok({"stays": [], "waiting_ms": 0, "running_ms": 0, "cost": 0, "all_serverless": 0})
        if rest == ["artifacts"] or rest[-1] == "files":
            files = [self._link(path, sha256) for path, sha256 in self.artifacts.get(job_id, {}).items()]
            return self._page(files, query)
        if rest == ["checkpoints"]:
            fields = {"epoch": 1, "size_bytes": 1_500_000, "metrics": {"loss": 0.5}, "created_at": NOW}
            found = [{"id": f"ckpt_{step}", "step": step, **fields} for step in self.checkpoint_steps]
            return self._page(found, query)
        return problem(404, "not_found", f"there is no {rest[-1]}")

    def _page_by_step(self, points: list[dict[str, Any]]) -> httpx.Response:
        page = points[: self.page_size]
        return ok({"data": page, "next_cursor": str(page[-1]["step"]) if len(points) > len(page) else None})

    def _log(self, job_id: str, position: int, waits: bool) -> httpx.Response:
        pieces = self.logs.get(job_id, [])
        if waits and position >= len(pieces):
            self.on_wait(job_id)
            pieces = self.logs.get(job_id, [])
        ended = self.jobs[job_id]["status"] in ("succeeded", "failed", "cancelled")
        text = pieces[position] if position < len(pieces) else ""
        after = min(position + 1, len(pieces))
        return ok({"text": text, "next_position": str(after), "complete": ended and after >= len(pieces)})

    def _search(self, job_id: str, query: httpx.QueryParams) -> httpx.Response:
        fold = str.lower if query.get("ignore_case") == "true" else str
        lines = "".join(self.logs.get(job_id, [])).splitlines()
        found = [(number, line) for number, line in enumerate(lines, 1) if fold(query["q"]) in fold(line)]
        return self._page([{"line": number, "position": "1", "text": line} for number, line in found], query)

    def _link(self, path: str, sha256: str) -> dict[str, Any]:
        if sha256 in self.pieces:
            return self._link_in_pieces(path, self.pieces[sha256])
        size = len(self.objects.get(sha256, b""))
        return {"path": path, "sha256": sha256, "size_bytes": size, "url": f"{self.base}/objects/{sha256}"}

    def _link_in_pieces(self, path: str, parts: list[tuple[bytes, int, int]]) -> dict[str, Any]:
        pieces = []
        for data, start, length in parts:
            sha256 = hashlib.sha256(data).hexdigest()
            self.objects.setdefault(sha256, data)
            url = f"{self.base}/objects/{sha256}"
            pieces.append({"sha256": sha256, "size_bytes": len(data), "start": start, "length": length, "url": url})
        size = sum(length for _, _, length in parts)
        return {"path": path, "sha256": None, "size_bytes": size, "url": None, "pieces": pieces}

    def add_in_pieces(self, job_id: str, path: str, parts: list[tuple[bytes, int, int]]) -> None:
        """A file whose bytes are `length` from `start` of each of these stored contents."""
        self.pieces[path] = parts
        self.artifacts.setdefault(job_id, {})[path] = path

    def add_artifact(self, job_id: str, path: str, content: bytes) -> str:
        sha256 = hashlib.sha256(content).hexdigest()
        self.objects[sha256] = content
        self.artifacts.setdefault(job_id, {})[path] = sha256
        return sha256

    def _page(self, items: list[dict[str, Any]], query: httpx.QueryParams) -> httpx.Response:
        start = int(query.get("cursor", 0))
        end = start + self.page_size
        return ok({"data": items[start:end], "next_cursor": str(end) if end < len(items) else None})


def ok(content: Any, status: int = 200) -> httpx.Response:
    return httpx.Response(status, json=content)


def problem(status: int, code: str, message: str, *, param: str | None = None, **headers: str) -> httpx.Response:
    error = {"code": code, "message": message, "param": param, "request_id": "req_1", "retryable": status >= 500}
    return httpx.Response(status, json={"error": error}, headers=headers)


@contextmanager
def served(service: FakeService) -> Iterator[str]:
    """The service behind a real socket on loopback; gives its address."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            request = httpx.Request(self.command, service.base + self.path, headers=dict(self.headers), content=body)
            response = service(request)
            self.send_response(response.status_code)
            for name in ("content-type", "retry-after"):
                if name in response.headers:
                    self.send_header(name, response.headers[name])
            self.send_header("content-length", str(len(response.content)))
            self.end_headers()
            self.wfile.write(response.content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815  (the names that http.server calls)

        def log_message(self, format: str, *args: Any) -> None:
            """Tests look at `service.requests`."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    service.base = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield service.base
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def json_of(request: httpx.Request) -> Any:
    return json.loads(request.content)
