"""A stack whose machines come from the three emulated companies, for rehearsals there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from app.stack.emulated import Emulated
from app.stack.supervisor import Clouds, Stack, StackOptions
from benchmarks.fault_ground import SETTINGS
from tests.folders import open_to_all

_OWN = {"ALLPASS_POLICY": "allpass", "ALLPASS_PRICES_S": "15"}


@contextmanager
def emulated_stack() -> Iterator[Stack]:
    with open_to_all() as folder:
        options = StackOptions(
            folder / "data", port=0, cloud_speed=0.0, clouds=Clouds.EMULATED, settings={**SETTINGS, **_OWN}
        )
        stack = Stack(options, tell=lambda _: None)
        stack.start()
        try:
            yield stack
        finally:
            stack.stop()


class Books:
    """What a company itself knows of its machines and its bill."""

    def __init__(self, company: Emulated) -> None:
        self._url, self._key = f"{company.admin_url}/admin", company.admin_key

    def machines(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self._ask("GET", "/machines")["machines"]
        return listed

    def alive(self) -> list[str]:
        return [one["ref"] for one in self.machines() if one["state"] != "ended"]

    def billed_micros(self) -> int:
        return sum(int(one["bill"]["amount_micros"]) for one in self.machines())

    def tell(self, path: str, **body: Any) -> None:
        self._ask("POST", path, body)

    def no_faults(self) -> None:
        self._ask("DELETE", "/faults")

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self._key}"}
        with httpx.Client(headers=headers, timeout=30, trust_env=False) as http:
            return http.request(method, self._url + path, json=body).raise_for_status().json()


def books_of(stack: Stack) -> dict[str, Books]:
    return {one.company.value: Books(one) for one in stack.companies}
