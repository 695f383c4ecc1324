"""Names of objects. The last segment of every key is the sha256 of its content.

One rule, so that no second file can disagree with the first: a key cannot hold other bytes than its name promises.
"""

from __future__ import annotations

import re

from app.core.model.checkpoint import SHA256_HEX
from app.errors import InvalidInput, ObjectCorrupt

MAX_KEY_CHARS = 512
_SEGMENT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}\Z")
_PREFIX = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}(?:/|\Z))*\Z")


def sha256_of_key(key: str) -> str:
    """The content hash that a key ends in.

    Raises InvalidInput when the key could leave the store, hide in it, or does not end in a hash. Only the last
    segment may look like a hash: a key is then never the folder of another.
    """
    if len(key) > MAX_KEY_CHARS:
        raise InvalidInput(f"a key has at most {MAX_KEY_CHARS} characters, this one has {len(key)}", param="key")
    *folders, name = key.split("/")
    for segment in (*folders, name):
        if not _SEGMENT.match(segment):
            raise InvalidInput(
                f"{key!r}: segment {segment!r} is not 1-128 of A-Z a-z 0-9 _ - . (no dot in front)", param="key"
            )
    if not is_sha256(name):
        raise InvalidInput(f"{key!r} does not end in the sha256 of its content (64 hex digits)", param="key")
    if any(is_sha256(folder) for folder in folders):
        raise InvalidInput(f"{key!r}: only the last segment may be a sha256", param="key")
    return name


def check_promise(key: str, sha256: str) -> None:
    """Refuse a promise of other content than the key names. Raises InvalidInput, ObjectCorrupt."""
    if sha256_of_key(key) != sha256:
        raise ObjectCorrupt(f"key {key!r} names other content than sha256 {sha256!r}", param="sha256")


def check_prefix(prefix: str) -> None:
    """Refuse a prefix that no key can begin with. Raises InvalidInput."""
    if len(prefix) > MAX_KEY_CHARS or not _PREFIX.match(prefix):
        raise InvalidInput(f"{prefix!r} is not the beginning of a key", param="prefix")


def is_sha256(text: str) -> bool:
    return SHA256_HEX.match(text) is not None and not text.endswith("\n")
