"""What the processes of a distributed training have to agree on: whether to save, and whether to leave now.

A request to stop reaches each machine of a job at its own moment. Whoever saved and left at once would leave the others
waiting in a collective for ever."""

from __future__ import annotations

import atexit
import sys
from typing import Any, List, Optional

from allpass.training.session import Session


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
    session.announce_together()
    atexit.unregister(_close_gloo)  # once, whatever calls this at each step
    atexit.register(_close_gloo)


def _close_gloo() -> None:
    """A process that ends while the threads of gloo still run is aborted by them now and then ("terminate called
    without an active exception"): it would have failed in place of having left, or of being done. One that fails leaves
    at once: the others may be in a collective that would be waited for. NCCL ends without, and its end may wait for
    others that are still saving."""
    distributed = None if hasattr(sys, "last_value") else _distributed()
    if distributed is not None and distributed.get_backend() == "gloo":
        distributed.destroy_process_group()


def _distributed() -> Optional[Any]:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed
