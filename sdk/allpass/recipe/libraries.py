"""The libraries that a fine-tuning is computed by. What its first machine has of them, all its machines are to have:
another version may compute something else. Runs on Python 3.9 with the standard library alone.
"""

from __future__ import annotations

import re
from importlib import metadata
from typing import Any, Dict, Iterable, List, Mapping

PACKAGES = ("torch>=2.4", "transformers>=4.56", "peft>=0.17", "safetensors>=0.4", "accelerate>=1.0")
FEW_BITS = "bitsandbytes>=0.45"
_BROUGHT_ALONG = ("tokenizers",)  # by transformers: it says how rows are read
_NAME = re.compile(r"[A-Za-z0-9]+(?:[._-]+[A-Za-z0-9]+)*")
_VERSION = re.compile(
    r"(?:\d+!)?\d+(?:\.\d+)*(?:[._-]?(?:a|b|c|rc|alpha|beta|pre|preview)[._-]?\d*)?"
    r"(?:[._-]?(?:post|rev|r)[._-]?\d*)?(?:[._-]?dev[._-]?\d*)?",
    re.ASCII | re.IGNORECASE,
)  # PEP 440, without a local part
_LONGEST = 60


def installed() -> Dict[str, str]:
    """The versions that this process has, by name; those that are missing are left out."""
    found = {}
    for name in (*map(_name_in, (*PACKAGES, FEW_BITS)), *_BROUGHT_ALONG):
        try:
            found[name] = str(metadata.version(name))
        except metadata.PackageNotFoundError:
            continue
    return found


def pins(told: Any, requirements: Iterable[str]) -> List[str]:
    """Requirements of exactly the versions that were told, of what is required anyway.

    Without the part that names a build (`+cu124`): no index but the builder's own has that, and which build is right is
    the machine's to know. Of what user code or another release has told, only what can be one is taken.
    """
    if not isinstance(told, Mapping):
        return []
    wanted = {_plain(_name_in(text)) for text in requirements}
    if not wanted:
        return []
    versions = {_plain(name): _public(version) for name, version in told.items() if isinstance(name, str)}
    known = sorted(wanted.union(_BROUGHT_ALONG).difference({""}).intersection(versions))
    return [f"{name}=={versions[name]}" for name in known if versions[name]]


def _name_in(requirement: str) -> str:
    found = _NAME.match(requirement)
    return found[0] if found else ""


def _plain(name: str) -> str:
    return re.sub(r"[._-]+", "-", name).lower()


def _public(version: Any) -> str:
    """Empty for what is none."""
    if not isinstance(version, str) or len(version) > _LONGEST:
        return ""
    public = version.partition("+")[0]
    return public if _VERSION.fullmatch(public) else ""
