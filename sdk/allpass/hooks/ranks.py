"""What the processes of one training agree on, beside the training: over a group of their own, on the CPU, so that no
GPU is waited for and no collective of the training's meets one of ours."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple


class Ranks:
    """All processes of the training make one, and call the same methods in the same order."""

    def __init__(self) -> None:
        from torch import distributed

        self._distributed: Any = distributed
        is_many = distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
        self.count: int = distributed.get_world_size() if is_many else 1
        self.own: int = distributed.get_rank() if is_many else 0
        self._group: Any = distributed.new_group(backend="gloo") if is_many else None
        self._under_way: "Optional[Tuple[Any, Any]]" = None

    def any_of_last_time(self, flags: List[bool]) -> List[bool]:
        """Each flag as any process gave it in its call before this one (of one process: as it gives it now). What is
        asked for is known to all one step later, and none waits for it."""
        if self.count == 1:
            return flags
        known = self._finish(len(flags))
        told = self._tensor(flags)
        work = self._distributed.all_reduce(told, op=self._distributed.ReduceOp.MAX, group=self._group, async_op=True)
        self._under_way = (work, told)
        return known

    def all_of(self, flag: bool) -> bool:
        """Whether all of them say so. Returns when all are here."""
        if self.count == 1:
            return flag
        told = self._tensor([flag])
        self._distributed.all_reduce(told, op=self._distributed.ReduceOp.MIN, group=self._group)
        return bool(told.item())

    def _finish(self, count: int) -> List[bool]:
        if self._under_way is None:
            return [False] * count
        work, told = self._under_way
        work.wait()
        return [bool(one) for one in told.tolist()]

    def _tensor(self, flags: List[bool]) -> Any:
        import torch

        return torch.tensor([int(flag) for flag in flags])
