"""What a check of a set-up found, in words for whoever has to mend it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

_SHORTEST_SECRET = 4  # characters: anything shorter would be found everywhere
_HIDDEN = "[hidden]"


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a report. `code` is stable; `fix` says what to do, and is empty where nothing is wrong."""

    name: str
    verdict: Verdict
    message: str
    fix: str = ""
    code: str = "ok"


def good(name: str, message: str) -> Finding:
    return Finding(name, Verdict.OK, message)


def doubtful(name: str, code: str, message: str, fix: str) -> Finding:
    return Finding(name, Verdict.WARN, message, fix, code)


def wrong(name: str, code: str, message: str, fix: str) -> Finding:
    return Finding(name, Verdict.FAIL, message, fix, code)


def worst(findings: Iterable[Finding]) -> Verdict:
    order = (Verdict.OK, Verdict.WARN, Verdict.FAIL)
    return max((one.verdict for one in findings), key=order.index, default=Verdict.OK)


def without_secrets(finding: Finding, secrets: Iterable[str]) -> Finding:
    """The finding with every secret blotted out, however it got in, and without control characters."""
    return replace(finding, message=blotted(finding.message, secrets), fix=blotted(finding.fix, secrets))


def blotted(text: str, secrets: Iterable[str]) -> str:
    """One printable line that holds none of the secrets; the longest go first, since one may hold another."""
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, _HIDDEN)
    return "".join(character if character.isprintable() else " " for character in text)


def as_object(finding: Finding) -> Mapping[str, str]:
    """For JSON."""
    return {
        "name": finding.name,
        "verdict": finding.verdict.value,
        "code": finding.code,
        "message": finding.message,
        "fix": finding.fix,
    }
