"""Files of pages, kept as they are sent: read, hashed and compressed once, when the process begins."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fastapi import Request, Response

_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
}
_WORTH_IT = 0.9  # of its size: what compresses worse is sent as it is


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A browser asks each time whether its copy is still the right one, so that a new release is seen at once."""

    media_type: str
    content: bytes
    compressed: bytes | None
    tag: str

    def answer(self, request: Request, headers: Mapping[str, str]) -> Response:
        """The content, or 304 for who has it."""
        zipped = self.compressed is not None and _takes_gzip(request.headers.get("accept-encoding", ""))
        tag = f'"{self.tag}-gz"' if zipped else f'"{self.tag}"'
        told = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding", **headers}
        told["X-Content-Type-Options"] = "nosniff"
        if _has(request.headers.get("if-none-match", ""), tag):
            return Response(status_code=304, headers=told)
        if zipped:
            told["Content-Encoding"] = "gzip"
        return Response(self.compressed if zipped else self.content, headers=told, media_type=self.media_type)


def keep_file(path: Path) -> KeptFile:
    """Raises OSError for a file that cannot be read, and KeyError for one that no page is made of."""
    media_type, content = _MEDIA_TYPES[path.suffix], path.read_bytes()
    compressed = gzip.compress(content, mtime=0)
    worth_it = len(compressed) < _WORTH_IT * len(content)
    return KeptFile(media_type, content, compressed if worth_it else None, hashlib.sha256(content).hexdigest()[:32])


def keep_folder(folder: Path) -> dict[str, KeptFile]:
    """By name, the files of this folder, and of none below it. None, where there is no such folder."""
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return {path.name: keep_file(path) for path in found if path.is_file() and path.suffix in _MEDIA_TYPES}


def _takes_gzip(accepted: str) -> bool:
    for part in accepted.lower().split(","):
        name, _, quality = part.partition(";")
        if name.strip() in ("gzip", "*"):
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _has(condition: str, tag: str) -> bool:
    """Whether If-None-Match names it; a proxy that changes the encoding makes tags weak."""
    return any(part.strip().removeprefix("W/") in (tag, "*") for part in condition.split(","))
