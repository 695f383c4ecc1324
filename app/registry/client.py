"""What a registry says of an image: its manifest and its configuration, a few kilobytes."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

import httpx

from app.core.images.facts import AMD64, ImageFacts
from app.core.images.logins import RegistryLogin
from app.core.images.reference import DOCKER_HUB, ImageReference
from app.errors import AllpassError, Forbidden, NotFound, TooManyRequests, Unavailable
from app.registry.challenges import authorization
from app.registry.reading import facts_of, platforms_of

_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_ACCEPT = {"Accept": ", ".join((*_INDEXES, *_MANIFESTS))}
_LARGEST_BYTES = 8 * 1024 * 1024
_LONGEST_PAUSE_S, _MOST_TRIES = 10.0, 3
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Registry:
    """One registry, with one login or none. A context manager.

    Its errors name what to do: NotFound, Forbidden (private, or not there for us), TooManyRequests, Unavailable.
    """

    def __init__(
        self,
        host: str,
        login: RegistryLogin | None,
        *,
        timeout_s: float = 20.0,
        sleep_s: Callable[[float], None] = time.sleep,
    ) -> None:
        self._host, self._login, self._sleep_s = host, login, sleep_s
        self._headers: dict[str, str] = {}
        self._http = httpx.Client(timeout=timeout_s, follow_redirects=True)
        served = "registry-1.docker.io" if host == DOCKER_HUB else host
        # As container engines do: a registry of this very host may be without encryption, no other one.
        scheme = "http" if served.rpartition(":")[0] in _LOOPBACK or served in _LOOPBACK else "https"
        self._base = f"{scheme}://{served}/v2/"

    def __enter__(self) -> Registry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def look(self, image: ImageReference, *, platform: str = AMD64) -> ImageFacts:
        """What there is to know of `image`: for that platform, else for the first that it has."""
        top, digest = self._manifest(image, image.version)
        manifest, platforms = top, {}
        if isinstance(top.get("manifests"), list):
            platforms = platforms_of(top)
            if not platforms:
                raise NotFound(f"{image.name}: its index names no image for any platform")
            chosen = platform if platform in platforms else next(iter(platforms))
            manifest, _ = self._manifest(image, platforms[chosen])
        described = manifest.get("config")
        if not isinstance(described, dict) or not isinstance(described.get("digest"), str):
            raise Unavailable(f"{image.name}: what {self._host} has is no image that containers are made of today")
        config = self._blob(image, described["digest"])
        return facts_of(image, digest, manifest, config, tuple(platforms))

    def _manifest(self, image: ImageReference, version: str) -> tuple[dict[str, Any], str]:
        """A manifest or an index, and its digest."""
        data = self._get(image, f"{image.repository}/manifests/{version}", _ACCEPT)
        digest = _digest(data)
        if version.startswith("sha256:") and version != digest:
            raise Unavailable(f"{self._host} gave {digest} for {version}: something between us changes what it says")
        return _object(data, self._host), digest

    def _blob(self, image: ImageReference, digest: str) -> dict[str, Any]:
        data = self._get(image, f"{image.repository}/blobs/{digest}", {})
        if _digest(data) != digest:
            raise Unavailable(
                f"{self._host} gave {_digest(data)} for {digest}: something between us changes what it says"
            )
        return _object(data, self._host)

    def _get(self, image: ImageReference, path: str, headers: Mapping[str, str]) -> bytes:
        """Once more with a token where one is asked for, and after a pause where we were too fast."""
        was_asked = False
        for left in reversed(range(_MOST_TRIES + 1)):
            response, data = self._ask(self._base + path, headers)
            if response.status_code == httpx.codes.UNAUTHORIZED and not was_asked:
                was_asked = True
                self._headers = self._authorize(response, image)
                continue
            pause_s = _pause_s(response)
            if response.status_code == httpx.codes.TOO_MANY_REQUESTS and left and pause_s <= _LONGEST_PAUSE_S:
                self._sleep_s(pause_s)
                continue
            if response.is_success:
                return data
            raise self._refusal(response, image)
        raise AssertionError("the last try ends the loop")

    def _ask(self, url: str, headers: Mapping[str, str]) -> tuple[httpx.Response, bytes]:
        data = b""
        try:
            with self._http.stream("GET", url, headers={**headers, **self._headers}) as response:
                for part in response.iter_bytes():
                    data += part
                    if len(data) > _LARGEST_BYTES:
                        raise Unavailable(f"{self._host} answers with more than {_LARGEST_BYTES >> 20} MiB")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unavailable(f"{self._host} cannot be asked: {type(error).__name__} {error}") from None
        return response, data

    def _authorize(self, response: httpx.Response, image: ImageReference) -> dict[str, str]:
        scope = f"repository:{image.repository}:pull"
        try:
            header = authorization(self._http, response.headers.get("WWW-Authenticate", ""), scope, self._login)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unavailable(f"{self._host} cannot be asked for a token: {type(error).__name__}") from None
        if header is None:
            raise self._refusal(response, image)
        return {"Authorization": header}

    def _refusal(self, response: httpx.Response, image: ImageReference) -> AllpassError:
        status, name = response.status_code, f"{image.name}:{image.version}".replace(":sha256:", "@sha256:")
        if status == httpx.codes.TOO_MANY_REQUESTS:
            why = "" if self._login else "; with a login in ALLPASS_REGISTRY_LOGINS more is allowed"
            text = f"{self._host} is asked too often from this address{why}"
            return TooManyRequests(text, retry_after_ms=round(1000 * _pause_s(response)))
        if status in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
            if self._login is not None:
                return Forbidden(
                    f"{self._host} does not give {name} to user {self._login.user!r}: not there, or not theirs"
                )
            return Forbidden(
                f"{name} is private or does not exist: {self._host} wants a login (ALLPASS_REGISTRY_LOGINS)"
            )
        if status == httpx.codes.NOT_FOUND:
            return NotFound(f"{self._host} has no image {name}")
        return Unavailable(f"{self._host} answered {status} for {name}")


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _object(data: bytes, host: str) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        read = json.loads(data)
        if isinstance(read, dict):
            return read
    raise Unavailable(f"{host} answers with something that is no JSON object: is it a registry?")


def _pause_s(response: httpx.Response) -> float:
    try:
        return max(0.0, float(response.headers.get("Retry-After", "1")))
    except ValueError:
        return 1.0
