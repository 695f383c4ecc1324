"""Data sets of the Hugging Face hub, by the Parquet files that it makes of each: `org/name`, `org/name:split`, or
`org/name:config/split`."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from allpass.errors import InvalidData, Problem

LARGEST_BYTES = 1 << 30  # of all its files
_HUB = "https://huggingface.co"
_NAME = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*?)(:((?P<config>[\w.-]+)/)?(?P<split>[\w.-]+))?")
_WAIT_S = 30.0


@dataclass(frozen=True)
class HubName:
    """`config` and `split` are None where they are not said."""

    name: str
    config: str | None
    split: str | None

    @property
    def short(self) -> str:
        return self.name.partition("/")[2]


def hub_name(source: str | os.PathLike[str]) -> HubName | None:
    """What a source that is no file here says of a data set on the hub; None where it cannot be one."""
    found = _NAME.fullmatch(os.fspath(source))
    return None if found is None else HubName(found["name"], found["config"], found["split"])


@contextmanager
def fetched(wanted: HubName) -> Iterator[list[Path]]:
    """The files of one split, for as long as they are read. Raises InvalidData."""
    import httpx

    endpoint = os.environ.get("HF_ENDPOINT", _HUB).rstrip("/")
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise _refused(wanted, "HF_HUB_OFFLINE keeps it from being read from the hub", "the path of a file")
    with httpx.Client(timeout=_WAIT_S, follow_redirects=True) as http, tempfile.TemporaryDirectory() as folder:
        try:
            listing = http.get(f"{endpoint}/api/datasets/{wanted.name}/parquet", headers=_headers(endpoint, endpoint))
            if listing.status_code != httpx.codes.OK:
                raise _unknown(wanted, listing.status_code)
            files = _files(http, wanted, endpoint, _chosen(wanted, listing.json()), Path(folder))
        except InvalidData:
            raise
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise _refused(wanted, f"cannot be read from {endpoint}: {error}", "try again, or download it") from None
        yield files


def _files(http: Any, wanted: HubName, endpoint: str, urls: list[str], folder: Path) -> list[Path]:
    files = []
    total = 0
    for number, url in enumerate(urls):
        files.append(folder / f"{number}.parquet")
        with http.stream("GET", url, headers=_headers(url, endpoint)) as reply, files[-1].open("wb") as file:
            reply.raise_for_status()
            for piece in reply.iter_bytes():
                total += len(piece)
                if total > LARGEST_BYTES:
                    size = f"is larger than the {LARGEST_BYTES >> 20} MiB that are read from the hub"
                    raise _refused(wanted, size, "download it, and send the rows that you need")
                file.write(piece)
    return files


def _chosen(wanted: HubName, listing: Any) -> list[str]:
    """The addresses of the files of the split."""
    configs = listing if isinstance(listing, dict) else {}
    config = wanted.config or _only(configs, "default")
    splits = configs.get(config or "")
    if not isinstance(splits, dict) or config is None:
        known = ", ".join(map(str, list(configs)[:10])) or "none"
        what = f"has no configuration {wanted.config!r}" if wanted.config else "has several configurations"
        raise _refused(wanted, f"{what}: {known}", f"{wanted.name}:{next(iter(configs), 'default')}/train")
    split = wanted.split or _only(splits, "train")
    urls = splits.get(split or "")
    if not isinstance(urls, list) or not all(isinstance(one, str) for one in urls) or not urls:
        known = ", ".join(map(str, splits))
        what = f"has no split {split!r}" if split else "has no split 'train'"
        raise _refused(wanted, f"{what}: {known}", f"{wanted.name}:{config}/{next(iter(splits), 'train')}")
    return urls


def _only(there: dict[str, Any], usual: str) -> str | None:
    if usual in there:
        return usual
    return next(iter(there)) if len(there) == 1 else None


def _headers(url: str, endpoint: str) -> dict[str, str]:
    """The token is the hub's alone."""
    token = os.environ.get("HF_TOKEN")
    is_hubs = urlsplit(url)[:2] == urlsplit(endpoint)[:2]
    return {"Authorization": f"Bearer {token}"} if token and is_hubs else {}


def _unknown(wanted: HubName, status: int) -> InvalidData:
    if status in (401, 403, 404):
        what = "is neither a file here nor a data set of the hub that can be read"
        return _refused(wanted, what, "a path, or for a private one HF_TOKEN")
    return _refused(wanted, f"the hub answered with {status}", "try again, or download it")


def _refused(wanted: HubName, message: str, hint: str) -> InvalidData:
    return InvalidData(wanted.name, [Problem("", message, hint)])
