"""Many ranges among twenty thousand offers: for each of them a few offers are looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from app.core.board import Board
from app.core.elastic.profile import SpeedProfile
from app.core.elastic.range_moves import SeenRanges, change_of, first_kind, growth_of, start_of
from app.core.elastic.runs import ElasticRun
from app.core.model.job import Caps, JobState, Resources
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.resizing import GpusHeld, GpusTold
from tests.core import samples

OFFERS, RANGES, SIZES, NOW_MS = 20_000, 40, 8, samples.NOW_MS
CURVE = SpeedProfile(1, predicted={gpus: gpus**0.9 for gpus in range(1, SIZES + 1)})
TYPES = ("A100", "H100", "L40S", "RTX 4090")


class Counted(Offer):
    """An offer of which it is noted that anything of it is read."""

    __slots__ = ()
    read: ClassVar[set[int]] = set()

    def __getattribute__(self, name: str) -> Any:
        Counted.read.add(id(self))
        return super().__getattribute__(name)


def _offer(number: int) -> Counted:
    tier = (Tier.MARKETPLACE, Tier.CONVENTIONAL, Tier.SERVERLESS)[number % 3]
    plain = samples.offer(f"o{number}", tier, f"{1 + number % 997 / 100:.2f}", gpu_type=TYPES[number % 4])
    values = {name: getattr(plain, name) for name in Offer.__slots__}
    return Counted(**(values | {"gpu_count": 1 + number % 16, "cpus": 64, "arrival_ms": 60_000}))


@pytest.fixture(scope="module")
def board() -> Board:
    """Of ranges that have one of their GPUs, or all; no two of them need the same."""
    ids = [f"{number:03}" for number in range(2 * RANGES)]
    jobs = [
        samples.job(
            f"job_{one}", JobState.RUNNING if number < RANGES else JobState.QUEUED, deadline_ms=NOW_MS + 9_000_000,
            resources=Resources(1, SIZES, gpu_memory_bytes_min=number), total_run_ms=8_000_000,
            caps=Caps(max_hourly=Money.usd("9.00")),
        )
        for number, one in enumerate(ids)
    ]  # fmt: skip
    nodes = [
        samples.node(f"node_{one}", free_gpus=(), gpu_count=SIZES, price_per_hour=Money.usd("8.00"))
        for one in ids[:RANGES]
    ]
    runs = [samples.run(f"run_{one}", f"job_{one}", f"node_{one}", tier=Tier.MARKETPLACE) for one in ids[:RANGES]]
    offers = [_offer(number) for number in range(OFFERS)]
    return Board.of(samples.snapshot(jobs=jobs, runs=runs, nodes=nodes, offers=offers))


def held(number: int, gpus: int) -> ElasticRun:
    used, name = tuple(range(gpus)), f"{number:03}"
    now = GpusHeld(used, gpus), GpusTold(used)
    due_ms = NOW_MS + 4_000_000
    return ElasticRun(
        f"run_{name}",
        f"job_{name}",
        f"node_{name}",
        *now,
        SIZES,
        0,
        is_range=True,
        due_ms=due_ms if gpus == 1 else None,
    )


def _grows(board: Board, number: int) -> object:
    job, run = board.jobs[f"job_{number:03}"], held(number, 1)
    return growth_of(board, job, run, CURVE, 9_000.0, NOW_MS)


def _shrinks(board: Board, number: int) -> object:
    run = held(number, SIZES)
    seen = SeenRanges(board, {run.run_id: CURVE}, samples.CONFIG, is_crowded=False, may_rent=True)
    return change_of(seen, board.jobs[run.job_id], run, 90_000.0, NOW_MS)


def _begins(board: Board, number: int) -> object:
    job = board.jobs[f"job_{RANGES + number:03}"]
    assert first_kind(board, job) is not None
    return start_of(board, job, CURVE, NOW_MS)


@pytest.mark.parametrize("look", [_grows, _shrinks, _begins])
def test_what_is_looked_at_for_many_ranges_does_not_grow_with_the_offers(
    board: Board, look: Callable[[Board, int], object]
) -> None:
    """The first one has them sorted; a hundredth of them is more than any other one looks at."""
    assert look(board, 0) is not None, "it finds a machine"
    for number in range(1, RANGES):
        Counted.read.clear()
        look(board, number)
        assert 0 < len(Counted.read) < OFFERS / 100
