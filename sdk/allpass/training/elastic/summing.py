"""The gradients of a step, added up in the order of its parts, whoever took them: see ADR 0093."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

_BUCKET_BYTES = 16 * 2**20  # of each process's gradients that are told to all at once
_MOST_AT_ONCE = 16  # parts


class Summing:
    """The gradients of one step. Of a single process: they add up in the parameters by themselves.

    `at_once`: after how many of a process's parts they are told to all."""

    at_once = 1

    def present(self) -> tuple[bool, ...]:
        """Of which parameters there is a gradient, after this process's part of a round."""
        return ()

    def begin(self, number: int, parts: int) -> None:
        """The part of this number, of so many in the step, is done next; another process may do it as well."""

    def keep(self) -> None:
        """A part is done by this process."""

    def leave_out(self) -> None:
        """A part was done along with others, and does not count."""

    def add(self, present: Sequence[Sequence[bool]]) -> None:
        """A round is done by all, whose parts left these gradients."""

    def finish(self) -> None:
        """All rounds are done: the parameters have the gradients of the whole step."""


class Gathered(Summing):
    """Gradients of the processes' parts are told to all, some parameters at a time, and added in the order of parts: as
    autograd adds them up where one process takes one part after the other."""

    def __init__(
        self,
        all_bytes: Callable[[Any], list[Any]],
        confirm: Callable[[], None],
        count: int,
        parameters: Sequence[Any],
    ) -> None:
        """`all_bytes`: of a tensor, those of all processes; `confirm`: that these are whole; `count`: of processes."""
        self._all_bytes = all_bytes
        self._confirm = confirm
        self._count = count
        self._parameters = parameters
        self._totals: list[Any] = [None] * len(parameters)
        self._kept: list[Any] = []  # gradients of parts that are not told yet
        size = sum(one.nbytes for one in parameters)
        is_small = 0 < size <= _BUCKET_BYTES and len({one.dtype for one in parameters}) == 1
        self.at_once = min(_MOST_AT_ONCE, _BUCKET_BYTES // size) if is_small else 1

    def present(self) -> tuple[bool, ...]:
        return tuple(one.grad is not None for one in self._parameters)

    def keep(self) -> None:
        if self.at_once > 1:
            with torch.no_grad():
                self._kept.append(self._taken(self._parameters))

    def leave_out(self) -> None:
        for one in self._parameters:
            one.grad = None

    def add(self, present: Sequence[Sequence[bool]]) -> None:
        with torch.no_grad():
            if self.at_once > 1:
                self._add_kept(present)
                return
            for numbers in self._buckets():
                self._add(numbers, present)

    def finish(self) -> None:
        self._confirm()
        for one, total in zip(self._parameters, self._totals):
            one.grad = total

    def _buckets(self) -> Iterator[list[int]]:
        """Numbers of parameters of one type that come to so many bytes, or of a single one that comes to more."""
        bucket: list[int] = []
        size = 0
        for number, one in enumerate(self._parameters):
            if bucket and (size + one.nbytes > _BUCKET_BYTES or one.dtype != self._parameters[bucket[0]].dtype):
                yield bucket
                bucket, size = [], 0
            bucket.append(number)
            size += one.nbytes
        if bucket:
            yield bucket

    def _add(self, numbers: Sequence[int], present: Sequence[Sequence[bool]]) -> None:
        of_all = self._all_bytes(self._taken([self._parameters[number] for number in numbers]))
        for has, flat in zip(present, of_all):  # the last round of a step may have fewer parts
            self._add_part(numbers, has, flat)

    def _add_kept(self, present: Sequence[Sequence[bool]]) -> None:
        """Of several parts of each process, which have taken turns."""
        count = self._count
        most = -(-len(present) // count)
        size = sum(one.numel() for one in self._parameters)
        kept = [*self._kept, *(self._parameters[0].new_zeros(size) for _ in range(most - len(self._kept)))]
        self._kept.clear()
        of_all = [one.view(most, size) for one in self._all_bytes(torch.cat(kept))]
        for number, has in enumerate(present):
            self._add_part(range(len(self._parameters)), has, of_all[number % count][number // count])

    def _add_part(self, numbers: Sequence[int], has: Sequence[bool], flat: Any) -> None:
        sizes = [self._parameters[number].numel() for number in numbers]
        for number, part in zip(numbers, flat.split(sizes)):
            if has[number]:
                self._totals[number] = _sum(self._totals[number], part, self._parameters[number])

    def _taken(self, parameters: Sequence[Any]) -> Any:
        """Their gradients in a row. They are nowhere else any more: the memory is needed."""
        flat = torch.cat([(torch.zeros_like(one) if one.grad is None else one.grad).flatten() for one in parameters])
        for one in parameters:
            one.grad = None
        return flat


def _sum(total: Any, part: Any, parameter: Any) -> Any:
    if total is None:
        return torch.empty_like(parameter, requires_grad=False).copy_(part.view_as(parameter))
    return total.add_(part.view_as(parameter))
