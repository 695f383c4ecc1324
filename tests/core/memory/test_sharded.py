"""Frozen weights split over the GPUs of a machine: what each of them needs, and what they pass on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.exchange import bytes_between
from app.core.layout import GpuSet, lay_out, lay_out_alone
from app.core.memory import Training, model_named
from app.core.memory.catalogue import MODELS
from app.core.memory.host import host_bytes
from app.core.memory.need import Stated, least_need
from app.core.memory.parameters import parameters_of
from app.core.memory.plans import Device, feasible_plans, remedies
from app.core.memory.predict import peak_of
from app.core.roofline import talk_bytes, trained_values
from app.core.sharded_way import sharded_way
from app.core.throughput import key_of
from app.errors import InvalidInput
from tests.api.test_plan import A100, T4

GB = 1_000_000_000
WHOLE = Training(method="lora", batch=1, sequence=512, narrow_adapters=True, loss="recomputed")
SHARDED = replace(WHOLE, sharded=True)
LARGE = Stated("llama-3-70b", model_named("llama-3-70b"), WHOLE, 16, 1, whole=True)
FULL = Stated("llama-3-8b", model_named("llama-3-8b"), Training("full", 1, 512, loss="recomputed"), 16, 1, whole=True)
SPLIT = replace(LARGE, training=SHARDED, gpus=4)


def on(training: Training, gpus: int) -> Training:
    return replace(training, gpus=gpus, sharding="none" if gpus == 1 else "fsdp" if training.sharded else "ddp")


@given(st.sampled_from(sorted(MODELS)), st.integers(2, 8), st.integers(1, 4), st.booleans())
def test_each_gpu_holds_its_share_of_the_layers(name: str, gpus: int, batch: int, recomputes: bool) -> None:
    """By so much less than with a copy each lies there before a step; what is trained, or no layer's, is whole."""
    model = model_named(name)
    whole, split = (
        peak_of(model, replace(on(one, gpus), batch=batch, checkpointing=recomputes)) for one in (WHOLE, SHARDED)
    )
    counts = parameters_of(model)
    layers = counts.layers * counts.layer * WHOLE.weight_item
    assert whole.resident - split.resident == pytest.approx(layers * (1 - 1 / gpus), rel=0.02)
    assert split.optimizer - split.resident == whole.optimizer - whole.resident
    for phase in ("forward", "backward"):
        put_together = getattr(split, phase) - split.resident - (getattr(whole, phase) - whole.resident)
        assert put_together >= 0.9 * 2 * counts.layer * WHOLE.weight_item


@given(st.sampled_from(sorted(MODELS)), st.integers(1, 7))
def test_one_gpu_more_never_takes_more_of_each(name: str, gpus: int) -> None:
    stated = Stated(name, model_named(name), SHARDED, 64, gpus, 1, True, whole=True)
    assert least_need(replace(stated, gpus=gpus + 1)).capacity_bytes <= least_need(stated).capacity_bytes + 4 * GB
    if gpus >= 2:
        assert least_need(replace(stated, gpus=gpus + 1)).capacity_bytes <= least_need(stated).capacity_bytes


def test_a_model_that_no_gpu_holds_fits_on_four() -> None:
    """And that is how its run is laid out, for its script to read; a copy on each never is."""
    assert least_need(LARGE).capacity_bytes > 150 * GB
    assert least_need(replace(LARGE, gpus=4)).capacity_bytes > 150 * GB
    assert 45 * GB < least_need(SPLIT).capacity_bytes < 75 * GB
    for lay in (lay_out, lay_out_alone):
        found = lay(SPLIT, GpuSet("A100", 85 * GB, 4))
        assert found.fits
        assert (found.as_json()["sharding"], found.as_json()["gpus"]) == ("fsdp", 4)
    assert lay_out_alone(replace(SPLIT, gpus=1), GpuSet("H200", 200 * GB, 1)).as_json()["sharding"] == "none"


def test_each_of_several_machines_holds_all_of_it() -> None:
    """Split over its own GPUs: what each needs is what it needs on one machine with so many, and a machine with one GPU
    splits nothing. What passes within a machine is that of its share."""
    two = SPLIT.over(2)
    assert (two.gpus, on(two.training, 8).shares) == (8, 4)
    alone, both = (peak_of(LARGE.model, on(one.training, one.gpus)) for one in (SPLIT, two))
    assert both.resident == alone.resident
    found = lay_out_alone(two, GpuSet("A100", 85 * GB, 8))
    assert (found.fits, found.as_json()["sharding"], found.as_json()["gpus"]) == (True, "fsdp", 8)
    single = replace(SPLIT, gpus=1).over(4)
    assert lay_out_alone(single, GpuSet("B300", 250 * GB, 4)).as_json()["sharding"] == "ddp"
    assert least_need(single).capacity_bytes > 150 * GB
    weights = [talk_bytes(LARGE.model, one) for one in (on(SPLIT.training, 4), on(two.training, 8))]
    assert weights[1] == pytest.approx(weights[0], rel=0.02)
    assert LARGE.over(2).training == LARGE.training


def test_a_plan_that_is_asked_for_so_spreads_nothing_else() -> None:
    found = feasible_plans(LARGE.model, SHARDED, (Device("A100", 85 * GB, 4),), global_batch=16)
    assert {plan.training.sharding for plan in found if plan.training.tensor_parallel == 1} == {"fsdp"}


def test_weights_are_passed_on_with_every_part() -> None:
    """Once forward and once back, of the layers alone; once more for what a preference is compared with. Steps that
    were measured of another way to spread a training say nothing of this one."""
    model, gpus = LARGE.model, 4
    split = replace(on(SHARDED, gpus), accumulation=3)
    share = (gpus - 1) / gpus
    gradients = 2 * share * trained_values(model, split) * 2
    counts = parameters_of(model)
    weights = share * counts.layers * counts.layer_matrices * 2
    assert talk_bytes(model, split) == pytest.approx(gradients + 2 * 3 * weights)
    assert talk_bytes(model, replace(split, reference_pass=True)) == pytest.approx(gradients + 3 * 3 * weights)
    keys = {key_of(LARGE.name, one, "A100", model.layers) for one in (split, replace(split, sharded=False))}
    assert len(keys) == 2


def test_processes_that_share_weights_map_them_once() -> None:
    weights = parameters_of(LARGE.model).total * 2
    more = host_bytes(LARGE.model, on(SHARDED, 4), processes=4) - host_bytes(LARGE.model, on(WHOLE, 4), processes=4)
    assert more == weights
    assert host_bytes(LARGE.model, SHARDED) == host_bytes(LARGE.model, WHOLE)


@pytest.mark.parametrize("method", ["qlora", "norm_tuning"])
def test_only_plain_weights_are_split(method: str) -> None:
    quantised = {"quantisation": "nf4"} if method == "qlora" else {}
    with pytest.raises(InvalidInput, match=r"sharded is True: method '\w+' has no weights in 16 or 32 bits") as refused:
        Training(method, 1, 8, sharded=True, **quantised)  # type: ignore[arg-type]
    assert refused.value.param == "sharded"


def test_what_would_help_where_it_still_does_not_fit() -> None:
    """Weights in 4 bits are not split."""
    found = remedies(LARGE.model, on(SHARDED, 2), Device("A100", 60 * GB))
    assert found
    assert all(not (one.training.method == "qlora" and one.training.sharded) for one in found)


@pytest.mark.parametrize(
    ("offers", "stated", "told"),
    [
        ((replace(A100, gpu_memory_bytes=85 * GB, gpu_count=4),), LARGE, "split over 4 A100 it fits, with "),
        ((replace(A100, gpu_memory_bytes=85 * GB, gpu_count=8),), LARGE, "split over 4 A100 it fits, with "),
        ((replace(A100, gpu_memory_bytes=85 * GB, gpu_count=2), replace(T4, gpu_count=8)), LARGE, None),
        ((A100,), LARGE, None),
        ((), LARGE, None),
        ((replace(A100, gpu_memory_bytes=85 * GB, gpu_count=4),), SPLIT, None),
        ((replace(A100, gpu_memory_bytes=85 * GB, gpu_count=8),), replace(LARGE, batch=3), None),
        (
            (replace(A100, gpu_memory_bytes=85 * GB, gpu_count=8),),
            replace(LARGE, gpus=8),
            "finetune --gpu A100:8 --sharded)",
        ),
        (
            (replace(A100, gpu_memory_bytes=85 * GB, gpu_count=8),),
            replace(LARGE, training=Training("full", 1, 512)),
            None,
        ),
        ((replace(A100, gpu_memory_bytes=85 * GB, gpu_count=8),), FULL, "split over 2 A100 it fits, with "),
        (
            (replace(A100, gpu_memory_bytes=85 * GB, gpu_count=8),),
            replace(FULL, training=replace(FULL.training, optimizer="adamw_8bit")),
            None,
        ),
    ],
    ids=[
        "four",
        "of eight",
        "too small",
        "one",
        "none",
        "split",
        "small step",
        "eight",
        "full",
        "full of 8B",
        "8 bits",
    ],
)
def test_where_a_copy_does_not_fit_it_is_said_on_how_many_it_would(
    offers: tuple,
    stated: Stated,
    told: str | None,  # type: ignore[type-arg]
) -> None:
    """The fewest that are on offer in one machine, and no more than a step has rows."""
    found = sharded_way(stated, offers)
    assert found is None if told is None else found is not None and told in found


def test_over_machines_it_is_said_by_the_gpus_of_each() -> None:
    """As the command asks for them; a step has to have a row for every one."""
    four = (replace(A100, gpu_memory_bytes=85 * GB, gpu_count=4),)
    found = sharded_way(LARGE.over(2), four, 2)
    assert found is not None and "split over 4 A100 it fits" in found
    assert sharded_way(replace(LARGE, batch=7).over(2), four, 2) is None


FULLY = replace(FULL.training, sharded=True, accumulation=2)


@given(st.sampled_from(sorted(MODELS)), st.integers(2, 16), st.sampled_from(["bf16", "fp32", "amp_bf16"]))
def test_of_a_full_fine_tuning_each_gpu_holds_its_share_of_everything(name: str, gpus: int, precision: str) -> None:
    """Weights, two states, gradients; beside them what is put together for the moment, whatever the number is."""
    model = model_named(name)
    found = peak_of(model, replace(on(FULLY, gpus), precision=precision))  # type: ignore[arg-type]
    again = peak_of(model, replace(on(FULLY, 2 * gpus), precision=precision))  # type: ignore[arg-type]
    item = 2 if precision == "bf16" else 4
    share = parameters_of(model).total * item / gpus
    assert found.resident - again.resident == pytest.approx(3 * share / 2, rel=0.01)
    assert found.backward - again.backward == pytest.approx(4 * share / 2, rel=0.01)
    assert found.backward - found.resident >= share + 3 * parameters_of(model).layer * item


def test_more_machines_leave_each_gpu_less_of_a_full_fine_tuning() -> None:
    split = replace(FULL, training=replace(FULL.training, sharded=True), gpus=2)
    needs = [least_need(split.over(machines)).capacity_bytes for machines in (1, 2, 4)]
    assert needs == sorted(needs, reverse=True)
    assert least_need(FULL).capacity_bytes > needs[0]
    found = lay_out_alone(split.over(2), GpuSet("A100", 85 * GB, 4)).as_json()
    assert (found["sharding"], found["gpus"], found["fits"]) == ("fsdp", 4, True)


def test_gradients_of_each_part_go_to_who_has_their_share() -> None:
    """Weights come together twice for each part. Once in a step a gradient comes together, for its norm. Steps of a
    script's FSDP say nothing of it."""
    model, gpus = FULL.model, 4
    total = parameters_of(model).total * 2
    split = replace(on(FULLY, gpus), accumulation=3)
    assert talk_bytes(model, split) == pytest.approx(3 / 4 * total * (2 * 3 + 3 + 1), rel=0.02)
    keys = {key_of(FULL.name, one, "A100", model.layers) for one in (split, replace(split, sharded=False))}
    assert len(keys) == 2
    between = bytes_between(model, replace(split, gpus=8), 2, "recipe")
    assert between == pytest.approx(1 / 2 * total * (3 * (2 + 4) + 1), rel=0.01)


def test_what_would_help_a_split_training_is_split_too() -> None:
    """States in 8 bits are not, and are not named."""
    found = remedies(FULL.model, on(FULLY, 2), Device("T4", 16 * GB))
    assert found
    assert not [one for one in found if one.training.splits_all and one.training.optimizer != "adamw"]


def test_of_a_split_training_a_host_has_what_each_process_makes_of_the_files() -> None:
    """Mapped files are shared; weights that are wider than their files are each process's own."""
    weights = parameters_of(FULL.model).total * 2
    plain = FULL.training
    more = host_bytes(FULL.model, on(FULLY, 4), processes=4) - host_bytes(FULL.model, on(plain, 4), processes=4)
    assert weights <= more <= weights + 4 * GB
    wide = replace(FULLY, precision="amp_bf16")
    assert host_bytes(FULL.model, on(wide, 4), processes=4) >= 4 * 2 * weights
