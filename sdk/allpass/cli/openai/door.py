"""Requests to the OpenAI-compatible API of the configured Allpass server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from allpass import __version__
from allpass.cli.openai.api import read_json
from allpass.client.setup import NO_PROXY
from allpass.config import Connection
from allpass.errors import ConnectionFailed, NotFound, UnexpectedReply, api_error_class
from allpass.http import RETRIED_STATUSES, Retries, httpx_timeout

JOBS = "/fine_tuning/jobs"
_UPLOAD_S, _USUAL_S = 600.0, 30.0
_MOST_LISTED = 1000


class Door:
    """`connection`: of the Allpass server."""

    def __init__(
        self,
        connection: Connection,
        *,
        transport: httpx.BaseTransport | None = None,
        retries: Retries | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.address = connection.url
        self._url = connection.url + "/openai/v1"
        self._headers = {"Authorization": f"Bearer {connection.api_key}", "User-Agent": f"allpass-python/{__version__}"}
        self._http = httpx.Client(transport=transport, mounts=dict(NO_PROXY), follow_redirects=False)
        self._retries, self._sleep = retries or Retries(), sleep

    def close(self) -> None:
        self._http.close()

    def job(self, tuning_id: str) -> dict[str, Any]:
        return self._ask("GET", f"{JOBS}/{quote(tuning_id, safe='')}")

    def jobs_with(self, metadata: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Those that have all of it, newest first."""
        params = {f"metadata[{name}]": value for name, value in metadata.items()} | {"limit": str(_MOST_LISTED)}
        data = self._ask("GET", JOBS, params=params).get("data")
        yield from (one for one in data if isinstance(one, dict)) if isinstance(data, list) else ()

    def has_file(self, file_id: str) -> bool:
        try:
            return self._ask("GET", f"/files/{quote(file_id, safe='')}").get("id") == file_id
        except NotFound:
            return False

    def upload(self, path: Path, name: str) -> str:
        """The id of a file to train on."""
        with path.open("rb") as content:

            def form() -> dict[str, Any]:
                content.seek(0)
                files = {"file": (name, content, "application/octet-stream")}
                return {"files": files, "data": {"purpose": "fine-tune"}, "timeout": httpx_timeout(_UPLOAD_S)}

            return str(self._ask("POST", "/files", form).get("id"))

    def create(self, body: Mapping[str, Any], key: str) -> dict[str, Any]:
        """`key`: the same one makes one job, however often it is sent."""
        return self._ask("POST", JOBS, lambda: {"json": body}, headers={"Idempotency-Key": key})

    def _ask(
        self,
        method: str,
        path: str,
        more: Callable[[], dict[str, Any]] = dict,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Tried again where that has no second effect: of a file that is sent twice, one is not read."""
        attempt = 1
        while True:
            try:
                options = {"timeout": httpx_timeout(_USUAL_S), **more()}
                sent = {**self._headers, **(headers or {})}
                answer = self._http.request(method, self._url + path, params=params, headers=sent, **options)
                if answer.status_code not in RETRIED_STATUSES or attempt >= self._retries.attempts:
                    return _object(path, answer)
            except httpx.RequestError as error:
                if attempt >= self._retries.attempts:
                    raise ConnectionFailed(
                        f"no answer from {self._url}: {error or type(error).__name__} (tried {attempt} times)",
                        hint="is the server running? allpass up starts one on this machine",
                    ) from error
            attempt += 1
            self._sleep(self._retries.wait_s(attempt))


def _object(path: str, answer: httpx.Response) -> dict[str, Any]:
    """Raises ApiError, and UnexpectedReply for what is not Allpass's."""
    try:
        told = read_json(answer.content)
    except ValueError:
        told = None
    if isinstance(told, dict) and answer.status_code == 200:
        return told
    error = told.get("error") if isinstance(told, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        raise UnexpectedReply(
            f"{path}: HTTP {answer.status_code} with a body that is not Allpass's: is the address right?",
            hint="check ALLPASS_URL",
        )
    raise api_error_class(answer.status_code)(
        error["message"],
        code=str(error.get("code") or error.get("type")),
        http_status=answer.status_code,
        param=error["param"] if isinstance(error.get("param"), str) else None,
        request_id=answer.headers.get("x-request-id"),
    )
