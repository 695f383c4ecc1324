"""Bytes on their way that a run cannot go on without, or leave."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_LEAST_MS = 1_000  # a rate over less says nothing


class TransferKind(StrEnum):
    READ = "read"  # the agent reads and hashes a checkpoint
    SEND = "send"  # and sends what the store lacks of it
    FETCH = "fetch"  # the one that a run begins with


@dataclass(frozen=True, slots=True)
class Transfer:
    """As an agent told it last. `begun_bytes`: what was done when it was first told, at `begun_ms`."""

    kind: TransferKind
    done_bytes: int
    total_bytes: int
    begun_ms: int
    begun_bytes: int
    heard_ms: int

    def bytes_per_s(self) -> int | None:
        """Since it was first told; None while that is too short to say, or nothing came."""
        lasted_ms, came = self.heard_ms - self.begun_ms, self.done_bytes - self.begun_bytes
        return came * 1000 // lasted_ms if lasted_ms >= _LEAST_MS and came > 0 else None

    def left_ms(self, now_ms: int) -> int | None:
        """At that rate, from now on; None where it is not known."""
        rate = self.bytes_per_s()
        if not rate:
            return None
        ends_ms = self.heard_ms + max(0, self.total_bytes - self.done_bytes) * 1000 // rate
        return max(0, ends_ms - now_ms)
