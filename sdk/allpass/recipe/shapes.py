"""What a model's config.json says of its size: from its folder, from the hub's cache here, or from the hub."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LARGEST_BYTES = 1_000_000
_HUB = "https://huggingface.co"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WAIT_S = 5.0
_MOST_KEYS = 100
_LONGEST = 200
_LARGEST = 2**53  # as the wire has it; what is no number is not below it


def find_config(model: str) -> dict[str, Any] | None:
    """The config.json of a model; None where none can be had. HF_HUB_OFFLINE keeps it from asking the hub."""
    return find_json(model, "config.json")


def find_json(repository: str, name: str) -> dict[str, Any] | None:
    """A small file of a folder, or of a repository of the hub; None where it cannot be had, or is no object."""
    folder = Path(repository)
    if folder.is_dir():
        return _read(folder / name)
    if _HUB_NAME.fullmatch(repository) is None:
        return None
    cached = _cached(repository, name)
    return _fetched(repository, name) if cached is None else cached


def shape_of(config: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What of it decides the size: numbers, words and switches. None of a model that has several parts."""
    if config is None or "text_config" in config or "vision_config" in config or "model_type" not in config:
        return None
    plain = {key: value for key, value in config.items() if not key.startswith("_") and _is_plain(key, value)}
    return plain if len(plain) <= _MOST_KEYS else None


def _is_plain(key: str, value: Any) -> bool:
    if isinstance(value, (int, float)):
        return len(key) <= _LONGEST and abs(value) < _LARGEST
    return isinstance(value, str) and max(len(key), len(value)) <= _LONGEST and value.isprintable()


def read_config(folder: Path) -> dict[str, Any] | None:
    """The config.json of a folder; None where there is none that can be read."""
    return _read(folder / "config.json")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            return _parsed(file.read(LARGEST_BYTES + 1))
    except OSError:
        return None


def _parsed(content: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(content) if len(content) <= LARGEST_BYTES else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _cached(model: str, name: str) -> dict[str, Any] | None:
    """As huggingface_hub keeps it; of several revisions the one that `main` was last."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    kept = hub / ("models--" + model.replace("/", "--"))
    try:
        revision = (kept / "refs" / "main").read_text().strip()
    except (OSError, ValueError):
        return None
    return _read(kept / "snapshots" / Path(revision).name / name)


def _fetched(model: str, name: str) -> dict[str, Any] | None:
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return None
    import httpx

    url = f"{os.environ.get('HF_ENDPOINT', _HUB).rstrip('/')}/{model}/resolve/main/{name}"
    token = os.environ.get("HF_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    content = b""
    try:
        with httpx.stream("GET", url, headers=headers, timeout=_WAIT_S, follow_redirects=True) as reply:
            if reply.status_code != httpx.codes.OK:
                return None
            for piece in reply.iter_bytes():
                content += piece
                if len(content) > LARGEST_BYTES:
                    return None
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError):
        return None
    return _parsed(content)
