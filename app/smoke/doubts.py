"""What only a real account can settle: each question, how a rehearsal answers it, and what to do if it is no."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Facts = Mapping[str, Any]
_OPEN = "open"


@dataclass(frozen=True, slots=True)
class Doubt:
    """`answer` reads the facts of the run: yes, no, or None where this run does not show it."""

    question: str
    answer: Callable[[Facts], bool | None]
    fallback: str


@dataclass(frozen=True, slots=True)
class Settled:
    question: str
    answer: str  # yes | no | open
    fallback: str


def _fact(name: str) -> Callable[[Facts], bool | None]:
    def read(facts: Facts) -> bool | None:
        found = facts.get(name)
        return found if isinstance(found, bool) else None

    return read


def _unknown(_: Facts) -> bool | None:
    return None


def _both(*names: str) -> Callable[[Facts], bool | None]:
    def read(facts: Facts) -> bool | None:
        found = [facts.get(name) for name in names]
        return all(found) if all(isinstance(one, bool) for one in found) else None

    return read


DOUBTS: Mapping[str, tuple[Doubt, ...]] = {
    "modal": (
        Doubt(
            "Do listings with finished sandboxes, and the times of tasks, tell what is billed?",
            _fact("billed_by_provider"),
            "the ledger goes by our own looks at the sandbox; compare it with the dashboard",
        ),
        Doubt(
            "Does the image have Python and pip, which builders up to 2024.10 need?",
            _both("has_python", "pip"),
            "take an image with both, or a workspace whose image builder is newer",
        ),
        Doubt(
            "Does the building of an image go on when its client leaves?",
            _unknown,
            "start the first job twice: Allpass tries again until the image is there",
        ),
        Doubt(
            "May a process become another user there (setuid under gVisor)?",
            _fact("other_user"),
            "a sandbox runs one job and ends with it, so its code may run as root there",
        ),
    ),
    "vast": (
        Doubt(
            "Does a container start with `user: root`?",
            _fact("started"),
            "take an image whose user is root",
        ),
        Doubt(
            "Is `cancel_unavail` kept for bids, so that a lost offer leaves no contract?",
            _unknown,
            "leave ALLPASS_VAST_BIDS off; a contract that is left is destroyed by its label",
        ),
        Doubt(
            "Is a machine up before its deadline, image download included (8 GB at 200 Mbit/s take 320 s)?",
            _fact("in_time"),
            "raise ALLPASS_VAST_STARTUP_DEADLINE_S, or ALLPASS_VAST_INET_DOWN_MBPS, or take a smaller image",
        ),
        Doubt(
            "Does the default list of GPU types find offers?",
            _fact("has_offers"),
            "set ALLPASS_VAST_GPU_TYPES to names that the console shows",
        ),
    ),
    "lambda": (
        Doubt(
            "Can Python packages be installed there (the system's Python may lack ensurepip)?",
            _both("pip"),
            "apps without pip packages run; others need the package python3-venv in the image",
        ),
        Doubt(
            "Does the image that is launched have NVIDIA's driver?",
            _fact("has_gpu"),
            "name another region (ALLPASS_LAMBDA_REGIONS), and report the name of the image",
        ),
    ),
}


def settle(provider: str, facts: Facts) -> list[Settled]:
    """The answers that this run gives; what it does not show stays open."""
    return [
        Settled(one.question, _word(one.answer(facts)), one.fallback if one.answer(facts) is not True else "")
        for one in DOUBTS.get(provider, ())
    ]


def _word(answer: bool | None) -> str:
    return _OPEN if answer is None else "yes" if answer else "no"
