"""Plans: every one fits and keeps the global batch, none that is better is missed, and a remedy really helps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.memory import MODELS, Training, estimate, verdict
from app.core.memory.plans import Device, feasible_plans, remedies
from app.errors import InvalidInput

GIB = 1 << 30
LLAMA = MODELS["llama-3-8b"]
T4 = Device("T4", round(14.6 * GIB))
A100 = Device("A100-80GB", round(79.1 * GIB), most=8)
L4 = Device("L4", round(22 * GIB), most=4)
LORA = Training(method="lora", batch=1, sequence=2048)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(["lora", "full"]), st.integers(1, 48), st.sampled_from([256, 1024, 4096]), st.booleans())
def test_every_plan_fits_and_keeps_the_batch(method: str, global_batch: int, sequence: int, saving: bool) -> None:
    """Replicas x micro-batch x accumulation is the global batch, in memory that the GPU has."""
    # A word from a table.
    asked = replace(LORA, method=method, sequence=sequence, checkpointing=saving)  # type: ignore[arg-type]
    capacity = {device.name: device for device in (T4, L4, A100)}
    for plan in feasible_plans(LLAMA, asked, capacity.values(), global_batch=global_batch):
        device = capacity[plan.device]
        assert plan.global_batch == global_batch
        assert plan.gpus <= device.most
        assert verdict(plan.estimated, device.capacity_bytes) == "fits"
        assert plan.estimated == estimate(LLAMA, plan.training)
        assert plan.training.checkpointing or not saving, "what the user asked for stays on"


@pytest.mark.parametrize("global_batch", [6, 16, 64])
def test_the_micro_batch_is_the_largest_that_fits(global_batch: int) -> None:
    """No larger divisor of the batch would have fitted in the same layout."""
    plans = feasible_plans(LLAMA, LORA, [L4, A100], global_batch=global_batch)
    sizes = {"L4": L4.capacity_bytes, "A100-80GB": A100.capacity_bytes}
    for plan in plans:
        per_replica = global_batch // plan.training.replicas
        for batch in range(plan.training.batch + 1, per_replica + 1):
            if per_replica % batch == 0:
                larger = replace(plan.training, batch=batch, accumulation=per_replica // batch)
                assert verdict(estimate(LLAMA, larger), sizes[plan.device]) != "fits"


def test_fewest_gpus_first() -> None:
    """One GPU that does comes before several, and a plan that need not recompute before one that must."""
    plans = feasible_plans(LLAMA, LORA, [A100, L4], global_batch=8)
    assert [plan.gpus for plan in plans] == sorted(plan.gpus for plan in plans)
    single = [plan for plan in plans if plan.gpus == 1]
    assert [plan.training.checkpointing for plan in single] == sorted(plan.training.checkpointing for plan in single)


def test_sharding_makes_full_training_possible() -> None:
    """Full training of 8B with AdamW fits on no single A100, and on several only if its states are split."""
    asked = Training(method="full", batch=1, sequence=2048, checkpointing=True)
    plans = feasible_plans(LLAMA, asked, [A100], global_batch=16)
    assert {plan.training.sharding for plan in plans if plan.training.tensor_parallel == 1} >= {"fsdp"}
    assert all(plan.gpus > 1 for plan in plans)
    assert "ddp" not in {plan.training.sharding for plan in plans if plan.training.tensor_parallel == 1}


def test_nothing_fits_nowhere() -> None:
    """Where no layout fits there is no plan, and no exception."""
    asked = Training(method="full", batch=1, sequence=2048)
    assert feasible_plans(LLAMA, asked, [T4], global_batch=4) == ()


@pytest.mark.parametrize("device", [T4, L4])
@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_remedy_makes_it_fit(device: Device, method: str) -> None:
    """Each remedy fits by its own estimate, keeps the sequences of a step, and changes only what it says."""
    asked = replace(LORA, method=method, batch=4)  # type: ignore[arg-type]  # a word from a table
    found = remedies(LLAMA, asked, device)
    assert found
    for remedy in found:
        assert verdict(estimate(LLAMA, remedy.training), device.capacity_bytes) == "fits"
        assert remedy.training.batch * remedy.training.accumulation == 4
        assert ("checkpointing" in remedy.changes) == remedy.training.checkpointing
        assert any(each.startswith("method=") for each in remedy.changes) == (remedy.training.method != method)


def test_no_remedy_where_none_is_needed_or_none_helps() -> None:
    """A job that fits needs no advice, and 70B on a T4 gets none."""
    assert remedies(LLAMA, LORA, A100) == ()
    assert remedies(MODELS["llama-3-70b"], replace(LORA, method="full"), T4) == ()


def test_wrong_questions() -> None:
    """A batch or a GPU that cannot be is refused by the name of its field."""
    with pytest.raises(InvalidInput) as refused:
        feasible_plans(LLAMA, LORA, [A100], global_batch=0)
    assert refused.value.param == "global_batch"
    for field, change in (("capacity_bytes", (0, 1)), ("most", (GIB, 0))):
        with pytest.raises(InvalidInput) as refused:
            Device("broken", *change)
        assert refused.value.param == field
