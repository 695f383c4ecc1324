"""The control plane as the agent sees it: one method per message of the wire contract, under `/v1/agent`."""

from __future__ import annotations

import contextlib
import json
from typing import Any, Dict, Iterator, List, Mapping, Sequence

from workers.agent import __version__
from workers.agent.errors import Fenced, Forgotten, Refused, Unreachable
from workers.agent.transport import Answer, Transport

CALL_TIMEOUT_S = 30.0
MANIFEST_TIMEOUT_S = 300.0  # the server asks its store about every piece of a checkpoint before it answers
HASHES_PER_CALL = 2000
_BLOCK_BYTES = 64 * 1024


class Writer:
    """Who writes: (job, epoch) is what the server fences by, the run says where it belongs."""

    def __init__(self, *, run_id: str, job_id: str, epoch: int) -> None:
        self.run_id = run_id
        self.job_id = job_id
        self.epoch = epoch

    def job(self) -> Dict[str, Any]:
        return {"job_id": self.job_id, "epoch": self.epoch}

    def run(self) -> Dict[str, Any]:
        return {"run_id": self.run_id, "job_id": self.job_id, "epoch": self.epoch}


class Api:
    """Raises Unreachable (try again), Fenced, Forgotten (401/403) or Refused (any other no)."""

    def __init__(self, url: str, token: str, transport: Transport) -> None:
        self._base = url.rstrip("/") + "/v1/agent"
        self._headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "Accept": "application/json",
            "User-Agent": f"allpass-agent/{__version__}",
        }
        self._transport = transport
        self._is_away = False

    def is_away(self) -> bool:
        """The last /sync had no answer: nobody can be told of anything."""
        return self._is_away

    def join(self, nonce: str) -> None:
        """Exchange the join token for the node's, which all later calls carry."""
        reply = self._post("/join", {"agent_version": __version__, "nonce": nonce})
        token = reply.get("node_token") if isinstance(reply, dict) else None
        if not isinstance(token, str):
            raise Unreachable("/join answered something else than a node's token")
        self._headers = {**self._headers, "Authorization": f"Bearer {token}"}

    def sync(self, *, seen: int, wait_ms: int, runs: Sequence[Mapping[str, Any]], host: Mapping[str, Any]) -> Any:
        """The reply: `version` and the desired `runs`. Waits up to `wait_ms` for something new."""
        body = {"agent_version": __version__, "seen": seen, "wait_ms": wait_ms, "runs": runs, "host": host}
        try:
            reply = self._post("/sync", body, timeout_s=wait_ms / 1000 + CALL_TIMEOUT_S)
        except Unreachable:
            self._is_away = True
            raise
        self._is_away = False
        return reply

    @contextlib.contextmanager
    def probe(self, size_bytes: int, *, timeout_s: float) -> Iterator[Answer]:
        """So many bytes that mean nothing, for the caller to read. Raises as the others do."""
        url = f"{self._base}/probe?bytes={size_bytes}"
        with self._transport.exchange("GET", url, headers=self._headers, timeout_s=timeout_s) as answer:
            if answer.status >= 300:
                raise refusal(answer.status, answer.read())
            yield answer

    def downloads(self, writer: Writer, sha256s: Sequence[str]) -> Dict[str, str]:
        """Signed URLs by sha256."""
        urls: Dict[str, str] = {}
        for batch in batches(sha256s, HASHES_PER_CALL):
            urls.update(self._post("/downloads", {**writer.job(), "sha256s": batch})["urls"])
        return urls

    def uploads(self, writer: Writer, files: Sequence[Mapping[str, Any]]) -> Dict[str, str]:
        """Signed URLs by sha256 for what the store lacks; what it has gets none."""
        urls: Dict[str, str] = {}
        for batch in batches(files, HASHES_PER_CALL):
            urls.update(self._post("/uploads", {**writer.job(), "files": batch})["urls"])
        return urls

    def open_checkpoint(
        self,
        writer: Writer,
        *,
        step: int,
        told: Mapping[str, Any],
        metrics: Mapping[str, float],
        part: bool = False,
    ) -> Any:
        """`checkpoint_id` and the `urls` of the pieces that the store lacks. `told`: `files`, or a `listing`. Of a
        `part` the answer says that it was taken as one."""
        body = {**writer.run(), "step": step, **told, "metrics": metrics, **({"part": True} if part else {})}
        return self._post("/checkpoints", body, timeout_s=MANIFEST_TIMEOUT_S)

    def coming(self, writer: Writer, *, step: int, spans: Sequence[Mapping[str, Any]]) -> Dict[str, str]:
        """Tell parts of a checkpoint that is still being written; signed URLs by sha256 for what the store lacks."""
        urls: Dict[str, str] = {}
        for batch in batches(spans, HASHES_PER_CALL):
            told = self._post("/checkpoints/coming", {**writer.run(), "step": step, "spans": batch})
            urls.update(told["urls"])
        return urls

    def commit_checkpoint(self, writer: Writer, checkpoint_id: str, *, final: bool = False) -> Dict[str, Any]:
        """`final`: it was written after the request to stop. The answer says what a part still waits for."""
        body = {**writer.job(), "final": final}
        reply = self._post(f"/checkpoints/{checkpoint_id}/commit", body, timeout_s=MANIFEST_TIMEOUT_S)
        return reply if isinstance(reply, dict) else {}

    def damaged(self, writer: Writer, checkpoint_id: str, sha256: str) -> Any:
        """`resume`: what to begin with instead of this checkpoint, a piece of which cannot be read; or None."""
        return self._post(f"/checkpoints/{checkpoint_id}/damaged", {**writer.job(), "sha256": sha256})

    def refused(self, writer: Writer, *, what: str, step: int, why: str) -> None:
        """A checkpoint, or a part of the output, that cannot be kept."""
        self._post("/refusals", {**writer.run(), "what": what, "step": step, "why": why})

    def transfer(self, writer: Writer, *, kind: str, done_bytes: int, total_bytes: int) -> None:
        """How far bytes have got that the run cannot go on without."""
        self._post("/transfers", {**writer.run(), "kind": kind, "done_bytes": done_bytes, "total_bytes": total_bytes})

    def logs(self, writer: Writer, chunks: Sequence[Mapping[str, Any]]) -> None:
        self._post("/logs", {**writer.run(), "chunks": chunks})

    def metrics(self, writer: Writer, points: Sequence[Mapping[str, Any]]) -> None:
        self._post("/metrics", {**writer.run(), "points": points})

    def system(self, writer: Writer, samples: Sequence[Mapping[str, Any]]) -> None:
        """What the run uses of its machine."""
        self._post("/system", {**writer.run(), "samples": samples})

    def artifacts(self, writer: Writer, files: Sequence[Mapping[str, Any]], told: Mapping[str, Any]) -> None:
        """`told`: what was left behind, for a server that asked for what the working folder holds."""
        self._post("/artifacts", {**writer.run(), "files": files, **told})

    def installer(self, machine: str) -> Dict[str, Any]:
        """`sha256` and `size_bytes` of the uv that the service ships for this kind of processor, or neither."""
        reply = self._post("/installer", {"machine": machine})
        return reply if isinstance(reply, dict) else {}

    def installer_blocks(self, sha256: str) -> Iterator[bytes]:
        """That program, packed with gzip, as it comes."""
        url, headers = f"{self._base}/installers/{sha256}", self._headers
        with self._transport.exchange("GET", url, headers=headers, timeout_s=CALL_TIMEOUT_S) as answer:
            if answer.status >= 300:
                raise refusal(answer.status, answer.read())
            while True:
                block = answer.read(_BLOCK_BYTES)
                if not block:
                    return
                yield block

    def _post(self, path: str, body: Mapping[str, Any], *, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        data = json.dumps(body, allow_nan=False).encode()
        with self._transport.exchange(
            "POST", self._base + path, headers=self._headers, body=data, timeout_s=timeout_s
        ) as answer:
            text = answer.read()
            if answer.status >= 300:
                raise refusal(answer.status, text)
        try:
            return json.loads(text) if text.strip() else {}
        except ValueError as error:
            raise Unreachable(f"{path} answered something that is not JSON: {text[:80]!r}") from error


def refusal(status: int, body: bytes) -> Refused:
    """The error that an answer of 3xx or 4xx means."""
    try:
        detail = json.loads(body)["error"]
        code, message, param = str(detail["code"]), str(detail["message"]), str(detail.get("param") or "")
    except (ValueError, KeyError, TypeError, AttributeError):
        code, message, param = "", body[:200].decode("utf-8", "replace"), ""
    if status in (401, 403):
        return Forgotten(status, code, message, param)
    if status == 409 and code == "fenced":
        return Fenced(status, code, message, param)
    return Refused(status, code, message, param)


def batches(items: Sequence[Any], size: int) -> List[List[Any]]:
    return [list(items[start : start + size]) for start in range(0, len(items), size)]
