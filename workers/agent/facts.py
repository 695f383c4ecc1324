"""What user code tells of its training: kept as far as the server takes it, so that no report is refused for it."""

from __future__ import annotations

import itertools
import re
from typing import Any, Dict, Optional

_LAYOUT = ("micro_batch", "accumulation", "sequence")
_BYTES = ("allocated_bytes", "reserved_bytes", "process_bytes")
_MOST_LAYOUT = 2**40
_MOST_BYTES = 2**53
_MOST_VERSIONS = 16
_LONGEST_VERSION = 60
_LONGEST_SHARDING = 20
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
# As in allpass.training.links, which an agent does not import.
_LINK_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_URL = re.compile(r"https?://[A-Za-z0-9.\-_~%:\[\]]+(?:[/?#][!#-;=?-\[\]_a-z~]*)?")
_LONGEST_URL = 2000
MOST_LINKS = 8
_LIBRARY = re.compile(r"[A-Za-z0-9._+!-]{1,60}")
_EPOCHS = ("epochs", "fruitless_epochs")
_PROFILE = {"fisher": 1024, "pull": 512}  # at most so many numbers
_LONGEST_WHY = 1000
_GPUS = ("used", "leaving", "refused")
_MOST_GPUS, _LONGEST_GPU = 64, 100
_LONGEST_PAUSE_MS = 86_400_000
_LARGEST = 1e15  # of a number that is compared with those of other jobs


def facts_of(told: Any) -> Dict[str, Any]:
    """Of an object, the known fields whose values can be; of anything else nothing."""
    if not isinstance(told, dict):
        return {}
    facts: Dict[str, Any] = {}
    for names, least, most in ((_LAYOUT, 1, _MOST_LAYOUT), (_BYTES, 0, _MOST_BYTES)):
        for name in names:
            value = told.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
                facts[name] = value
    if isinstance(told.get("checkpointing"), bool):
        facts["checkpointing"] = told["checkpointing"]
    if isinstance(told.get("sharding"), str):
        facts["sharding"] = _plain(told["sharding"])[:_LONGEST_SHARDING]
    if isinstance(told.get("versions"), dict):
        facts["versions"] = {
            _plain(name)[:_LONGEST_VERSION]: _plain(version)[:_LONGEST_VERSION]
            for name, version in list(told["versions"].items())[:_MOST_VERSIONS]
            if isinstance(version, str)
        }
    return facts


def profile_of(told: Any) -> Dict[str, Any]:
    """What a profile run found; nothing where it is not all there."""
    found = told.get("profile") if isinstance(told, dict) else None
    if not isinstance(found, dict):
        return {}
    lists = all(_are_numbers(found.get(name), most) for name, most in _PROFILE.items())
    counts = all(_is_count(found.get(name)) for name in ("rows", "tokens"))
    return {name: found[name] for name in (*_PROFILE, "rows", "tokens")} if lists and counts else {}


def refused_of(told: Any) -> str:
    """Why the code's own states cannot be kept, in its words, on one line; empty where it says nothing of it."""
    found = told.get("refused") if isinstance(told, dict) else None
    return " ".join(_plain(found).split())[:_LONGEST_WHY] if isinstance(found, str) else ""


def unusable_of(told: Any) -> str:
    """Why the code cannot use the GPUs that it was given, in its words, on one line; empty where it can."""
    found = told.get("unusable") if isinstance(told, dict) else None
    return " ".join(_plain(found).split())[:_LONGEST_WHY] if isinstance(found, str) else ""


def untracked_of(told: Any) -> str:
    """Why the code's metrics do not reach the tracker that they are told to, in its words, on one line; empty where it
    says nothing of it."""
    found = told.get("untracked") if isinstance(told, dict) else None
    return " ".join(_plain(found).split())[:_LONGEST_WHY] if isinstance(found, str) else ""


def tokens_before(told: Any) -> Optional[int]:
    found = told.get("tokens_before") if isinstance(told, dict) else None
    return found if _is_count(found) else None


def saves_of(told: Any) -> bool:
    """Whether the code says that it saves and leaves when it is asked to."""
    return isinstance(told, dict) and told.get("saves") is True


def stops_together_of(told: Any) -> bool:
    """Whether the processes on all machines stop after the same step when any is asked to, as the code says."""
    return isinstance(told, dict) and told.get("stops_together") is True


def total_of(told: Any) -> Optional[int]:
    """The step that the training ends with, as its code says."""
    found = told.get("total_steps") if isinstance(told, dict) else None
    return found if _is_count(found) and found else None


def link_of(told: Any) -> Dict[str, str]:
    """A link that is to be shown with the job, by its name; nothing where others could not be shown it."""
    found = told.get("link") if isinstance(told, dict) else None
    name, url = (found.get("name"), found.get("url")) if isinstance(found, dict) else (None, None)
    if not isinstance(name, str) or not isinstance(url, str) or len(url) > _LONGEST_URL:
        return {}
    return {name: url} if _LINK_NAME.fullmatch(name) and _URL.fullmatch(url) else {}


def libraries_of(told: Any) -> Dict[str, str]:
    """The versions that the code computes with, by name."""
    found = told.get("libraries") if isinstance(told, dict) else None
    if not isinstance(found, dict):
        return {}
    words = (
        (name, version)
        for name, version in found.items()
        if isinstance(version, str) and _LIBRARY.fullmatch(name) and _LIBRARY.fullmatch(version)
    )
    return dict(itertools.islice(words, _MOST_VERSIONS))


def gpus_of(told: Any) -> Dict[str, Any]:
    """Of the GPUs that the code was given, by their names: those that it uses, those that it is about to leave, and
    those that it cannot use; nothing where that is not all there. Maybe how long its last change took (`pause_ms`)."""
    found = told.get("gpus") if isinstance(told, dict) else None
    if not isinstance(found, dict) or not all(_are_names(found.get(name)) for name in _GPUS):
        return {}
    pause_ms = found.get("pause_ms")
    is_time = type(pause_ms) is int and 0 <= pause_ms <= _LONGEST_PAUSE_MS
    return {**{name: found[name] for name in _GPUS}, **({"pause_ms": pause_ms} if is_time else {})}


def watched_of(told: Any) -> Dict[str, Any]:
    """How a job does that waits for this one's weights; nothing where it is not all there."""
    found = told.get("watch") if isinstance(told, dict) else None
    if not isinstance(found, dict) or not isinstance(found.get("job_id"), str) or not _ID.fullmatch(found["job_id"]):
        return {}
    if not all(_are_numbers([found.get(name)], 1) and found[name] >= 0 for name in _EPOCHS):
        return {}
    return {name: found[name] for name in ("job_id", *_EPOCHS)}


def _are_names(told: Any) -> bool:
    is_list = isinstance(told, list) and len(told) <= _MOST_GPUS
    return is_list and all(isinstance(one, str) and len(one) <= _LONGEST_GPU for one in told)


def _are_numbers(told: Any, most: int) -> bool:
    is_list = isinstance(told, list) and 0 < len(told) <= most
    return is_list and all(isinstance(one, float) and abs(one) <= _LARGEST for one in told)


def _is_count(told: Any) -> bool:
    return isinstance(told, int) and not isinstance(told, bool) and 0 <= told <= _MOST_BYTES


def _plain(text: str) -> str:
    """What UTF-8 can write."""
    return text.encode("utf-8", "replace").decode()
