"""Gradients of parts are added up as one process does that takes one part after the other, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from allpass.training.elastic import summing
from allpass.training.elastic.ranks import PeerLost
from allpass.training.elastic.summing import Gathered, InShares, Summing

TYPES = (torch.float32, torch.bfloat16, torch.float64)


class Together:
    """Processes that meet, played by threads. What each passes to the others is counted in bytes."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.taken_in = 0  # by the first one, of the others
        self._barrier = Barrier(count, timeout=30)
        self._told: list[Any] = [None] * count

    def all_bytes(self, own: int) -> Callable[[Any], list[Any]]:
        def tell(tensor: Any) -> list[Any]:
            return self._met(own, tensor, lambda told: [one.clone() for one in told], tensor.nbytes * (self.count - 1))

        return tell

    def exchange(self, own: int) -> Callable[[Any], list[Any]]:
        def tell(tensor: Any) -> list[Any]:
            def shares(told: Sequence[Any]) -> list[Any]:
                return [one.view(self.count, -1)[own].clone() for one in told]

            return self._met(own, tensor, shares, tensor.nbytes // self.count * (self.count - 1))

        return tell

    def _met(self, own: int, tensor: Any, take: Callable[[Sequence[Any]], list[Any]], size: int) -> list[Any]:
        assert tensor.is_contiguous()
        self._told[own] = tensor
        self._barrier.wait()
        assert len({(one.shape, one.dtype) for one in self._told}) == 1
        found = take(self._told)
        self._barrier.wait()
        self.taken_in += size * (own == 0)
        return found

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        with ThreadPoolExecutor(self.count) as pool:
            return list(pool.map(work, range(self.count)))


class Step:
    """What each part of a step leaves of gradients: `present` of which parameters it has one at all."""

    def __init__(
        self, sizes: Sequence[tuple[tuple[int, ...], Any]], present: Sequence[Sequence[bool]], seed: int
    ) -> None:
        self.sizes, self.present, self.seed = sizes, present, seed

    def parameters(self) -> list[Any]:
        return [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape, dtype in self.sizes]

    def learn(self, parameters: Sequence[Any], part: int) -> None:
        """As a way back would: added to what is there."""
        drawn = torch.Generator().manual_seed(self.seed * 1_000 + part)
        for one, has in zip(parameters, self.present[part], strict=True):
            gradient = torch.randn(one.shape, generator=drawn, dtype=torch.float32).to(one.dtype)
            gradient[gradient.abs() < 0.2] = -0.0  # which is not what adding nothing leaves
            if has:
                one.grad = gradient if one.grad is None else one.grad + gradient

    def by_one(self) -> list[Any]:
        parameters = self.parameters()
        for part in range(len(self.present)):
            self.learn(parameters, part)
        return [one.grad for one in parameters]

    def by(self, together: Together, of: Callable[[int, Sequence[Any]], Summing]) -> list[list[Any]]:
        def work(own: int) -> list[Any]:
            parameters = self.parameters()
            sums = of(own, parameters)
            parts, each = len(self.present), together.count * sums.at_once
            for first in range(0, parts, each):
                numbers = range(first, min(parts, first + each))
                seen = {}
                for number in numbers[own :: together.count]:
                    sums.begin(number, parts)
                    self.learn(parameters, number)
                    seen[number] = sums.present()
                    sums.keep()
                assert all(tuple(self.present[number]) == has for number, has in seen.items())
                sums.add([self.present[number] for number in numbers])
            sums.finish()
            return [one.grad for one in parameters]

        return together.run(work)


def in_shares(together: Together) -> Callable[[int, Sequence[Any]], Summing]:
    def of(own: int, parameters: Sequence[Any]) -> Summing:
        ways = together.exchange(own), together.all_bytes(own)
        return InShares(*ways, lambda: None, own, together.count, parameters)

    return of


def gathered(together: Together) -> Callable[[int, Sequence[Any]], Summing]:
    return lambda own, parameters: Gathered(together.all_bytes(own), lambda: None, together.count, parameters)


def bits(gradients: Sequence[Any]) -> list[Any]:
    return [
        None if one is None else (one.dtype, one.shape, one.flatten().contiguous().view(torch.uint8).tolist())
        for one in gradients
    ]


@st.composite
def steps(draw: st.DrawFn) -> Step:
    dtypes = draw(st.sampled_from([TYPES[:1], TYPES[1:2], TYPES]))
    shapes = st.lists(st.integers(1, 5), min_size=0, max_size=3).map(tuple)
    sizes = draw(st.lists(st.tuples(shapes, st.sampled_from(dtypes)), min_size=1, max_size=6))
    has = st.lists(st.booleans() if draw(st.booleans()) else st.just(True), min_size=len(sizes), max_size=len(sizes))
    return Step(sizes, draw(st.lists(has, min_size=1, max_size=9)), draw(st.integers(0, 99)))


@pytest.mark.parametrize("way", [in_shares, gathered])
@pytest.mark.parametrize("bucket_bytes", [16, 100, 2**20])
@given(step=steps(), count=st.integers(2, 5))
def test_sums_are_those_of_one_process(way: Any, bucket_bytes: int, step: Step, count: int) -> None:
    """Of any parameters, parts, and processes, also where a part has no gradient of some, or none has; with buckets
    that hold one parameter, some, and all of several parts. All processes have the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summing, "_BUCKET_BYTES", bucket_bytes)
        together = Together(count)
        found = step.by(together, way(together))
    assert all(bits(one) == bits(found[0]) for one in found)
    assert bits(found[0]) == bits(step.by_one())


def test_shares_take_in_a_part_of_what_is_told_to_all() -> None:
    """Four processes, eight parts of 64 KiB: two rounds of three quarters of one, and three quarters of the sum, where
    it was two rounds of three whole ones."""
    step = Step([((128, 128), torch.float32)], [[True]] * 8, 0)
    size = 128 * 128 * 4
    for way, expected in ((in_shares, 3 * size * 3 // 4), (gathered, 2 * 3 * size)):
        together = Together(4)
        step.by(together, way(together))
        assert together.taken_in == expected


def test_gradients_are_where_the_optimizer_looks_for_them() -> None:
    """Laid out as their parameters are, each in memory of its own: what a norm is made of depends on that."""
    step = Step([((3, 5), torch.float32), ((7,), torch.float32)], [[True, True]] * 2, 3)
    together = Together(2)

    def of(own: int, parameters: Sequence[Any]) -> Summing:
        parameters[0].data = torch.zeros(5, 3).t()
        return in_shares(together)(own, parameters)

    first, second = step.by(together, of)[0]
    assert first.stride() == (1, 3)
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()


def test_what_is_not_whole_is_not_taken() -> None:
    """A process that was lost meanwhile costs the step."""

    def lost() -> None:
        raise PeerLost("another process was lost")

    parameter = torch.nn.Parameter(torch.zeros(4))
    sums = InShares(lambda own: [own[:2], own[:2]], lambda own: [own, own], lost, 0, 2, [parameter])
    parameter.grad = torch.ones(4)
    sums.keep()
    sums.add([(True,), (True,)])
    with pytest.raises(PeerLost):
        sums.finish()
