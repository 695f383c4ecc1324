"""What the processes of a distributed training have to agree on: whether to save, and whether to leave now.

A request to stop reaches each machine of a job at its own moment. Whoever saved and left at once would leave the others
waiting in a collective for ever."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import Any, List, Optional

from allpass.training.session import Session

_CLOSES_WITHIN_S = 5.0
_closing: "Optional[_Closing]" = None


def agreed(session: Session) -> bool:
    """Whether any process of torch.distributed's default group was asked to stop; then this one counts as asked, too.
    A process that trains alone answers for itself."""
    asked = session.stop_requested()
    if not are_many():
        return asked
    _is_one_of_many(session)
    (told,) = any_of([asked])
    if told:
        session.request_stop()
    return session.stop_requested()


def due_together(session: Session, step: int) -> bool:
    """Whether all processes save after this step: one was asked to stop, or the time of one has come. The answer, and
    whether they leave then, is the same on all of them."""
    if are_many():
        _is_one_of_many(session)
    due, stops = any_of([session.should_checkpoint(step), session.stop_requested()])
    if stops:
        session.request_stop()
        due = session.saved_step != step
    session.leaves_after(step, stops=stops)
    return due


def are_many() -> bool:
    """Whether this process is one of a group of torch.distributed."""
    return _distributed() is not None


def any_of(flags: List[bool]) -> List[bool]:
    """Each flag as any process has it: all of them get the same answer. A collective, where there are several."""
    distributed = _distributed()
    if distributed is None:
        return flags
    torch = sys.modules["torch"]
    on_gpu = distributed.get_backend() == "nccl"
    told = torch.tensor([float(flag) for flag in flags], device="cuda" if on_gpu else "cpu")
    distributed.all_reduce(told, op=distributed.ReduceOp.MAX)
    return [bool(one > 0) for one in told.tolist()]


def _is_one_of_many(session: Session) -> None:
    global _closing  # noqa: PLW0603 - of this process there is one
    session.announce_together()
    if _closing is None:
        _closing = _Closing()
        atexit.register(_closing.close)


class _Closing:
    """Closes gloo's group as the process ends. Its threads abort a process that ends while they run now and then
    ("terminate called without an active exception"): it would have failed in place of having left, or with words of
    its own. NCCL ends without, and its end may wait for others that are still saving.

    Of one that fails, the others may be in a collective which gloo would wait for: so not for long. In a thread that is
    there before: at its end a process begins no other."""

    def __init__(self) -> None:
        self._owner = os.getpid()  # a process that is forked off has no such thread
        self._asked, self._done = threading.Event(), threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    def close(self) -> None:
        if os.getpid() == self._owner:
            self._asked.set()
            self._done.wait(_CLOSES_WITHIN_S)

    def _wait(self) -> None:
        self._asked.wait()
        distributed = _distributed()
        try:
            if distributed is not None and distributed.get_backend() == "gloo":
                distributed.destroy_process_group()
        finally:
            self._done.set()


def _distributed() -> Optional[Any]:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed
