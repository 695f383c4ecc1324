"""The processes of one training, one for each of its GPUs: who takes which part of a step, and what all know of it.

Every process goes through the same steps and holds the same weights. A step is a row of parts (its micro-batches) that
does not depend on how many processes there are; these take them by rounds, one part each. What came of a round is told
to all in the order of the parts, so that whoever adds it up gets the same bits as one process does that takes the parts
one after the other. See ADR 0093.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

import torch
from torch import distributed

from allpass.training.elastic.stillness import Presence
from allpass.training.elastic.summing import Gathered, InShares, Summing

_PATIENCE = timedelta(days=30)  # who dies is noticed by `gang`, not by waiting; others may evaluate, or save, for long
_REACHED = timedelta(minutes=10)  # a store of another machine, which is there
BLAME_S = 5.0  # for the first process to say which one was lost, rather than what that did to the others
_LOOK_S = 0.005  # between two looks whether all have come
_WORDS_BYTES = 16_384  # of what each process says in a round
_SIZE = struct.Struct("@Q")
_LONGEST_WHY = 500
OVER_TCP = "tcp://"
_KNOWS_SHARES = "allpass/knows-shares/"
T = TypeVar("T")
R = TypeVar("R")


class RankFailed(RuntimeError):
    """A process of this training could not do its part."""


class PeerLost(Exception):
    """The way to another process broke, most likely because that one is gone: what all were about is not done."""


class Ranks:
    """What a training by a single process has of this: it takes every part itself."""

    own = 0
    count = 1
    rounds = 0  # that were done
    machines = 1  # that the processes are on, each with as many
    pause_s: float | None = None  # for which no step was taken when these came in the place of fewer or more
    is_in_step = False  # each part is done by all at the same time: they hold a share each of what it takes

    def __init__(self, is_to_change: Callable[[], bool] = lambda: False) -> None:
        self._asks = is_to_change

    @property
    def is_to_change(self) -> bool:
        """Whether the processes are to be others before the next step. The same in all of them."""
        return self._asks()

    @property
    def is_first(self) -> bool:
        """Whether this is the one process that reports, saves and exports."""
        return self.own == 0

    def each(
        self,
        parts: Iterable[T],
        work: Callable[[int, T], R],
        at_once: int = 1,
        go_along: Callable[[int, T], object] | None = None,
    ) -> Iterator[list[R]]:
        """`work(number, part)` of every part, by rounds of `at_once` parts for each process: what came of them, in
        order, and the same in all processes. Where they are `is_in_step`, those that have no part left `go_along` with
        the others: as `work`, and nothing comes of it.

        Raises what `work` raised: in its own process as it was, elsewhere as RankFailed, or as OutOfMemoryError where
        that is what it was; in step, where nobody can be told, in its own process alone."""
        for number, part in enumerate(parts):
            yield [work(number, part)]

    def summing(self, parameters: Sequence[Any]) -> Summing:
        """The gradients of a step of these parameters, which are not gathered yet."""
        return Summing()

    def of_first(self, told: Any) -> Any:
        """What the first process says, in all: anything that can be pickled."""
        return told

    def fill(self, tensor: Any) -> None:
        """This tensor is the first process's from now on."""

    def losing(self) -> "contextlib.AbstractContextManager[None]":
        """What all are about in it, if one of them is lost, raises PeerLost."""
        return contextlib.nullcontext()

    def leave(self) -> None:
        """There are no more steps with these processes. To be called by all."""

    def abandon(self) -> None:
        """The same, where the others are gone."""


ALONE = Ranks()
Join = Callable[[Any], Ranks]  # by the device that this process trains on; once it has loaded


def alone(device: Any) -> Ranks:
    """There are no others."""
    return ALONE


class ManyRanks(Ranks):
    """One of `count` processes, which meet at `meeting`: a `file:` on this machine, over whose loopback alone they talk
    then; or at the `tcp:` address of a store, which those on several machines reach.

    `presence`: of those on this machine. `is_to_change`: of the first process, which tells the others in each round.
    `is_given_up`: whether those who are to meet will never do so."""

    def __init__(
        self,
        own: int,
        count: int,
        meeting: str,
        device: Any,
        presence: Presence,
        *,
        is_to_change: Callable[[], bool] = lambda: False,
        is_given_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """Returns when all are there. Raises PeerLost."""
        super().__init__(is_to_change)
        self.own = own
        self.count = count
        self.machines = count // presence.count
        self.device = device
        self._presence = presence
        self.is_in = self._change_told = self._is_broken = False
        self.broke = ""  # the words of torch
        is_far = meeting.startswith(OVER_TCP)
        if not is_far:
            loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
            os.environ.update(GLOO_SOCKET_IFNAME=loopback, NCCL_SOCKET_IFNAME=loopback)
        backend = "nccl" if device.type == "cuda" else "gloo"
        said_by = sys.excepthook
        with self._presence.meeting(), self.losing():
            self._await_all(is_given_up)
            store = _store_at(meeting) if is_far else None
            where = None if is_far else meeting
            if store is not None:  # before all meet, so that all have said it once they have met
                store.set(f"{_KNOWS_SHARES}{own}", "yes")
            distributed.init_process_group(backend, where, _PATIENCE, world_size=count, rank=own, store=store)
            self.is_in = True
            self._knows_shares = store is None or store.check([f"{_KNOWS_SHARES}{one}" for one in range(count)])
            self._talk: Any = distributed.group.WORLD
            if backend == "nccl":  # words go from processor to processor: who waits for them keeps no GPU busy
                self._talk = distributed.new_group(backend="gloo", timeout=_PATIENCE)
        sys.excepthook = said_by  # torch's says `[rank0]:` before each line of what a job died of

    def _await_all(self, is_given_up: Callable[[], bool]) -> None:
        """None of them waits for another one in torch, where nobody could tell it that there is no use in it."""
        while min(self._presence.arrived) == 0:
            if is_given_up():
                raise PeerLost("another one ended before all had met")
            time.sleep(_LOOK_S)

    @property
    def is_to_change(self) -> bool:
        return self._change_told

    def each(
        self,
        parts: Iterable[T],
        work: Callable[[int, T], R],
        at_once: int = 1,
        go_along: Callable[[int, T], object] | None = None,
    ) -> Iterator[list[R]]:
        left = iter(parts)
        first = 0
        while some := list(islice(left, self.count * at_once)):
            yield self._round(first, some, work, go_along or work)
            first += len(some)

    def summing(self, parameters: Sequence[Any]) -> Summing:
        if self._knows_shares:
            return InShares(self.exchange, self.all_bytes, self.confirm, self.own, self.count, parameters)
        return Gathered(self.all_bytes, self.confirm, self.count, parameters)

    def leave(self) -> None:
        if self.is_in:
            self.is_in = False
            self._talk = None
            if self.broke:
                gc.collect()  # all that refers to the way: else the others never hear of the end of it
            distributed.destroy_process_group()

    def abandon(self) -> None:
        """NCCL's, which would wait for the others, ends with this process."""
        if self.is_in and self._talk is distributed.group.WORLD:
            self.leave()

    def break_off(self) -> None:
        """In another thread: whoever waits for a process that is gone hears of it, and so does who does not wait. Gloo
        finds that out by itself."""
        self._is_broken = True
        world: Any = distributed.group.WORLD
        if self.is_in and self._talk is not world:
            with contextlib.suppress(Exception):  # of whatever version of torch: then the training ends as a whole
                world._get_backend(self.device).abort()

    def confirm(self) -> None:
        """What was gathered is whole. Raises PeerLost."""
        if self._talk is not distributed.group.WORLD:
            torch.cuda.synchronize()
        if self._is_broken:
            raise PeerLost("another process was lost")

    def _round(
        self,
        first: int,
        parts: Sequence[T],
        work: Callable[[int, T], R],
        go_along: Callable[[int, T], object],
    ) -> list[R]:
        found: list[R] = []
        failed: Exception | None = None
        try:
            with self._presence.working():
                found += [work(first + number, parts[number]) for number in range(self.own, len(parts), self.count)]
                if self.is_in_step and len(found) * self.count < len(parts) <= len(found) * self.count + self.own:
                    go_along(first, parts[0])  # the others have one more
        except Exception as error:  # of whatever library: the others are to hear of it, rather than wait
            if self.is_in_step:
                if not isinstance(error, torch.cuda.OutOfMemoryError):
                    time.sleep(BLAME_S)
                raise
            if self._is_broken:  # what the GPUs were about was ended with it
                raise PeerLost("another process was lost") from error
            failed = error
            if not (self.is_first or isinstance(error, torch.cuda.OutOfMemoryError)):
                traceback.print_exc()  # before the first process hears of it, and ends this one
        told = self._of_all((found, _said_of(failed), self._asks()))
        for rank, (_, said, _) in enumerate(told):
            if said is not None:
                self._raise(rank, said, failed if rank == self.own else None)
        self._change_told = told[0][2]
        self.rounds += 1
        return [cast(R, told[number % self.count][0][number // self.count]) for number in range(len(parts))]

    def _of_all(self, own: Any) -> list[Any]:
        """What each process says, by rank: anything that can be pickled. Most of it fits into what goes out at once."""
        data = pickle.dumps(own)
        words = torch.zeros(_WORDS_BYTES, dtype=torch.uint8)
        words[: _SIZE.size] = torch.frombuffer(bytearray(_SIZE.pack(len(data))), dtype=torch.uint8)
        short = data[: _WORDS_BYTES - _SIZE.size]
        words[_SIZE.size : _SIZE.size + len(short)] = torch.frombuffer(bytearray(short), dtype=torch.uint8)
        told = [torch.empty_like(words) for _ in range(self.count)]
        objects: list[Any] = [None] * self.count
        with self._presence.meeting(), self.losing():
            distributed.all_gather(told, words, group=self._talk)
            texts = [one.numpy().tobytes() for one in told]
            sizes = [_SIZE.unpack_from(text)[0] for text in texts]
            if max(sizes) + _SIZE.size <= _WORDS_BYTES:
                return [
                    pickle.loads(text[_SIZE.size : _SIZE.size + size])  # noqa: S301 - of our own processes
                    for text, size in zip(texts, sizes)
                ]
            distributed.all_gather_object(objects, own, group=self._talk)
        return objects

    def _raise(self, rank: int, said: _Said, own: Exception | None) -> None:
        """All processes raise the same, of the first that failed."""
        words = f"{self._named(rank)}: {said.why}"
        if said.ran_out:
            raise torch.cuda.OutOfMemoryError(words) from own
        if own is not None and self.is_first:
            raise own
        raise RankFailed(words)

    def _named(self, rank: int) -> str:
        """With its machine, where there are several."""
        where = f", on machine {rank // self._presence.count}" if self._presence.count < self.count else ""
        return f"rank {rank} of {self.count}{where}"

    def all_bytes(self, own: Any) -> list[Any]:
        """A tensor of each process, all of one shape and type, by rank."""
        plain = own.view(torch.uint8)
        told = [torch.empty_like(plain) for _ in range(self.count)]
        with self._presence.meeting(), self.losing():
            distributed.all_gather(told, plain)
        return [one.view(own.dtype) for one in told]

    def exchange(self, own: Any) -> list[Any]:
        """This process's share of a tensor of each process, by rank: all of one shape, in as many shares as there are
        processes."""
        plain = own.view(torch.uint8)
        told = torch.empty_like(plain)
        with self._presence.meeting(), self.losing():
            distributed.all_to_all_single(told, plain)
        return list(told.view(own.dtype).view(self.count, -1))

    def of_first(self, told: Any) -> Any:
        box = [told]
        with self._presence.meeting(), self.losing():
            distributed.broadcast_object_list(box, src=0, group=self._talk)
        return box[0]

    def fill(self, tensor: Any) -> None:
        if tensor.numel() == 0:
            return
        group = distributed.group.WORLD if tensor.is_cuda else self._talk
        plain = tensor.contiguous()
        with self._presence.meeting(), self.losing():
            distributed.broadcast(plain.view(-1).view(torch.uint8), src=0, group=group)
        if plain is not tensor:
            tensor.copy_(plain)

    @contextlib.contextmanager
    def losing(self) -> Iterator[None]:
        """Torch has no error of its own for a process that is gone."""
        try:
            yield
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.broke = " ".join(str(error).split())[:_LONGEST_WHY]
            raise PeerLost(self.broke) from error


def meeting_at(address: str, port: int) -> str:
    """Of processes on several machines: where one of them keeps a store."""
    return f"{OVER_TCP}{f'[{address}]' if ':' in address else address}:{port}"


def _store_at(meeting: str) -> Any:
    where, of_torch = urlsplit(meeting), cast(Any, distributed)
    return of_torch.TCPStore(where.hostname, where.port, is_master=False, timeout=_REACHED)


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
