"""How fast a training is predicted to be with each number of GPUs, where its job states it."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.throughput import Throughput
from app.db.learning.size_speeds import StatedRun
from app.services.sizes.measure_sizes import predicted_speeds

TRAINING: dict[str, Any] = {"method": "lora", "batch_size": 8, "sequence_length": 512}
STATED: dict[str, Any] = {"model": {"name": "llama-3.2-1b"}, "training": TRAINING}
FACTS = {"micro_batch": 2, "accumulation": 4, "sequence": 512}


def predicted(template: dict[str, Any] = STATED, facts: dict[str, Any] = FACTS, gpu_type: str = "A100") -> Any:
    return predicted_speeds(StatedRun("run_a", "proj_a", template, facts, gpu_type), Throughput())


@pytest.mark.parametrize("facts", [FACTS, {"micro_batch": 2}], ids=["told", "before its code says"])
def test_a_step_of_four_parts_is_a_staircase(facts: dict[str, Any]) -> None:
    """Three GPUs are no faster than two, and eight no faster than four: they have nothing to do."""
    found = predicted(facts=facts)
    assert sorted(found) == list(range(1, 9))
    assert found[2] > 1.3 * found[1]
    assert found[3] <= found[2] * 1.01
    assert found[4] > 1.3 * found[3]
    assert found[8] <= found[4] * 1.01


@pytest.mark.parametrize(
    ("template", "gpu_type"),
    [
        ({}, "A100"),
        ({"kind": 7}, "A100"),
        (STATED | {"training": TRAINING | {"method": "prayer"}}, "A100"),
        (STATED | {"model": {"name": "nobody/knows"}}, "A100"),
        (STATED | {"nodes": 2}, "A100"),
        (STATED, "abacus"),
    ],
    ids=["nothing stated", "no template", "no method", "no model", "several machines", "no such GPU"],
)
def test_where_nothing_can_be_predicted_nothing_is(template: dict[str, Any], gpu_type: str) -> None:
    """Rows of any release, about anything."""
    assert predicted(template, gpu_type=gpu_type) == {}


def test_nor_without_a_micro_batch() -> None:
    assert predicted(facts={}) == {}
