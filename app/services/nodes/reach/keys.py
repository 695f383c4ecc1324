"""How a service asks itself, through its own public address, whether it is itself that answers there.

Question and answer are signed with keys that derive from ALLPASS_SECRET_KEY. So nobody else can have the service hold
connections open, and nobody else can answer.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from urllib.parse import urlencode

from app.errors import Forbidden

MOST_HOLD_S = 60
_QUESTION, _ANSWER = b"allpass reach question\x00", b"allpass reach answer\x00"
_NONCE = re.compile(r"[0-9a-f]{32}\Z")
_REFUSED = "this question is not signed by the service that it asks, or is too old: run allpass doctor on its machine"


@dataclass(frozen=True, slots=True)
class ReachQuestion:
    """`hold_s`: how long the answer is kept back, as that of an agent that has nothing to hear."""

    nonce: str
    hold_s: int
    expires_ms: int


class ReachKeys:
    """Signs questions and answers of one installation."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def path(self, question: ReachQuestion) -> str:
        """Where to ask: among the calls of agents, since proxies are set up by path."""
        query = {"hold_s": question.hold_s, "expires_ms": question.expires_ms, "signature": self._sign(question)}
        return f"/v1/agent/reach/{question.nonce}?{urlencode(query)}"

    def check(self, question: ReachQuestion, signature: str, *, now_ms: int) -> None:
        """Raises Forbidden."""
        right = hmac.compare_digest(self._sign(question).encode(), signature.encode())
        if not (right and _NONCE.match(question.nonce) and 0 <= question.hold_s <= MOST_HOLD_S):
            raise Forbidden(_REFUSED)
        if now_ms >= question.expires_ms:
            raise Forbidden(_REFUSED)

    def answer(self, nonce: str) -> str:
        return hmac.new(self._secret, _ANSWER + nonce.encode(), hashlib.sha256).hexdigest()

    def _sign(self, question: ReachQuestion) -> str:
        asked = f"{question.nonce}/{question.hold_s}/{question.expires_ms}"
        return hmac.new(self._secret, _QUESTION + asked.encode(), hashlib.sha256).hexdigest()
