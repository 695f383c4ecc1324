"""What the processes of a distributed training have to agree on: whether to save and leave now.

A request to stop reaches each machine of a job at its own moment. Whoever saved and left at once would leave the others
waiting in a collective for ever."""

from __future__ import annotations

import sys

from allpass.training.session import Session


def agreed(session: Session) -> bool:
    """Whether any process of torch.distributed's default group was asked to stop; then this one counts as asked, too.
    A process that trains alone answers for itself."""
    asked = session.stop_requested()
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return asked
    torch = sys.modules["torch"]
    on_gpu = distributed.get_backend() == "nccl"
    told = torch.tensor(float(asked), device="cuda" if on_gpu else "cpu")
    distributed.all_reduce(told, op=distributed.ReduceOp.MAX)
    if float(told) > 0:
        session.request_stop()
    return session.stop_requested()
