"""The processes of one training, one for each of its GPUs: who takes which part of a step, and what all know of it.

Every process goes through the same steps and holds the same weights. A step is a row of parts (its micro-batches) that
does not depend on how many processes there are; these take them by rounds, one part each. What came of a round is told
to all in the order of the parts, so that whoever adds it up gets the same bits as one process does that takes the parts
one after the other. See ADR 0093.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import distributed

from workers.trainer.stillness import Presence

_PATIENCE = timedelta(days=30)  # who dies is noticed by `gang`, not by waiting; others may evaluate, or save, for long
_BUCKET_BYTES = 16 * 2**20  # of each process's gradients that are told to all at once
_LONGEST_WHY = 500
T = TypeVar("T")
R = TypeVar("R")


class RankFailed(RuntimeError):
    """A process of this training could not do its part."""


class Ranks:
    """What a training by a single process has of this: it takes every part itself."""

    own = 0
    count = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the one process that reports, saves and exports."""
        return self.own == 0

    def each(self, parts: Iterable[T], work: Callable[[int, T], R]) -> Iterator[list[R]]:
        """`work(number, part)` of every part, by rounds of one part for each process: what came of them, in order, and
        the same in all processes. Raises what `work` raised: in its own process as it was, elsewhere as RankFailed, or
        as OutOfMemoryError where that is what it was."""
        for number, part in enumerate(parts):
            yield [work(number, part)]

    def summing(self, parameters: Sequence[Any]) -> Summing:
        """The gradients of a step of these parameters, which are not gathered yet."""
        return Summing()

    def leave(self) -> None:
        """The steps are over: the first process goes on by itself. To be called by all."""

    def abandon(self) -> None:
        """The same, where the others are gone."""


ALONE = Ranks()
Join = Callable[[Any], Ranks]  # by the device that this process trains on; once it has loaded


def alone(device: Any) -> Ranks:
    """There are no others."""
    return ALONE


class Summing:
    """The gradients of one step. Of a single process: they add up in the parameters by themselves."""

    def present(self) -> tuple[bool, ...]:
        """Of which parameters there is a gradient, after this process's part of a round."""
        return ()

    def add(self, present: Sequence[Sequence[bool]]) -> None:
        """A round is done by all, whose parts left these gradients."""

    def finish(self) -> None:
        """All rounds are done: the parameters have the gradients of the whole step."""


class ManyRanks(Ranks):
    """One of `count` processes on this machine, which find each other by a file, and talk over its loopback alone."""

    def __init__(self, own: int, count: int, meeting: Path, device: Any, presence: Presence) -> None:
        """Returns when all are there."""
        self.own = own
        self.count = count
        self._presence = presence
        loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
        os.environ.update(GLOO_SOCKET_IFNAME=loopback, NCCL_SOCKET_IFNAME=loopback)
        backend = "nccl" if device.type == "cuda" else "gloo"
        said_by = sys.excepthook
        with self._presence.meeting():
            distributed.init_process_group(backend, meeting.as_uri(), _PATIENCE, world_size=count, rank=own)
        sys.excepthook = said_by  # torch's says `[rank0]:` before each line of what a job died of
        self._is_in = True
        self._talk: Any = distributed.group.WORLD
        if backend == "nccl":  # words go from processor to processor: who waits for them keeps no GPU busy
            self._talk = distributed.new_group(backend="gloo", timeout=_PATIENCE)

    def each(self, parts: Iterable[T], work: Callable[[int, T], R]) -> Iterator[list[R]]:
        left = iter(parts)
        first = 0
        while some := list(islice(left, self.count)):
            yield self._round(first, some, work)
            first += len(some)

    def summing(self, parameters: Sequence[Any]) -> Summing:
        return _Gathered(self, parameters)

    def leave(self) -> None:
        self._is_in = False
        distributed.destroy_process_group()

    def abandon(self) -> None:
        """NCCL's, which would wait for the others, ends with this process."""
        if self._is_in and self._talk is distributed.group.WORLD:
            self.leave()

    def _round(self, first: int, parts: Sequence[T], work: Callable[[int, T], R]) -> list[R]:
        found: R | None = None
        failed: Exception | None = None
        if self.own < len(parts):
            try:
                with self._presence.working():
                    found = work(first + self.own, parts[self.own])
            except Exception as error:  # of whatever library: the others are to hear of it, rather than wait
                failed = error
                if not (self.is_first or isinstance(error, torch.cuda.OutOfMemoryError)):
                    traceback.print_exc()  # before the first process hears of it, and ends this one
        told: list[Any] = [None] * self.count
        with self._presence.meeting():
            distributed.all_gather_object(told, (found, _said_of(failed)), group=self._talk)
        for rank, (_, said) in enumerate(told):
            if said is not None:
                self._raise(rank, said, failed if rank == self.own else None)
        return [cast(R, one) for one, _ in told[: len(parts)]]

    def _raise(self, rank: int, said: _Said, own: Exception | None) -> None:
        """All processes raise the same, of the first that failed."""
        words = f"rank {rank} of {self.count}: {said.why}"
        if said.ran_out:
            raise torch.cuda.OutOfMemoryError(words) from own
        if own is not None and self.is_first:
            raise own
        raise RankFailed(words)

    def all_bytes(self, own: Any) -> list[Any]:
        """A tensor of each process, all of one shape and type, by rank."""
        plain = own.view(torch.uint8)
        told = [torch.empty_like(plain) for _ in range(self.count)]
        with self._presence.meeting():
            distributed.all_gather(told, plain)
        return [one.view(own.dtype) for one in told]


class _Gathered(Summing):
    """Gradients of the processes' parts are told to all, some parameters at a time, and added in the order of parts: as
    autograd adds them up where one process takes one part after the other."""

    def __init__(self, ranks: ManyRanks, parameters: Sequence[Any]) -> None:
        self._ranks = ranks
        self._parameters = parameters
        self._totals: list[Any] = [None] * len(parameters)

    def present(self) -> tuple[bool, ...]:
        return tuple(one.grad is not None for one in self._parameters)

    def add(self, present: Sequence[Sequence[bool]]) -> None:
        with torch.no_grad():
            for numbers in self._buckets():
                self._add(numbers, present)

    def finish(self) -> None:
        for one, total in zip(self._parameters, self._totals, strict=True):
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
        parameters = [self._parameters[number] for number in numbers]
        own = torch.cat([(torch.zeros_like(one) if one.grad is None else one.grad).flatten() for one in parameters])
        for one in parameters:
            one.grad = None  # its memory is needed
        of_all = self._ranks.all_bytes(own)
        for has, flat in zip(present, of_all, strict=False):  # the last round of a step may have fewer parts
            for number, part in zip(numbers, flat.split([one.numel() for one in parameters]), strict=True):
                if has[number]:
                    self._totals[number] = _sum(self._totals[number], part, self._parameters[number])


def _sum(total: Any, part: Any, parameter: Any) -> Any:
    if total is None:
        return torch.empty_like(parameter, requires_grad=False).copy_(part.view_as(parameter))
    return total.add_(part.view_as(parameter))


class _Said(NamedTuple):
    """Of an error: whether a GPU's memory ran out, and its words."""

    ran_out: bool
    why: str


def _said_of(error: Exception | None) -> _Said | None:
    if error is None:
        return None
    ran_out = isinstance(error, torch.cuda.OutOfMemoryError)
    why = " ".join(str(error).split())[:_LONGEST_WHY]
    return _Said(ran_out, why if ran_out else f"{type(error).__name__}: {why}")
