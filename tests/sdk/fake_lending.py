"""Reservations and repeated windows, as the fake service plays them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import httpx

from allpass.wire.reservations import ReservationRequest
from allpass.wire.standby import WindowRequest

NOW = "2026-11-20T22:00:00Z"


@dataclass
class FakeLending:
    """Newest first, all on one page. `refuses`: the code with which a reservation is refused."""

    reservations: list[dict[str, Any]] = field(default_factory=list)
    windows: list[dict[str, Any]] = field(default_factory=list)
    refuses: str | None = None

    def answer(self, request: httpx.Request) -> httpx.Response | None:
        parts = request.url.path.strip("/").split("/")
        if parts[:2] == ["v1", "reservations"]:
            return self._reservations(request, parts[2:])
        if parts[-1] == "windows" or parts[:2] == ["v1", "standby-windows"]:
            return self._windows(request, parts)
        return None

    def _reservations(self, request: httpx.Request, rest: list[str]) -> httpx.Response:
        if request.method == "POST":
            if self.refuses is not None:
                return _refused(409, self.refuses)
            asked = ReservationRequest.model_validate_json(request.content).model_dump(mode="json")
            made = {"id": f"resv_{len(self.reservations)}", "state": "open", "created_at": NOW, **asked}
            made |= {"begins_at": asked["begins_at"] or NOW, "kept_gpus": asked["gpus"], "spot_gpus": 1}
            self.reservations.insert(0, made)
            return httpx.Response(201, json=made)
        if not rest:
            return httpx.Response(200, json={"data": self.reservations, "next_cursor": None})
        found = next((one for one in self.reservations if one["id"] == rest[0]), None)
        if found is None:
            return _refused(404, "not_found")
        if request.method == "DELETE":
            found |= {"state": "over", "ended_at": NOW, "why": "it was ended before its time"}
        return httpx.Response(200, json=found)

    def _windows(self, request: httpx.Request, parts: list[str]) -> httpx.Response:
        if request.method == "POST":
            asked = WindowRequest.model_validate_json(request.content).model_dump(mode="json")
            made = {"id": f"stbw_{len(self.windows)}", "job_id": parts[2], "created_at": NOW, **asked}
            made |= {"next_at": "2026-11-23T19:00:00Z", "next_until": "2026-11-24T07:00:00Z"}
            self.windows.insert(0, made)
            return httpx.Response(201, json=made)
        if request.method == "DELETE":
            found = next((one for one in self.windows if one["id"] == parts[2]), None)
            if found is None:
                return _refused(404, "not_found")
            found |= {"ended_at": NOW, "why": "it was ended", "next_at": None, "next_until": None}
            return httpx.Response(200, json=found)
        return httpx.Response(200, json={"items": [one for one in self.windows if one["job_id"] == parts[2]]})


def _refused(status: int, code: str) -> httpx.Response:
    error = {"code": code, "message": f"it cannot be: {code}", "param": None, "request_id": "req_1", "retryable": False}
    return httpx.Response(status, json={"error": error})
