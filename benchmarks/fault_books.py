"""What each place of machines has and charges, asked behind the control plane's back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import httpx

from app.stack.emulated import Emulated

_LISTING_LAG_MS = 400
_BASE_SWITCHES: Mapping[str, Mapping[str, Any]] = {
    "modal": {"listing_lag_ms": _LISTING_LAG_MS},
    "vast": {"list_lag_ms": _LISTING_LAG_MS},
    "lambda": {},
    "runpod": {},
    "kubernetes": {},
}
_PLENTY: Mapping[str, Mapping[str, int]] = {
    "modal": {},
    "vast": {"RTX 4090": 200},
    "lambda": {"gpu_1x_a10": 10},
    "runpod": {"secure/NVIDIA RTX A6000": 50},
    "kubernetes": {},
}


class Books(ABC):
    """One place of machines: what goes wrong there, and what it has. References are those that a node knows."""

    name: str

    @abstractmethod
    async def settle_in(self) -> None:
        """No faults, the switches of every row, and enough to rent."""

    @abstractmethod
    async def fault(self, body: Mapping[str, Any]) -> None: ...

    @abstractmethod
    async def switch(self, switches: Mapping[str, Any]) -> None: ...

    @abstractmethod
    async def act(self, ref: str, what: str, body: Mapping[str, Any]) -> None:
        """Do something to a machine."""

    @abstractmethod
    async def strikes_left(self) -> int:
        """How many calls the faults that wait will still strike."""

    @abstractmethod
    async def machines(self) -> list[dict[str, Any]]:
        """All that there ever were, oldest first, each with its bill."""

    @abstractmethod
    async def orphan_micros(self, owned: set[str]) -> int:
        """What machines have cost that are not among those owned."""

    @abstractmethod
    async def close(self) -> None: ...

    async def live(self) -> list[dict[str, Any]]:
        return [machine for machine in await self.machines() if machine["state"] != "ended"]


class CompanyBooks(Books):
    """The admin port of one company."""

    def __init__(self, company: Emulated) -> None:
        self.name = company.company.value
        self._http = httpx.AsyncClient(
            base_url=f"{company.admin_url}/admin",
            headers={"Authorization": f"Bearer {company.admin_key}"},
            timeout=30,
            trust_env=False,
        )

    async def settle_in(self) -> None:
        await self._ask("DELETE", "/faults")
        await self._ask("DELETE", "/switches")
        await self._ask("POST", "/switches", _BASE_SWITCHES[self.name])
        await self._ask("DELETE", "/market")
        await self.market(supply=_PLENTY[self.name])

    async def market(self, **script: Any) -> None:
        await self._ask("POST", "/market", script)

    async def fault(self, body: Mapping[str, Any]) -> None:
        await self._ask("POST", "/faults", body)

    async def switch(self, switches: Mapping[str, Any]) -> None:
        await self._ask("POST", "/switches", switches)

    async def act(self, ref: str, what: str, body: Mapping[str, Any]) -> None:
        await self._ask("POST", f"/machines/{ref}/{what}", body)

    async def strikes_left(self) -> int:
        faults = (await self._ask("GET", "/faults"))["faults"]
        return sum(fault["count"] for fault in faults)

    async def machines(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = (await self._ask("GET", "/machines"))["machines"]
        return listed

    async def orphan_micros(self, owned: set[str]) -> int:
        return int((await self._ask("POST", "/ledger", {"owned": sorted(owned)}))["orphan_cost_micros"])

    async def close(self) -> None:
        await self._http.aclose()

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        answer = await self._http.request(method, path, json=body)
        if answer.is_error:
            raise RuntimeError(f"{self.name} {method} {path}: {answer.status_code} {answer.text}")
        told: dict[str, Any] = answer.json()
        return told
