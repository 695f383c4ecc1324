"""Other ways of summing than a training's own.

What sharing a step costs is told by one: each process adds up the gradients of its own parts, and the sums of all are
summed at the end of a step in any order, as DDP does. Its numbers are not those of one process. The other one is that
of an older release.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import distributed

from allpass.training.elastic import ranks
from allpass.training.elastic.ranks import ManyRanks
from allpass.training.elastic.summing import Gathered, Summing


class Reduced(Summing):
    """The gradients stay where autograd adds them up."""

    def __init__(self, parameters: Sequence[Any]) -> None:
        self._parameters = parameters

    def present(self) -> tuple[bool, ...]:
        return ()

    def finish(self) -> None:
        flat: Any = torch.cat([one.grad.flatten() for one in self._parameters])
        distributed.all_reduce(flat)
        sizes = [one.numel() for one in self._parameters]
        for one, part in zip(self._parameters, flat.split(sizes), strict=True):
            one.grad.copy_(part.view_as(one))


def reduce_if_asked() -> None:
    """Where REDUCES is set, in this process from now on."""
    if not os.environ.get("REDUCES"):
        return

    def each(self: ManyRanks, parts: Iterable[Any], work: Callable[[int, Any], Any], *_: object) -> Iterator[list[Any]]:
        for number, part in enumerate(parts):
            if number % self.count == self.own:
                yield [work(number, part)]

    def summing(self: ManyRanks, parameters: Sequence[Any]) -> Summing:
        return Reduced(parameters)

    ManyRanks.each = each  # type: ignore[method-assign]
    ManyRanks.summing = summing  # type: ignore[method-assign]


def older_if_asked() -> None:
    """Where OLDER is set, from now on this process is of a release that tells all gradients to all."""
    if os.environ.get("OLDER"):
        ranks._KNOWS_SHARES = "nobody/asks-for-this/"

        def summing(self: ManyRanks, parameters: Sequence[Any]) -> Summing:
            return Gathered(self.all_bytes, self.confirm, self.count, parameters)

        ManyRanks.summing = summing  # type: ignore[method-assign]
