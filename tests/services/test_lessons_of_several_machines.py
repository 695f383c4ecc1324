"""What is learned from a run on several machines: its memory, and no step time, in which a network had its part."""

from __future__ import annotations

from typing import Any

from app.core.progress import ProgressRate
from app.db.learning.calibrations import EndedRun
from app.services.learning.learn_from_runs import study

GB = 1_000_000_000
FACTS = {"micro_batch": 2, "accumulation": 2, "sequence": 512, "sharding": "ddp", "allocated_bytes": 5 * GB}


def ended(nodes: int) -> EndedRun:
    training = {"method": "lora", "batch_size": 8, "sequence_length": 512}
    template: dict[str, Any] = {"model": {"name": "llama-3.2-1b"}, "training": training, "nodes": nodes}
    pace = ProgressRate(1, 0, 101, 100_000)
    return EndedRun("run_a", "proj_a", FACTS, template, "A100", 42 * GB, 1, pace, machines=nodes)


def test_a_step_between_machines_is_no_measurement_of_a_gpu() -> None:
    """It would make steps of one machine look slow. Memory is each GPU's own, with what processes tell each other."""
    (alone,) = study([ended(1)])
    (several,) = study([ended(2)])
    assert alone.step is not None
    assert several.step is None
    assert several.memory is not None
    assert alone.memory is not None
    assert several.memory.predicted.allocated.expected >= alone.memory.predicted.allocated.expected
