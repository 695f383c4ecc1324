"""Reading requests to OpenAI's API, or to one that speaks like it. Answers are bounded in size and time, and the key
goes to the one host that it was meant for."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

import httpx

from allpass import __version__
from allpass.client.setup import NO_PROXY
from allpass.errors import AllpassError, ConfigurationError, ConnectionFailed, UnexpectedReply
from allpass.http import Retries, httpx_timeout

Result = TypeVar("Result")
MOST_JSON_BYTES = 16 << 20
MOST_LIST_BYTES = 256 << 20  # of all pages of a list
MOST_FILE_BYTES = 2 << 30
PAGE = 100
_JSON_S, _FILE_S = 120.0, 3600.0  # the longest that one answer may take
_SILENCE_S = 60.0
_REDIRECTS = 3
_TRIED_AGAIN = frozenset({408, 409, 429, 500, 502, 503, 504})
_LONGEST_MESSAGE = 300
RETRIES = Retries(attempts=5, first_wait_s=0.5, longest_wait_s=60.0)


class Refused(AllpassError):
    """The other side answered with an error."""

    def __init__(self, message: str, status: int, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class KeyRefused(Refused):
    """It does not know the key: nothing else will be answered."""


class OtherSide:
    """`url`: with `/v1` at its end. `more`: headers that go with the key."""

    def __init__(
        self,
        url: str,
        key: str,
        *,
        more: Mapping[str, str] | None = None,
        transport: httpx.BaseTransport | None = None,
        retries: Retries = RETRIES,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url, self._key = url, checked_key(key)
        self._headers = {"Authorization": f"Bearer {self._key}", **(more or {})}
        self._headers |= {"User-Agent": f"allpass-python/{__version__}", "Accept-Encoding": "identity"}
        self._http = httpx.Client(transport=transport, mounts=dict(NO_PROXY), follow_redirects=False)
        self._retries, self._sleep, self._clock = retries, sleep, clock
        self._read = 0

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, params: Mapping[str, str | int] | None = None) -> dict[str, Any]:
        """The object that a path answers with."""
        return self._attempts(path, params or {}, lambda response: self._object(path, response))

    def list(self, path: str, *, most: int) -> Iterator[Any]:
        """Items of a list, page after page, each once; no more than `most`, and an end where pages repeat."""
        seen: set[str] = set()
        after, count, began = None, 0, self._read
        while count < most and self._read - began < MOST_LIST_BYTES:
            asked: dict[str, str | int] = {"limit": min(PAGE, most - count)}
            page = self.get(path, asked if after is None else {**asked, "after": after})
            data = page.get("data")
            if not isinstance(data, list):
                raise UnexpectedReply(f"{path}: `data` of the answer is {_kind(data)}, not a list", hint=self._hint())
            fresh = [one for one in data[: most - count] if _id(one) not in seen]
            yield from fresh
            count += len(fresh)
            seen.update(one for one in map(_id, fresh) if one is not None)
            after = next((one for one in map(_id, reversed(fresh)) if one is not None), None)
            if page.get("has_more") is not True or after is None:
                return

    def fetch(
        self, path: str, open_file: Callable[[], IO[bytes]], *, size: int | None, most: int = MOST_FILE_BYTES
    ) -> int:
        """The bytes of a path into the file that `open_file` makes, anew in every attempt; how many. `size`: how many
        there have to be; `most`: there may be, where that is not known."""
        most = most if size is None else min(size, most)

        def take(response: httpx.Response) -> int:
            with open_file() as file:
                arrived = sum(map(file.write, self._blocks(path, response, most, _FILE_S)))
            if size is not None and arrived != size:
                raise httpx.ReadError(f"{arrived:,} of {size:,} bytes arrived")
            return arrived

        return self._attempts(path, {}, take)

    def _attempts(self, path: str, params: Mapping[str, str | int], take: Callable[[httpx.Response], Result]) -> Result:
        attempt = 1
        while True:
            wait_s = None
            try:
                with closing(self._answer(path, params)) as response:
                    if response.status_code == 200:
                        return take(response)
                    refused = self._refusal(path, response)
                    if attempt >= self._retries.attempts or not _is_tried_again(response):
                        raise refused
                    wait_s = _wait_s(response)
            except httpx.RequestError as error:
                if attempt >= self._retries.attempts:
                    why = self._without_key(str(error) or type(error).__name__)
                    told = f"{path}: no answer from {self.url}: {why} (tried {attempt} times)"
                    raise ConnectionFailed(told, hint="run the same command again: it goes on from there") from None
            attempt += 1
            self._sleep(self._retries.wait_s(attempt, wait_s))

    def _answer(self, path: str, params: Mapping[str, str | int]) -> httpx.Response:
        """As a stream that is open. Redirects are followed to the same host alone."""
        url = httpx.URL(self.url + path, params=dict(params))
        for _ in range(_REDIRECTS):
            request = self._http.build_request("GET", url, headers=self._headers, timeout=httpx_timeout(_SILENCE_S))
            response = self._http.send(request, stream=True)
            if not response.has_redirect_location:
                return response
            response.close()
            try:
                target = url.join(response.headers["location"])
            except (httpx.InvalidURL, ValueError):
                raise UnexpectedReply(f"{path}: redirects to what is no address", hint=self._hint()) from None
            if (target.scheme, target.host, target.port) != (url.scheme, url.host, url.port):
                other = f"{target.scheme}://{target.host}"[:_LONGEST_MESSAGE]
                raise UnexpectedReply(
                    f"{path}: redirects to another host ({other}), which does not get the key; not followed",
                    hint=self._hint(),
                )
            url = target
        raise UnexpectedReply(f"{path}: redirects again and again", hint=self._hint())

    def _blocks(self, path: str, response: httpx.Response, most: int, longest_s: float) -> Iterator[bytes]:
        until, arrived = self._clock() + longest_s, 0
        for block in response.iter_bytes():
            arrived += len(block)
            self._read += len(block)
            if arrived > most:
                raise UnexpectedReply(f"{path}: the answer is larger than {most:,} bytes", hint=self._hint())
            if self._clock() > until:
                raise UnexpectedReply(f"{path}: the answer takes longer than {longest_s:.0f} s", hint=self._hint())
            yield block

    def _object(self, path: str, response: httpx.Response) -> dict[str, Any]:
        content = b"".join(self._blocks(path, response, MOST_JSON_BYTES, _JSON_S))
        try:
            told = read_json(content.replace(self._key.encode(), b"[key]"))
        except ValueError:
            told = None
        if not isinstance(told, dict):
            kind = response.headers.get("content-type", "no content type")[:80]
            raise UnexpectedReply(f"{path}: the answer is no JSON object ({kind})", hint=self._hint())
        return told

    def _refusal(self, path: str, response: httpx.Response) -> Refused:
        status = response.status_code
        try:
            error = self._object(path, response).get("error")
        except (UnexpectedReply, httpx.RequestError):
            error = None
        told = error.get("message") if isinstance(error, dict) else None
        message = f"{path}: HTTP {status}" + (f": {told[:_LONGEST_MESSAGE]}" if isinstance(told, str) else "")
        if status == 401:
            hint = "export OPENAI_API_KEY=... with a key of the account that has the jobs"
            return KeyRefused(message, status, hint=hint)
        return Refused(message, status)

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "[key]")[:_LONGEST_MESSAGE]

    def _hint(self) -> str:
        return f"is {self.url} the right address? --from URL, or OPENAI_BASE_URL"


def checked_key(key: str) -> str:
    """Without white space around it. Never told in an error."""
    key = key.strip()
    if not key or not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigurationError("OPENAI_API_KEY is not an API key: it is empty, or has characters that no key has")
    return key


def is_open_to_all(url: str) -> bool:
    """Whether whoever is between here and there could read the key."""
    parts = urlsplit(url)
    return parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "localhost", "::1")


def read_json(content: bytes) -> Any:
    """Raises ValueError. What is no finite number is null."""
    try:
        return json.loads(content, parse_constant=lambda _: None, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _id(item: Any) -> str | None:
    told = item.get("id") if isinstance(item, dict) else None
    return told if isinstance(told, str) and 0 < len(told) <= 200 else None


def _is_tried_again(response: httpx.Response) -> bool:
    return response.status_code in _TRIED_AGAIN and response.headers.get("x-should-retry") != "false"


def _wait_s(response: httpx.Response) -> float | None:
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(response.headers.get(name, "")) / unit
        except ValueError:
            continue
        if 0 <= seconds < math.inf:
            return seconds
    return None


def _kind(value: Any) -> str:
    return "missing" if value is None else type(value).__name__
