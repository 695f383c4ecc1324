"""Actions that are not enacted: because what they were decided on has moved on, or because they fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.core.model.plan import Enactable
from app.db.transitions import Event


class MovedOnError(Exception):
    """A row is not as the decision saw it."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """An action that was not enacted, and why. `error`: it failed, as nothing should; else its rows had moved on."""

    action: Enactable
    why: str
    error: Exception | None = None


def check_versions(action: Enactable, found: Mapping[str, int]) -> None:
    """`found`: the row versions that there are, of rows that are locked. Raises MovedOnError."""
    for row_id, version in action.versions:
        if row_id not in found:
            raise MovedOnError(f"{row_id} does not exist")
        if found[row_id] != version:
            raise MovedOnError(f"{row_id} has moved on: decided on version {version}, it is now {found[row_id]}")


def drop_event(action: Enactable, why: str) -> Event:
    """What whoever follows the job or node is told."""
    return Event("action_dropped", f"{action.kind} was dropped and is decided anew: {why}", {"action": action.kind})
