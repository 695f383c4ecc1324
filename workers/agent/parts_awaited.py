"""The first machine of a job on several waits for the parts of the others (`parts.py`)."""

from __future__ import annotations

import time
from typing import Any, Callable, List, Mapping, Optional

from workers.agent.errors import Aborted, Unsafe
from workers.agent.patience import Backoff
from workers.agent.uploading import Upload

PATIENCE_S = 30.0  # with a machine of which nothing was heard, once a newer step is saved
LONG_S = 120.0  # until the log has what is waited for
_PAUSE_S = 2.0


def await_parts(
    upload: Upload,
    answer: Mapping[str, Any],
    ask: Callable[[], Mapping[str, Any]],
    *,
    is_superseded: Callable[[], bool],
    say: Callable[[str], None],
) -> None:
    """On the first machine: return when all parts of the step are one checkpoint. Raises Unsafe when it will never be
    one, in words for its owner; Aborted, and what asking raises."""
    backoff, begun_s, is_told = Backoff(cap_s=_PAUSE_S), time.monotonic(), False
    superseded_s: Optional[float] = None
    while answer.get("waits_for"):
        if answer.get("why"):
            raise Unsafe(str(answer["why"]))
        step, now_s = upload.candidate.step, time.monotonic()
        if not is_superseded() or not answer.get("unheard"):
            superseded_s = None
        elif superseded_s is None:
            superseded_s = now_s
        elif now_s - superseded_s > PATIENCE_S:
            raise Unsafe(f"{_without(answer['unheard'])} of step {step}, and a newer one is saved")
        if not is_told and now_s - begun_s > LONG_S:
            is_told = True
            say(f"{_without(answer['waits_for'])} of step {step}: it is waited for")
        if upload.halt.wait(backoff.next_s()):
            raise Aborted("no longer wanted")
        answer = ask()


def _without(ranks: List[int]) -> str:
    if len(ranks) == 1:
        return f"machine {ranks[0]} has not written its part"
    return f"machines {', '.join(map(str, ranks[:-1]))} and {ranks[-1]} have not written their parts"
