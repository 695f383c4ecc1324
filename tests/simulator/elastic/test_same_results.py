"""Whatever makes plays faster leaves each of their times as it was, to the microsecond."""

from __future__ import annotations

import hashlib
import random

import pytest

from app.core.elastic.kinds import ElasticKind
from app.simulator.elastic.comparing import POLICIES, policy_named
from app.simulator.elastic.costs import FREE, LORA_8B, LORA_8B_FINISHES, ResizeModel
from app.simulator.elastic.engine import ElasticEngine
from app.simulator.elastic.workload import MixedJob

GPUS = 16
# Of the jobs below, as they were played before anything was made faster: the begin of a hash over all times.
PLAYED = {
    "cornucopia": ("909844e77e1862f2", "64960f815193ea0f", "a04dee28b0166fa7"),
    "cornucopia-literal": ("73ec14dafa7cbf2f", "9b19a5cc3856362d", "cc1882645a324c4b"),
    "tiresias": ("85103d25dd44bb07", "bb2fa3f624faa3d4", "0eb3a8d36c5a5e76"),
    "srtf": ("c5d5c370c2e91b48", "ffeeaf382ace3304", "754abb6e137429f0"),
    "fifo": ("97bed5ccdd767121", "97bed5ccdd767121", "97bed5ccdd767121"),
    "elasticflow": ("b4ace40b59bb3950", "0cfb8b36e14d745c", "0f4742852166721a"),
}


def crowded(seed: int, *, shards: bool) -> list[MixedJob]:
    """More than 16 GPUs can hold: bursts of interactive jobs, long and large batch jobs, some that are not elastic."""
    chance = random.Random(seed)
    jobs = []
    for place in range(300):
        short = chance.random() < 0.4
        request = chance.choice((1, 1, 1, 2, 4, 8))
        jobs.append(
            MixedJob(
                submit_s=float(place // 4 * 4 * chance.randrange(300, 500)),
                duration_s=float(chance.randrange(20, 1500) if short else chance.randrange(60, 20_000)),
                request=request,
                is_interactive=short,
                label=ElasticKind.INTERACTIVE if short or chance.random() < 0.1 else ElasticKind.BATCH,
                is_elastic=chance.random() < 0.9,
                is_linear=chance.random() < 0.8,
                shards=2 * request if shards else None,
            )
        )
    return sorted(jobs, key=lambda one: one.submit_s)


def times_of(policy: str, costs: ResizeModel, *, shards: bool) -> str:
    jobs = crowded(7, shards=shards)
    played = ElasticEngine(jobs, GPUS, policy_named(policy, jobs, GPUS, costs), costs).play()
    told = [
        f"{one.first_gpu_s:.6f} {one.full_size_s:.6f} {one.end_s:.6f} {one.resizes} {one.waste_gpu_s:.6f}"
        for one in played
    ]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_time_is_what_it_was(policy: str) -> None:
    cases = ((FREE, False), (LORA_8B, False), (LORA_8B_FINISHES, True))
    assert tuple(times_of(policy, costs, shards=shards) for costs, shards in cases) == PLAYED[policy]
