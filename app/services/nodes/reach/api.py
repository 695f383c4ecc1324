"""Whether the public address of the API leads here, and lets pass what agents do: long polls and large reports."""

from __future__ import annotations

import asyncio
import json
import secrets

import httpx

from app.core.model.finding import Finding, good, wrong
from app.ports.clock import Clock
from app.services.nodes.reach.asking import HttpAnswer, Unanswered, ask
from app.services.nodes.reach.keys import ReachKeys, ReachQuestion

NAME = "public URL"
LARGEST_REPORT_BYTES = 8 * 1024 * 1024  # as `app.api.edge` takes it from an agent
_SOON_S, _UPLOAD_S, _LIFE_MS = 15.0, 120.0, 600_000
_SETTING = "ALLPASS_PUBLIC_URL"


class ApiLook:
    """`hold_s`: how long an answer is kept back; 0 leaves that out."""

    def __init__(self, http: httpx.AsyncClient, url: str, keys: ReachKeys, clock: Clock, *, hold_s: int) -> None:
        self._http, self._url, self._keys, self._clock, self._hold_s = http, url.rstrip("/"), keys, clock, hold_s

    async def findings(self) -> list[Finding]:
        """One finding when nobody of ours answers there; else one for each thing that agents need."""
        question, answer = await self._ask("GET", 0, _SOON_S)
        problem = self._not_ours(question, answer)
        if problem is not None:
            return [problem]
        assert isinstance(answer, HttpAnswer)
        found = [good(NAME, f"{self._url} leads to this installation ({answer.took_s * 1000:.0f} ms)")]
        asked = [self._large()] if self._hold_s == 0 else [self._held(), self._large()]
        return found + list(await asyncio.gather(*asked))

    async def _ask(
        self, method: str, hold_s: int, within_s: float, content: bytes | None = None
    ) -> tuple[ReachQuestion, HttpAnswer | Unanswered]:
        question = ReachQuestion(secrets.token_hex(16), hold_s, self._clock.now_ms() + _LIFE_MS)
        url = self._url + self._keys.path(question)
        return question, await ask(self._http, method, url, within_s=within_s, content=content)

    def _not_ours(self, question: ReachQuestion, answer: HttpAnswer | Unanswered) -> Finding | None:
        if isinstance(answer, Unanswered):
            return wrong(NAME, f"public_url_{answer.code}", answer.words, f"{answer.fix}; the address is {_SETTING}")
        if 300 <= answer.status < 400:
            to = answer.headers.get("location", "nowhere")
            return wrong(
                NAME,
                "public_url_redirects",
                f"{self._url} answers {answer.status} and sends elsewhere ({_short(to)}); agents send reports, which "
                "no redirect carries on",
                f"set {_SETTING} to the address that it leads to, without a redirect on the way",
            )
        told = _json(answer.body)
        if answer.status == 200 and told.get("answer") == self._keys.answer(question.nonce):
            return None
        if answer.status == 403 and "error" in told:
            return wrong(
                NAME,
                "public_url_other_installation",
                f"another Allpass answers at {self._url}: it does not know this one's signature",
                f"correct {_SETTING}, or run this with the ALLPASS_SECRET_KEY of the service (and a clock that agrees)",
            )
        if answer.status in (502, 503, 504):
            return wrong(
                NAME,
                "public_url_nothing_behind",
                f"a proxy answers at {self._url} with {answer.status}: it does not reach the service behind it",
                "start the tunnel, and have the proxy lead to the service's port",
            )
        return wrong(
            NAME,
            "public_url_somebody_else",
            f"somebody else answers at {self._url} (status {answer.status}, "
            f"{_short(answer.headers.get('server', 'no name'))})",
            f"correct {_SETTING}, or have the proxy pass on all paths unchanged",
        )

    async def _held(self) -> Finding:
        """As a long poll: an idle connection for so long, and then the whole answer."""
        name, hold_s = "long polls", self._hold_s
        question, answer = await self._ask("GET", hold_s, hold_s + _SOON_S)
        if isinstance(answer, HttpAnswer) and self._not_ours(question, answer) is None:
            return good(name, f"an answer that takes {hold_s} s arrives")
        after = answer.took_s
        how = f"status {answer.status}" if isinstance(answer, HttpAnswer) else answer.words
        return wrong(
            name,
            "long_poll_cut",
            f"an idle connection was cut after {after:.0f} s of {hold_s} ({how}); agents are answered so late",
            f"raise the proxy's time limit for answers above {hold_s} s, or set ALLPASS_AGENT_POLL_S below {after:.0f}",
        )

    async def _large(self) -> Finding:
        """As the report of a checkpoint of many files."""
        name, size = "large reports", LARGEST_REPORT_BYTES
        question, answer = await self._ask("POST", 0, _UPLOAD_S, b" " * size)
        ours = isinstance(answer, HttpAnswer) and self._not_ours(question, answer) is None
        if ours and isinstance(answer, HttpAnswer) and _json(answer.body).get("received_bytes") == size:
            return good(name, f"{size // 2**20} MiB arrive in {answer.took_s:.1f} s")
        how = f"status {answer.status}" if isinstance(answer, HttpAnswer) else answer.words
        return wrong(
            name,
            "large_report_refused",
            f"a report of {size // 2**20} MiB does not arrive ({how}); checkpoints of many files need that",
            "raise the proxy's limit for bodies to 8 MiB (nginx: client_max_body_size 8m)",
        )


def _json(body: bytes) -> dict[str, object]:
    try:
        told = json.loads(body)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _short(text: str) -> str:
    return text[:80]
