"""How a server speaks to the service: it asks, as all machines do, and is never asked."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_WAIT_S = 60.0
_TRIES = 5
_PAUSE_S = 0.5
_UNPROCESSABLE = 422


class NotServing(Exception):
    """The service does not know this server any more, or its token."""


class ServingDoor:
    """`instance` names this process: what an earlier one had taken is given to this one."""

    def __init__(
        self, url: str, server_id: str, token: str, instance: str, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._url = f"{url.rstrip('/')}/v1/serving/{server_id}"
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._instance = instance
        self._sleep = sleep

    def begin(self) -> None:
        """From now on this process answers for the server."""
        self._post("begin", {"instance": self._instance})

    def take(self, wait_s: float, holding: Sequence[str] = ()) -> dict[str, Any] | None:
        """The next request beside those that are held, waited for as long; None where there is none. What was taken and
        never arrived here is given again."""
        held = {"holding": list(holding)} if holding else {}
        try:
            answer = self._post("take", {"instance": self._instance, "wait_s": wait_s, **held})
        except urllib.error.HTTPError as error:
            if not held or error.code != _UNPROCESSABLE:
                raise
            self._sleep(wait_s)  # a service of the release before gives one at a time
            return None
        return answer.get("request")

    def tell(self, request_id: str, **told: Any) -> bool:
        """More of an answer, or its end. False: nobody listens any more."""
        body = {"instance": self._instance, "request_id": request_id, **told}
        return bool(self._post("tell", body).get("goes_on", False))

    def fetch(self, url: str, path: Path) -> None:
        """A file of an adapter, by a signed URL."""
        part = path.with_name(path.name + ".part")
        with urllib.request.urlopen(url, timeout=_WAIT_S) as answer, part.open("wb") as out:  # noqa: S310 - the service's
            while block := answer.read(1 << 20):
                out.write(block)
        part.replace(path)

    def _post(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Sent again where the service does not answer. Raises NotServing, and OSError after some tries."""
        request = urllib.request.Request(f"{self._url}/{name}", json.dumps(body).encode(), self._headers)  # noqa: S310
        for left in reversed(range(_TRIES)):
            try:
                with urllib.request.urlopen(request, timeout=_WAIT_S) as answer:  # noqa: S310 - the service's
                    found: dict[str, Any] = json.load(answer)
                    return found
            except urllib.error.HTTPError as error:
                if error.code in (401, 403, 404, 409):
                    raise NotServing(f"the service answered {error.code}") from None
                if error.code < 500 and error.code != 429:
                    raise
                if not left:
                    raise
            except OSError:
                if not left:
                    raise
            self._sleep(_PAUSE_S * 2 ** (_TRIES - 1 - left))
        raise AssertionError("not reached")
