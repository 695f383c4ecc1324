"""How a run gets on that saves now and then: what its time is worth in work, and what of that is safe."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rhythm:
    """A save after each `every_ms` of work, for which the training waits `pause_ms`. 0: none is made."""

    every_ms: int = 0
    pause_ms: int = 0

    def worked_ms(self, ran_ms: int) -> int:
        """The work of so much time since the first step."""
        if not self.every_ms:
            return ran_ms
        cycles, rest_ms = divmod(ran_ms, self.every_ms + self.pause_ms)
        return cycles * self.every_ms + min(rest_ms, self.every_ms)

    def lasts_ms(self, work_ms: int) -> int:
        """The time until so much work is done. No save is waited for after the last step."""
        if not self.every_ms or work_ms <= 0:
            return work_ms
        return work_ms + (work_ms - 1) // self.every_ms * self.pause_ms

    def safe_ms(self, ran_ms: int) -> int:
        """The work up to the last save that was over by then."""
        return ran_ms // (self.every_ms + self.pause_ms) * self.every_ms if self.every_ms else 0


NO_SAVES = Rhythm()
