"""What answers of the API server mean: from its `Status` to our errors, each with what to do about it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.errors import AuthFailed, InvalidRequest, ProviderError, QuotaExceeded, RateLimited, Transient

_LONGEST_TEXT = 400
_PAUSE_MS = 2_000
_UNCLEAR = frozenset({408, 410})
_LONGEST_PAUSE_MS = 600_000


@dataclass(frozen=True, slots=True)
class KubeAnswer:
    """`what`: the call, for people."""

    what: str
    status: int
    text: str
    retry_after: str = ""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    def body(self) -> dict[str, Any]:
        """Raises Transient for what is no object: something between us and the server has answered."""
        try:
            told = json.loads(self.text)
        except ValueError as error:
            raise Transient(f"kubernetes: the answer to {self.what} cannot be read: {self.text[:200]!r}") from error
        if not isinstance(told, dict):
            raise Transient(f"kubernetes: the answer to {self.what} is no object: {self.text[:200]!r}")
        return told

    @property
    def said(self) -> Mapping[str, Any]:
        """The `Status` of a refusal; empty where it is none."""
        try:
            told = json.loads(self.text)
        except ValueError:
            return {}
        return told if isinstance(told, dict) and told.get("kind") == "Status" else {}

    @property
    def words(self) -> str:
        return str(self.said.get("message") or self.text or "no reason")[:_LONGEST_TEXT]

    @property
    def is_missing(self) -> bool:
        """Whether the API server itself says that there is no such object."""
        return self.status == 404 and self.said.get("reason") == "NotFound"


def refusal(answer: KubeAnswer) -> ProviderError | None:
    """The error in this answer; None for a success. Transient is what nobody can tell the effect of."""
    if answer.is_success:
        return None
    words, reason = f"kubernetes refuses {answer.what}: {answer.words}", answer.said.get("reason")
    known: dict[int, Callable[[], ProviderError]] = {
        401: lambda: AuthFailed(
            f"kubernetes: the credentials are refused ({answer.words}): renew the token of the kubeconfig that "
            "ALLPASS_KUBERNETES_KUBECONFIG names"
        ),
        403: lambda: _forbidden(answer, words),
        404: lambda: InvalidRequest(
            f"{words}; create the namespace, or set ALLPASS_KUBERNETES_NAMESPACE to one that is there"
        ),
        429: lambda: RateLimited(words, retry_after_ms=_pause_ms(answer)),
    }
    if answer.status in known:
        return known[answer.status]()
    if reason and 400 <= answer.status < 500 and answer.status not in _UNCLEAR:
        return InvalidRequest(words)
    return Transient(f"kubernetes answered {answer.what} with {answer.status}: {answer.words}")


def _forbidden(answer: KubeAnswer, words: str) -> ProviderError:
    """Refused by a quota, by a webhook, or by RBAC: the server has one status for all, and words that differ."""
    if "exceeded quota" in answer.words or "failed quota" in answer.words:
        return QuotaExceeded(f"{words}; raise the ResourceQuota of the namespace, or wait until others give back")
    if "admission webhook" in answer.words or "ValidatingAdmissionPolicy" in answer.words:
        return InvalidRequest(f"{words}; change the shape, or the policy of the cluster")
    if not answer.said:
        return Transient(f"kubernetes answered {answer.what} with 403: {answer.words}")
    return AuthFailed(f"{words}; apply deploy/kubernetes-pool/rbac.yaml, which has all rights that are needed")


def _pause_ms(answer: KubeAnswer) -> int:
    try:
        return min(_LONGEST_PAUSE_MS, max(0, round(float(answer.retry_after) * 1000)))
    except (ValueError, OverflowError):
        return _PAUSE_MS
