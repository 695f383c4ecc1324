"""The servers that `benchmarks.submit` compares: ours, an empty FastAPI route, and a bare ASGI callable.

Each is a process of its own with one uvicorn worker; it serves until SIGINT and then tells what it saw.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from pathlib import Path
from typing import Any

import uvicorn

from allpass.wire.jobs import Job, JobRequest
from app.api.app import create_app
from app.api.context import ApiContext
from app.api.serving import serving_options
from app.api.views import submitted_job
from app.collector import settle_collector
from app.db.apps.versions import AppContent, AppVersion
from app.db.engine import Database, make_engine
from app.db.jobs.submissions import NewJob
from app.db.listen import Listener
from app.services.jobs.compose_job import Defaults, compose_jobs
from app.settings import Settings
from app.storage.directory import DirectoryStore
from app.system import RandomIds, SystemClock

CONTENT = AppContent(None, (), "e" * 64, "b" * 64, 10, "train.py")


def new_job(request: JobRequest, project_id: str, app_id: str, version_id: str) -> NewJob:
    """The row that the service would write for this request."""
    app = AppVersion(app_id, "app", "ada", 1, version_id, CONTENT, 0)
    (job,) = compose_jobs(
        ["job_" + secrets.token_hex(10).upper()],
        project_id,
        app,
        request,
        [request.parameters],
        now_ms=time.time_ns() // 1_000_000,
        defaults=Defaults(86_400_000, 300),
    )
    return job


def serve(part: str, world: dict[str, Any]) -> None:
    """Serve until SIGTERM, then tell what was seen."""
    told: dict[str, Any] = {}
    app: Any = {"ours": _ours, "empty": _empty_route, "bare": _bare_callable}[part](world)
    settle_collector()
    started_s = time.process_time()
    options = serving_options() if part == "ours" else {"log_level": "warning", "access_log": False}
    uvicorn.run(app, host="127.0.0.1", port=world["port"], loop="uvloop", **options)
    if part == "ours":
        commits = app.state.submitter.commits
        told["mean_batch"] = round(commits.items / max(1, commits.writes), 1)
        told["cpu_us_per_request"] = round(1e6 * (time.process_time() - started_s) / max(1, commits.items))
    print(json.dumps(told), flush=True)


def _ours(world: dict[str, Any]) -> Any:
    clock = SystemClock()
    settings = Settings(
        database_url=world["database_url"],
        objects_signing_key="benchmark" * 5,
        secret_key="benchmark" * 5,
        rate_limit_per_s=1e6,  # counted all the same
    )
    context = ApiContext(
        database=Database(make_engine(world["database_url"], pool_size=world["connections"], timeout_s=30)),
        listener=Listener(world["database_url"], timeout_s=30),
        objects=DirectoryStore(
            Path(world["folder"]) / "objects", "http://127.0.0.1:1", "benchmark" * 5, max_object_bytes=1, clock=clock
        ),
        settings=settings,
        clock=clock,
        ids=RandomIds(clock),
    )
    return create_app(context)


def _empty_route(world: dict[str, Any]) -> Any:
    """What FastAPI costs without a database: the same models in and out, and nothing in between."""
    from fastapi import FastAPI

    app = FastAPI()
    answer = Job.model_validate_json(_answer(world))

    @app.post("/v1/jobs", status_code=201)
    async def submit(body: JobRequest) -> Job:
        return answer

    return app


def _bare_callable(world: dict[str, Any]) -> Any:
    """What uvicorn and the load generator cost: an ASGI callable that answers a constant."""
    content = _answer(world)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await receive()
            await send({"type": "http.response.start", "status": 201, "headers": headers})
            await send({"type": "http.response.body", "body": content})

    return app


def _answer(world: dict[str, Any]) -> bytes:
    job = new_job(JobRequest.model_validate(world["body"]), "proj", "app", "ver")
    return submitted_job(job, "app", 1)


if __name__ == "__main__":
    serve(sys.argv[1], json.loads(sys.argv[2]))
