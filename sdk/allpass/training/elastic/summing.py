"""The gradients of a step, added up in the order of its parts, whoever took them: see ADR 0093 and 0134.

Each process adds up a share of them, and tells the others what it comes to. Where a machine is of a release that does
not know this, all are told to all, who each add all of them up: the same sums, of many times as many bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

_BUCKET_BYTES = 16 * 2**20  # of each process's gradients that are told to others at once
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
        self.at_once = _at_once(parameters)

    def present(self) -> tuple[bool, ...]:
        return tuple(one.grad is not None for one in self._parameters)

    def keep(self) -> None:
        if self.at_once > 1:
            with torch.no_grad():
                self._kept.append(_taken(self._parameters))

    def leave_out(self) -> None:
        for one in self._parameters:
            one.grad = None

    def add(self, present: Sequence[Sequence[bool]]) -> None:
        with torch.no_grad():
            if self.at_once > 1:
                self._add_kept(present)
                return
            for numbers in _buckets(self._parameters):
                self._add(numbers, present)

    def finish(self) -> None:
        self._confirm()
        for one, total in zip(self._parameters, self._totals):
            one.grad = total

    def _add(self, numbers: Sequence[int], present: Sequence[Sequence[bool]]) -> None:
        of_all = self._all_bytes(_taken([self._parameters[number] for number in numbers]))
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


class _Share:
    """Of one bucket: which of its numbers this process adds up, and to what they come so far. `pieces`: the parameters
    in it, each with where it begins and ends there."""

    def __init__(self, parameters: Sequence[Any], numbers: Sequence[int], own: int, count: int) -> None:
        self.numbers = list(numbers)
        self.sizes = [parameters[number].numel() for number in numbers]
        length = -(-sum(self.sizes) // count)
        self.padding = length * count - sum(self.sizes)
        self.total: Any = parameters[numbers[0]].new_zeros(length, requires_grad=False)
        self.pieces: list[tuple[int, int, int]] = []
        begin = -own * length
        for number, size in zip(numbers, self.sizes):
            first, last = max(0, begin), min(length, begin + size)
            if first < last:
                self.pieces.append((number, first, last))
            begin += size

    def add(self, part: Any, has: Sequence[bool], begun: Sequence[bool]) -> None:
        """`has`: of which parameters the part has a gradient; `begun`: of which there was one in a part before."""
        news = {(has[number], begun[number]) for number, _, _ in self.pieces}
        if news == {(True, True)}:
            self.total.add_(part)
            return
        for number, first, last in self.pieces:
            if has[number] and begun[number]:
                self.total[first:last].add_(part[first:last])
            elif has[number]:
                self.total[first:last].copy_(part[first:last])


class InShares(Summing):
    """Of each bucket of gradients each process has a share of every part's, adds these up in the order of parts, and
    tells what they come to when all rounds are done. Number by number these are the same sums."""

    def __init__(
        self,
        exchange: Callable[[Any], list[Any]],
        all_bytes: Callable[[Any], list[Any]],
        confirm: Callable[[], None],
        own: int,
        count: int,
        parameters: Sequence[Any],
    ) -> None:
        """`exchange`: of a tensor in `count` shares, this process's share of everybody's; the rest as of `Gathered`."""
        self._exchange, self._all_bytes, self._confirm, self._count = exchange, all_bytes, confirm, count
        self._parameters = parameters
        self._shares = [_Share(parameters, numbers, own, count) for numbers in _buckets(parameters)]
        self._begun = [False] * len(parameters)
        self._kept: list[Any] = []  # gradients of parts that are not told yet
        self.at_once = _at_once(parameters)

    def present(self) -> tuple[bool, ...]:
        return tuple(one.grad is not None for one in self._parameters)

    def keep(self) -> None:
        if self.at_once > 1:
            with torch.no_grad():
                self._kept.append(_taken(self._parameters, self._shares[0].padding))

    def leave_out(self) -> None:
        for one in self._parameters:
            one.grad = None

    def add(self, present: Sequence[Sequence[bool]]) -> None:
        with torch.no_grad():
            for share in self._shares:
                kept = self._kept or [_taken([self._parameters[one] for one in share.numbers], share.padding)]
                self._kept = []
                self._add(share, kept, present)

    def finish(self) -> None:
        with torch.no_grad():
            for share in self._shares:
                whole = torch.cat(self._all_bytes(share.total))
                share.total = None
                parts = torch.split(whole, [*share.sizes, share.padding])
                for number, part in zip(share.numbers, parts):
                    one = self._parameters[number]
                    one.grad = _sum(None, part, one) if self._begun[number] else None
        self._confirm()

    def _add(self, share: _Share, kept: list[Any], present: Sequence[Sequence[bool]]) -> None:
        """Parts have taken turns; the last round of a step may have fewer."""
        count, most = self._count, -(-len(present) // self._count)
        kept += [torch.zeros_like(share.total).repeat(count) for _ in range(most - len(kept))]
        own = kept[0] if most == 1 else torch.stack([one.view(count, -1) for one in kept], dim=1).flatten()
        kept.clear()
        of_all = [one.view(most, -1) for one in self._exchange(own)]
        for number, has in enumerate(present):
            share.add(of_all[number % count][number // count], has, self._begun)
            for one in share.numbers:
                self._begun[one] |= has[one]


def _at_once(parameters: Sequence[Any]) -> int:
    """After how many of its parts a process tells their gradients: of small ones, after several."""
    size = sum(one.nbytes for one in parameters)
    is_small = 0 < size <= _BUCKET_BYTES and len({one.dtype for one in parameters}) == 1
    return min(_MOST_AT_ONCE, _BUCKET_BYTES // size) if is_small else 1


def _buckets(parameters: Sequence[Any]) -> Iterator[list[int]]:
    """Numbers of parameters of one type that come to so many bytes, or of a single one that comes to more."""
    bucket: list[int] = []
    size = 0
    for number, one in enumerate(parameters):
        if bucket and (size + one.nbytes > _BUCKET_BYTES or one.dtype != parameters[bucket[0]].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(number)
        size += one.nbytes
    if bucket:
        yield bucket


def _taken(parameters: Sequence[Any], padding: int = 0) -> Any:
    """Their gradients in a row, with so many zeros behind. They are nowhere else any more: the memory is needed."""
    rows = [(torch.zeros_like(one) if one.grad is None else one.grad).flatten() for one in parameters]
    flat = torch.cat([*rows, parameters[0].new_zeros(padding, requires_grad=False)] if padding else rows)
    for one in parameters:
        one.grad = None
    return flat


def _sum(total: Any, part: Any, parameter: Any) -> Any:
    if total is None:
        return torch.empty_like(parameter, requires_grad=False).copy_(part.view_as(parameter))
    return total.add_(part.view_as(parameter))
