"""Examples of jobs that stand by, as the API reference shows them."""

from __future__ import annotations

from typing import Final

from app.api.example_ids import example_id

STANDBY_REQUEST: Final = {"until": "8h", "lose_steps": False}
STANDBY: Final = {
    "id": example_id("stby"),
    "job_id": example_id("job"),
    "state": "lent",
    "gpus": 4,
    "used_gpus": 3,
    "asked_at": "2026-11-20T22:00:00Z",
    "until": "2026-11-21T07:00:00Z",
    "left_at": "2026-11-20T22:00:04Z",
    "called_at": None,
    "back_at": None,
    "ended_at": None,
    "why": None,
    "rebate_share": 0.5,
    "paid": 412_500,
    "rebate": 412_500,
    "price_per_hour": 825_000,
    "slack_ms": 5_400_000,
}
STANDBYS: Final = {"items": [STANDBY]}
WINDOW_REQUEST: Final = {
    "days": ["mon", "tue", "wed", "thu", "fri"],
    "begins": "20:00",
    "ends": "08:00",
    "zone": "Europe/Rome",
    "lose_steps": False,
}
WINDOW: Final = {
    "id": example_id("stbw"),
    "job_id": example_id("job"),
    "days": ["mon", "tue", "wed", "thu", "fri"],
    "begins": "20:00",
    "ends": "08:00",
    "zone": "Europe/Rome",
    "lose_steps": False,
    "created_at": "2026-11-20T12:00:00Z",
    "next_at": "2026-11-20T19:00:00Z",
    "next_until": "2026-11-21T07:00:00Z",
    "ended_at": None,
    "why": None,
}
WINDOWS: Final = {"items": [WINDOW]}
