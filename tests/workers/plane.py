"""A control plane and object store in memory, spoken to over real HTTP.

It holds every request against the models of the wire contract and builds every reply from them. Whatever did not fit is
in `problems`, which the fixture expects to stay empty.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel, ValidationError

from allpass.wire import agent as wire
from allpass.wire.gangs import CheckpointCommitted
from app.core.model.listing import files_in, stream_of, unpack
from app.services.checkpoints.saved_files import wire_file

TOKEN = "node-secret-4f1d"
JOIN_TOKEN = "join-secret-77a0"
PATIENCE_S = 60.0  # of those who wait for what comes in a moment, on a machine that has much else to do
COMMIT = re.compile(r"/checkpoints/([^/]+)/(commit|damaged)")


class Answer(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


@dataclass
class Stored:
    """A checkpoint as it was opened."""

    run_id: str
    step: int
    epoch: int
    files: list[wire.SavedFile]
    metrics: dict[str, float]
    committed: bool = False
    final: bool = False
    is_part: bool = False


@dataclass
class Fault:
    """The next `times` requests whose "METHOD path" matches `pattern` are answered so; status 0 hangs up."""

    pattern: str
    status: int
    code: str = "injected"
    times: int = 1_000_000
    param: str | None = None


@dataclass
class Plane:
    """What the agent's counterpart knows. Change it under `changed`, or through the methods."""

    url: str = ""
    token: str = TOKEN
    nonce: str | None = None  # of the machine that joined
    joins: list[wire.JoinRequest] = field(default_factory=list)
    join_replies_to_lose: int = 0
    profile_replies_to_lose: int = 0  # of reports that tell one, and are taken
    changed: threading.Condition = field(default_factory=threading.Condition)
    version: int = 1
    desired: dict[str, wire.DesiredRun] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    reports: list[wire.RunReport] = field(default_factory=list)
    syncs: list[wire.SyncRequest] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    checkpoints: dict[str, Stored] = field(default_factory=dict)
    chunks: dict[str, dict[int, wire.LogChunk]] = field(default_factory=dict)
    metrics: dict[str, dict[int, wire.MetricReportPoint]] = field(default_factory=dict)
    samples: dict[str, list[wire.SystemSample]] = field(default_factory=dict)
    takes_samples: bool = True
    refused_samples: int = 0
    artifacts: dict[str, dict[str, str]] = field(default_factory=dict)
    results: dict[str, wire.ArtifactReport] = field(default_factory=dict)  # the newest of each run
    coming: dict[str, dict[tuple[str, int], wire.ComingSpan]] = field(default_factory=dict)  # stored, by run and place
    read: list[str] = field(default_factory=list)  # objects, as often as they were fetched
    story: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    listings: list[wire.Listing] = field(default_factory=list)
    refusals: list[wire.Refusal] = field(default_factory=list)
    transfers: list[wire.TransferReport] = field(default_factory=list)
    damage: list[tuple[str, str]] = field(default_factory=list)
    instead: wire.DamageAnswer | None = None  # what a damaged checkpoint is answered with; None: it is not damaged
    requests: list[str] = field(default_factory=list)  # "METHOD path", as they came
    stored_lines: list[str] = field(default_factory=list)  # those of uploads that were taken
    hold_after: int | None = None  # so many uploads are taken; the others wait for `release`
    held: set[str] = field(default_factory=set)  # whose uploads and readers wait for `release`
    release: threading.Event = field(default_factory=threading.Event)
    next: list[wire.NextJob] = field(default_factory=list)
    url_count: int = 0
    report_every_ms: int = 1000
    says_more: bool = False  # it is of a newer release
    stale_reply: wire.SyncReply | None = None  # the answer to reports (wait 0) once the agent has seen something newer
    stale_count: int = 0
    installers: dict[str, bytes] = field(default_factory=dict)  # by kind of machine
    installers_told: list[str] = field(default_factory=list)
    knows_parts: bool = True
    why_no_whole: str | None = None  # what a part is answered with that will never be a checkpoint

    # What a test does

    def put(self, data: bytes) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        self.objects[sha256] = data
        return sha256

    def want(self, run: wire.DesiredRun) -> None:
        with self.changed:
            self.desired[run.run_id] = run
            self.epochs.setdefault(run.job_id, run.epoch)
            self.version += 1
            self.changed.notify_all()

    def advise(self, *runs: wire.DesiredRun) -> None:
        """Tell that these will likely come."""
        with self.changed:
            self.next = [self._next_job(run.spec) for run in runs]
            self.version += 1
            self.changed.notify_all()

    def _next_job(self, spec: wire.RunSpec) -> wire.NextJob:
        return wire.NextJob(
            project_id=spec.project_id,
            bundle_sha256=spec.bundle_sha256,
            bundle_size_bytes=spec.bundle_size_bytes,
            bundle_url=self._sign("GET", spec.bundle_sha256),
            pip=spec.pip,
            environment_sha256=spec.environment_sha256,
            model=spec.parameters.get("model") if isinstance(spec.parameters, dict) else None,
        )

    def ask(self, run_id: str, want: str, *, grace_ms: int | None = None) -> None:
        run = self.desired[run_id]
        update: dict[str, Any] = {"want": want}
        if grace_ms is not None:
            update["grace_ms"] = grace_ms
        self.want(run.model_copy(update=update))

    def unlist(self, run_id: str) -> None:
        with self.changed:
            del self.desired[run_id]
            self.version += 1
            self.changed.notify_all()

    def restore(self, *runs: wire.DesiredRun) -> None:
        """From a dump of a time when these runs were wanted, and fewer orders had been given."""
        with self.changed:
            self.desired = {run.run_id: run for run in runs}
            self.version = 1
            self.changed.notify_all()

    def wait(self, condition: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> Any:
        """The first true value of `condition`, which is looked at whenever a request was served."""
        deadline = time.monotonic() + timeout_s
        with self.changed:
            while True:
                value = condition()
                if value:
                    return value
                if time.monotonic() > deadline:
                    raise AssertionError(f"{what}: not within {timeout_s} s; story: {self.story[-20:]}")
                self.changed.wait(0.05)

    def report(self, run_id: str) -> wire.RunReport | None:
        return next((report for report in reversed(self.reports) if report.run_id == run_id), None)

    def told(self, run_id: str) -> wire.RunReport:
        report = self.report(run_id)
        if report is None:
            raise AssertionError(f"{run_id} was never reported")
        return report

    def wait_exit(self, run_id: str, timeout_s: float = PATIENCE_S) -> wire.ExitReport:
        def exited() -> wire.ExitReport | None:
            report = self.report(run_id)
            return report.exit if report is not None and report.phase == "exited" else None

        found: wire.ExitReport = self.wait(exited, f"exit of {run_id} (log: {self.log(run_id)!r})", timeout_s)
        return found

    def wait_step(self, run_id: str, step: int) -> None:
        self.wait(lambda: (self.report(run_id) or _NOBODY).step >= step, f"step {step}")

    def log(self, run_id: str) -> str:
        chunks = self.chunks.get(run_id, {})
        if sorted(chunks) != list(range(len(chunks))):
            raise AssertionError(f"chunks are missing: {sorted(chunks)}")
        return b"".join(self.objects[chunks[number].sha256] for number in sorted(chunks)).decode("utf-8")

    def wait_log(self, run_id: str, text: str) -> str:
        """The log, once it has this text. Nobody waits for the last of it for long: a run's end may come before."""

        def told() -> str:
            log = self.log(run_id)
            return log if text in log else ""

        found: str = self.wait(told, f"{text!r} in the log of {run_id}")
        return found

    def committed(self, run_id: str) -> list[Stored]:
        return [one for one in self.checkpoints.values() if one.committed and one.run_id == run_id]

    def resume_from(self, stored: Stored) -> wire.ResumeFrom:
        return wire.ResumeFrom(checkpoint_id="ckp_1", step=stored.step, files=stored.files)

    def let_go(self) -> None:
        """Whoever waits for an answer gets one, so that no connection outlives the test."""
        self.release.set()
        with self.changed:
            self.version += 1
            self.changed.notify_all()

    # What the agent asks

    def join(self, request: wire.JoinRequest) -> wire.JoinReply:
        self.joins.append(request)
        self.nonce = self.nonce or request.nonce
        if self.nonce != request.nonce:
            raise Answer(409, "conflict")
        return wire.JoinReply(node_id="node_1", node_token=self.token)

    def sync(self, request: wire.SyncRequest) -> wire.SyncReply:
        with self.changed:
            self.syncs.append(request)
            news = False
            for report in request.runs:
                before = self.report(report.run_id)
                if before != report:
                    news = news or before is None or before.phase != report.phase  # as the service: not for progress
                    self.reports.append(report)
                    self.story.append(f"{report.run_id} {report.phase}")
            self.changed.notify_all()
            if self.stale_reply is not None and request.wait_ms == 0 and request.seen > self.stale_reply.version:
                self.stale_count += 1
                return self.stale_reply
            if self.stale_reply is None and request.seen > self.version:  # restored, and outruns its agent
                self.version = request.seen + 1
            if not news and request.seen == self.version:
                self.changed.wait_for(lambda: self.version != request.seen, request.wait_ms / 1000)
            runs = None if request.seen == self.version else list(self.desired.values())
            return wire.SyncReply(version=self.version, runs=runs, report_every_ms=self.report_every_ms, next=self.next)

    def downloads(self, request: wire.DownloadRequest) -> wire.DownloadReply:
        standing_by = {(run.job_id, run.epoch) for run in self.desired.values() if run.want == "standby"}
        if (request.job_id, request.epoch) not in standing_by:
            self._check_epoch(request)
        return wire.DownloadReply(urls={one: self._sign("GET", one) for one in request.sha256s if one in self.objects})

    def uploads(self, request: wire.UploadRequest) -> wire.UploadReply:
        return wire.UploadReply(urls=self._lacking({one.sha256 for one in request.files}))

    def open(self, request: wire.CheckpointOpen) -> wire.CheckpointOpened:
        self._check_epoch(request)
        files = request.files
        if request.listing is not None:
            files = listed_files(request.listing)
            self.listings.append(request.listing)
        checkpoint_id = f"ckp_{len(self.checkpoints) + 1}"
        stored = Stored(request.run_id, request.step, request.epoch, files, request.metrics)
        stored.is_part = request.part and self.knows_parts
        self.checkpoints[checkpoint_id] = stored
        urls = self._lacking(pieces_of(files))
        return wire.CheckpointOpened(checkpoint_id=checkpoint_id, urls=urls, part=stored.is_part)

    def note_coming(self, request: wire.CheckpointComing) -> wire.UploadReply:
        self._check_epoch(request)
        stored = [span for span in request.spans if span.sha256 in self.objects]
        self.coming.setdefault(request.run_id, {}).update({(span.path, span.offset): span for span in stored})
        for run_id, run in self.desired.items():
            if stored and run.want == "standby" and run.job_id == request.job_id:
                told = list(self.coming[request.run_id].values())
                self.desired[run_id] = run.model_copy(update={"coming": told})
                self.version += 1
        return wire.UploadReply(urls=self._lacking({span.sha256 for span in request.spans}))

    def commit(self, checkpoint_id: str, request: wire.CheckpointCommit) -> BaseModel | None:
        self._check_epoch(request)
        stored = self.checkpoints[checkpoint_id]
        self._check_stored(pieces_of(stored.files))
        stored.committed, stored.final = True, request.final
        if stored.is_part:
            return self._parts_of(stored)
        self.story.append(f"{stored.run_id} checkpoint {stored.step}")
        return None

    def _parts_of(self, stored: Stored) -> CheckpointCommitted:
        """Of two machines, each of which has a run here."""
        if f"{stored.run_id} part {stored.step}" not in self.story:
            self.story.append(f"{stored.run_id} part {stored.step}")
        parts = [one for one in self.checkpoints.values() if one.is_part and one.step == stored.step]
        here, others = {one.run_id for one in parts if one.committed}, {one.run_id for one in parts}
        if len(here) == 2:
            return CheckpointCommitted()
        unheard = [1] if len(others) < 2 else []
        return CheckpointCommitted(waits_for=[1], unheard=unheard, why=self.why_no_whole)

    def note_refusal(self, request: wire.Refusal) -> None:
        self._check_epoch(request)
        self.refusals.append(request)
        self.story.append(f"{request.run_id} refused")

    def note_transfer(self, request: wire.TransferReport) -> None:
        self.transfers.append(request)

    def logs(self, request: wire.LogReport) -> None:
        for chunk in request.chunks:
            if len(self.objects[chunk.sha256]) != chunk.size_bytes:
                raise Answer(422, "wrong_size")
            if self.objects[chunk.sha256].count(b"\n") != chunk.line_count:
                raise Answer(422, "wrong_line_count")
            self.chunks.setdefault(request.run_id, {})[chunk.sequence] = chunk

    def points(self, request: wire.MetricReport) -> None:
        self._check_epoch(request)
        for point in request.points:
            self.metrics.setdefault(request.run_id, {})[point.step] = point

    def used(self, request: wire.SystemReport) -> None:
        self._check_epoch(request)
        if not self.takes_samples:
            self.refused_samples += 1
            raise Answer(404, "not_found")
        self.samples.setdefault(request.run_id, []).extend(request.samples)

    def register(self, request: wire.ArtifactReport) -> None:
        if not request.joins:
            self._check_epoch(request)
        self._check_stored({one.sha256 for one in request.files})
        self.artifacts[request.run_id] = {one.path: one.sha256 for one in request.files}
        self.results[request.run_id] = request
        self.story.append(f"{request.run_id} {'early ' if request.joins and not request.final else ''}artifacts")

    def find_installer(self, request: wire.InstallerRequest) -> wire.InstallerReply:
        self.installers_told.append(request.machine)
        program = self.installers.get(request.machine)
        if program is None:
            return wire.InstallerReply()
        return wire.InstallerReply(sha256=hashlib.sha256(program).hexdigest(), size_bytes=len(program))

    def installer(self, authorization: str | None, sha256: str) -> tuple[int, bytes]:
        if authorization != f"Bearer {self.token}":
            return 401, _error("unauthenticated")
        for program in self.installers.values():
            if hashlib.sha256(program).hexdigest() == sha256:
                return 200, gzip.compress(program, 1)
        return 404, _error("not_found")

    def _check_epoch(self, request: Any) -> None:
        if self.epochs.get(request.job_id) != request.epoch:
            raise Answer(409, "fenced")

    def damaged(self, checkpoint_id: str, request: wire.DamageReport) -> wire.DamageAnswer:
        self._check_epoch(request)
        self.damage.append((checkpoint_id, request.sha256))
        if self.instead is None:
            raise Answer(409, "conflict")
        return self.instead

    def content(self, file: wire.SavedFile) -> bytes:
        """The bytes of a stored file."""
        if file.pieces is None:
            return self.objects[file.sha256 or ""]
        return b"".join(self.objects[one.sha256][one.start : one.start + one.length] for one in file.pieces)

    def _check_stored(self, sha256s: set[str]) -> None:
        if not sha256s <= self.objects.keys():
            raise Answer(409, "incomplete")

    def _lacking(self, sha256s: set[str]) -> dict[str, str]:
        return {one: self._sign("PUT", one) for one in sorted(sha256s - self.objects.keys())}

    def _sign(self, method: str, sha256: str) -> str:
        self.url_count += 1
        return f"{self.url}/objects/{sha256}?for={method}&n={self.url_count}"


def listed_files(listing: wire.Listing) -> list[wire.SavedFile]:
    """As the service reads it."""
    listed = unpack(base64.b64decode(listing.files))
    stream = stream_of(listed, [(piece.sha256, piece.size_bytes) for piece in listing.pieces])
    return [wire_file(file) for file in files_in(stream, listed, None, len(listed))]


def pieces_of(files: list[wire.SavedFile]) -> set[str]:
    """The stored contents that these files are made of."""
    return {one.sha256 for file in files for one in file.pieces or ()} | {
        file.sha256 for file in files if file.sha256 is not None
    }


_NOBODY = wire.RunReport(run_id="nobody", job_id="nobody", epoch=0, phase="preparing")
_ROUTES: dict[str, tuple[type[BaseModel], str]] = {
    "/join": (wire.JoinRequest, "join"),
    "/sync": (wire.SyncRequest, "sync"),
    "/downloads": (wire.DownloadRequest, "downloads"),
    "/uploads": (wire.UploadRequest, "uploads"),
    "/checkpoints": (wire.CheckpointOpen, "open"),
    "/checkpoints/coming": (wire.CheckpointComing, "note_coming"),
    "/refusals": (wire.Refusal, "note_refusal"),
    "/transfers": (wire.TransferReport, "note_transfer"),
    "/logs": (wire.LogReport, "logs"),
    "/metrics": (wire.MetricReport, "points"),
    "/system": (wire.SystemReport, "used"),
    "/artifacts": (wire.ArtifactReport, "register"),
    "/installer": (wire.InstallerRequest, "find_installer"),
}


def serve(plane: Plane) -> ThreadingHTTPServer:
    """Start answering for `plane` on a free loopback port; `plane.url` is set. The caller shuts it down."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            return

        def do_POST(self) -> None:
            body = self._body()
            if body is None or self._faulty():
                return
            answer = _api(plane, self.path, self.headers.get("Authorization"), body)
            if self.path.endswith("/join") and plane.join_replies_to_lose > 0:
                plane.join_replies_to_lose -= 1
                self.close_connection = True
                return
            if b'"pull"' in body and plane.profile_replies_to_lose > 0:
                plane.profile_replies_to_lose -= 1
                self.close_connection = True
                return
            self._answer(*answer)

        def do_PUT(self) -> None:
            data = self._body()
            parts = urlsplit(self.path)
            sha256 = parts.path.rpartition("/")[2]
            if data is None or self._faulty():
                return
            if parse_qs(parts.query)["for"] != ["PUT"]:
                self._answer(403, b"")
            elif hashlib.sha256(data).hexdigest() != sha256:
                self._answer(422, b"")
            else:
                self._take(sha256, data)

        def _take(self, sha256: str, data: bytes) -> None:
            with plane.changed:
                held = plane.hold_after is not None and len(plane.stored_lines) >= plane.hold_after
                held = held or sha256 in plane.held
            if held and not plane.release.wait(PATIENCE_S):
                raise AssertionError("nobody released the uploads")
            if held and self._faulty():
                return
            with plane.changed:
                plane.objects[sha256] = data
                plane.stored_lines.append(self.path)
                plane.changed.notify_all()
            self._answer(200, b"")

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            data = plane.objects.get(parts.path.rpartition("/")[2])
            plane.read.append(parts.path.rpartition("/")[2])
            if parts.path.rpartition("/")[2] in plane.held and not plane.release.wait(PATIENCE_S):
                raise AssertionError("nobody released the readers")
            if self._faulty():
                return
            if parts.path == "/v1/agent/probe":
                known = self.headers.get("Authorization") == f"Bearer {plane.token}"
                self._answer(200 if known else 401, bytes(int(parse_qs(parts.query)["bytes"][0]) if known else 0))
                return
            if parts.path.startswith("/v1/agent/installers/"):
                self._answer(*plane.installer(self.headers.get("Authorization"), parts.path.rpartition("/")[2]))
            elif parse_qs(parts.query).get("for") != ["GET"] or data is None:
                self._answer(404, b"")
            else:
                self._answer(200, data)

        def _body(self) -> bytes | None:
            """The body, or None when the agent died in the middle of it."""
            length = int(self.headers["Content-Length"])
            data = self.rfile.read(length)
            self.close_connection = self.close_connection or len(data) < length
            return data if len(data) == length else None

        def _faulty(self) -> bool:
            with plane.changed:
                line = f"{self.command} {self.path}"
                plane.requests.append(line)
                for fault in plane.faults:
                    if fault.times > 0 and re.search(fault.pattern, line):
                        fault.times -= 1
                        break
                else:
                    return False
            if fault.status == 0:
                self.close_connection = True
            else:
                self._answer(fault.status, _error(fault.code, fault.param))
            return True

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            return  # an agent that is killed hangs up in the middle of things

    server = Server(("127.0.0.1", 0), Handler)
    plane.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    return server


def _api(plane: Plane, path: str, authorization: str | None, body: bytes) -> tuple[int, bytes]:
    path = path.removeprefix("/v1/agent")
    if authorization != f"Bearer {JOIN_TOKEN if path == '/join' else plane.token}":
        return 401, _error("unauthenticated")
    try:
        commit = COMMIT.fullmatch(path)
        with plane.changed:
            if commit and commit.group(2) == "damaged":
                reply: Any = plane.damaged(commit.group(1), wire.DamageReport.model_validate_json(body, extra="forbid"))
            elif commit:
                reply = plane.commit(commit.group(1), wire.CheckpointCommit.model_validate_json(body, extra="forbid"))
            else:
                model, method = _ROUTES[path]
                reply = getattr(plane, method)(model.model_validate_json(body, extra="forbid"))
            plane.changed.notify_all()
    except ValidationError as error:
        plane.problems.append(f"{path}: {error}")
        return 422, _error("invalid_input")
    except Answer as answer:
        return answer.status, _error(answer.code)
    if reply is None:
        return 204, b""
    return 200, json.dumps(_with_more(reply.model_dump(mode="json"), plane.says_more)).encode()


def _with_more(told: Any, more: bool) -> Any:
    """As a newer server would say it: every object has a field that this agent has never heard of. What users named
    (parameters, template, secrets, URLs by hash) is as they did."""
    if isinstance(told, list):
        return [_with_more(one, more) for one in told]
    if not isinstance(told, dict) or not more:
        return told
    theirs = {"parameters", "template", "secrets", "urls", "layout"}
    return {"newer": {"colour": [1, None]}} | {
        name: value if name in theirs else _with_more(value, more) for name, value in told.items()
    }


def _error(code: str, param: str | None = None) -> bytes:
    detail = {"code": code, "message": code, "param": param, "request_id": "req_1", "retryable": False}
    return json.dumps({"error": detail}).encode()
