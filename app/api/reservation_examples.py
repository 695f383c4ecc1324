"""Examples of reservations and of jobs that stand by, as the API reference shows them."""

from __future__ import annotations

from typing import Any, Final

from app.api.example_ids import example_id
from app.api.standby_examples import STANDBY, STANDBY_REQUEST, STANDBYS, WINDOW, WINDOW_REQUEST, WINDOWS

RESERVATION_REQUEST: Final = {
    "pool": "lab",
    "gpu_type": "A100",
    "gpus": 8,
    "begins_at": "2026-12-01T08:00:00+01:00",
    "ends_at": "2026-12-01T16:00:00+01:00",
}
RESERVATION: Final = {
    "id": example_id("resv"),
    "pool": "lab",
    "gpu_type": "A100",
    "gpus": 8,
    "state": "open",
    "created_at": "2026-11-20T22:00:00Z",
    "begins_at": "2026-12-01T07:00:00Z",
    "ends_at": "2026-12-01T15:00:00Z",
    "kept_gpus": 8,
    "own_gpus": 2,
    "spot_gpus": 4,
    "others_gpus": 0,
    "kept_gpu_hours": 12.0,
    "ended_at": None,
    "why": None,
}
LENDING_REQUESTS: Final[dict[str, Any]] = {
    "StandbyRequest": STANDBY_REQUEST,
    "WindowRequest": WINDOW_REQUEST,
    "ReservationRequest": RESERVATION_REQUEST,
}
LENDING_ANSWERS: Final[dict[str, Any]] = {
    "Standby": STANDBY,
    "Standbys": STANDBYS,
    "Window": WINDOW,
    "Windows": WINDOWS,
    "Reservation": RESERVATION,
}
