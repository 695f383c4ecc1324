"""Examples of what the dashboard asks for beside what every client does."""

from __future__ import annotations

from typing import Any, Final

from app.api.example_ids import example_id

SESSION_REQUEST: Final[dict[str, Any]] = {"api_key": "ak_5c1f0e2b_" + "0" * 64}
SESSION: Final[dict[str, Any]] = {
    "project_id": example_id("proj"),
    "project_name": "default",
    "key_id": example_id("key"),
    "key_name": "ci",
    "scopes": ["read", "submit"],
    "csrf_token": "7d" * 32,
    "expires_at": "2026-11-21T12:21:50Z",
}
