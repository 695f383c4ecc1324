"""Rates follow the number of GPUs, through checkpoints, and are never multiplied twice."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from allpass.training import gpus_factor, scale_learning_rate

pytestmark = pytest.mark.training


@pytest.mark.parametrize(
    ("told", "factor"),
    [
        ({}, 1.0),
        ({"ALLPASS_GPU_COUNT": "2"}, 1.0),
        ({"ALLPASS_GPU_COUNT": "2", "ALLPASS_GPU_COUNT_ASKED": "4"}, 0.5),
        ({"ALLPASS_GPU_COUNT": "8", "ALLPASS_GPU_COUNT_ASKED": "1"}, 8.0),
        ({"ALLPASS_GPU_COUNT": "0", "ALLPASS_GPU_COUNT_ASKED": "4"}, 1.0),
        ({"ALLPASS_GPU_COUNT": "many", "ALLPASS_GPU_COUNT_ASKED": "4"}, 1.0),
    ],
)
def test_the_factor_is_now_over_asked(told: dict[str, str], factor: float) -> None:
    assert gpus_factor(told) == factor


def made(kind: str) -> tuple[Any, Any]:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([{"params": [weight]}], lr=0.4)
    if kind == "cosine":
        return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    if kind == "steps":
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=4)
    then = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    return optimizer, torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, then], milestones=[4])


def rates(kind: str, factors: list[float], steps: int) -> list[float]:
    """Of a training that is begun again every few steps, each time with another factor."""
    found: list[float] = []
    saved: Any = None
    for factor in factors:
        optimizer, scheduler = made(kind)
        if saved is not None:
            optimizer.load_state_dict(saved[0])
            scheduler.load_state_dict(saved[1])
        for _ in range(2):  # whoever calls it twice
            assert scale_learning_rate(optimizer, scheduler, factor=factor) == factor
        for _ in range(steps):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        saved = optimizer.state_dict(), scheduler.state_dict()
    return found


@pytest.mark.parametrize("kind", ["cosine", "steps", "sequential"])
def test_rates_are_those_of_the_schedule_times_the_factor(kind: str) -> None:
    factors = [1.0, 0.5, 2.0, 1.0]
    plain = rates(kind, [1.0] * 4, 4)
    followed = rates(kind, factors, 4)
    expected = [rate * factors[step // 4] for step, rate in enumerate(plain)]
    assert followed == pytest.approx(expected, rel=1e-9)
