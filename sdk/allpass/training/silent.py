"""The session of a process that takes its part of another one's training: what it is told counts, and it says nothing.

The first process of the training is the job's own, and says all that there is to say."""

from __future__ import annotations

from typing import Any

from allpass.training.session import Session

FOLLOWS = "ALLPASS_ELASTIC_FOLLOWS"  # in the environment of such a process of a user's own script


class Silent(Session):
    def listen(self) -> None:
        """Stops are the first process's to heed."""

    def stop_requested(self) -> bool:
        return False

    @property
    def watch_dir(self) -> None:
        return None

    def _append(self, line: "dict[str, Any]") -> None:
        """The first process has said it."""
