"""A job whose own code failed: whether it is begun again, when, and in which words.

Faults of machines are no matter of this. Only a job whose owner says how often is begun again: the first time at once,
while its machine is still there. One that fails twice at the same step would do so for ever, and stops early; before
its first step nothing is known of how far it comes, so there the number alone decides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.core.lifecycle import Outcome
from app.core.model.job import JobState
from app.core.model.run import RunEnd
from app.core.policies.reasons import duration

FIRST_BACK_OFF_MS = 10_000
MOST_BACK_OFF_MS = 300_000


@dataclass(frozen=True, slots=True)
class Tries:
    """How often a job may be begun again (None: its owner has not said), how often it was, and where it failed then.

    `step`: where it has failed now. `kept_step`: where it would go on, None without a checkpoint.
    """

    allowed: int | None
    used: int
    failed_step: int | None
    step: int
    kept_step: int | None

    def left(self) -> int:
        return max(0, (self.allowed or 0) - self.used)

    def got_no_further(self) -> bool:
        """Whether it has failed at the very step at which it failed before."""
        return self.step > 0 and self.step == self.failed_step


def back_off_ms(used: int) -> int:
    """How long the next try waits: not at all, then twice as long each time, up to some minutes."""
    return 0 if used <= 0 else int(min(MOST_BACK_OFF_MS, FIRST_BACK_OFF_MS * 2 ** min(used - 1, 10)))


def begin_again(failed: Outcome, tries: Tries) -> Outcome:
    """What the failure means: that the job waits for its next try, or has failed, and why it is not tried again."""
    if not tries.allowed:
        return failed
    count = f"{tries.used} of {tries.allowed} retries used"
    if tries.left() and tries.got_no_further():
        why = f"the second time at step {tries.step}, so that it is not begun again ({count})"
        return replace(failed, message=f"{failed.message}; {why}")
    if not tries.left():
        return replace(failed, message=f"{failed.message}; it is not begun again ({count})")
    return Outcome(RunEnd.FAILED, JobState.WAITING, None, False, f"{failed.message}; {how(tries)}")


def how(tries: Tries) -> str:
    """When and where it is begun again."""
    where = "from its beginning, as it has no checkpoint" if tries.kept_step is None else f"from step {tries.kept_step}"
    wait_ms = back_off_ms(tries.used)
    when = f"in {duration(wait_ms)}" if wait_ms else "at once"
    return f"is begun again {where}, {when} (retry {tries.used + 1} of {tries.allowed})"
