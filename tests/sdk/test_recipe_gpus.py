"""A fine-tuning may ask for several GPUs, of one machine or of several, as long as each of them has work."""

from __future__ import annotations

from typing import Any

import pytest

from allpass.cli.finetune import plan_fields
from allpass.errors import InvalidInput, InvalidTemplate
from allpass.recipe.packing import pack
from allpass.recipe.settings import Recipe
from allpass.templates import load_template
from allpass.wire.plan import OwnLayout, PlanRequest

ROWS = [{"prompt": f"a{number}", "completion": "b"} for number in range(40)]
PAIRS = [{"prompt": f"a{number}", "chosen": "b", "rejected": "c"} for number in range(40)]


@pytest.mark.parametrize("count", range(1, 9))
def test_it_is_sent_for_so_many_gpus_and_trained_by_itself(count: int) -> None:
    """Two jobs in one process are on one GPU. What is asked about with --plan is the same."""
    packed = pack({"model": "m"}, ROWS, template=load_template({"gpu": {"type": "A100", "count": count}}))
    assert (packed.template.gpu.type, packed.template.gpu.count) == ("A100", count)
    assert packed.template.sharing == (count == 1)
    asked = PlanRequest(**plan_fields(packed, None))
    assert asked.layout == OwnLayout(gpus=count)
    assert ("gpus" in plan_fields(packed, None)["layout"]) == (count > 1), "older servers are asked as ever"


def test_one_of_a_range_is_trained_by_itself() -> None:
    """It may have several GPUs later on."""
    packed = pack({"model": "m"}, ROWS, template=load_template({"gpu": {"count": 1, "max_count": 8}}))
    assert (packed.template.gpu.max_count, packed.template.elastic, packed.template.sharing) == (8, True, False)


def test_a_base_that_is_split_is_told_to_whoever_plans() -> None:
    """Whoever does not ask for it sends what older servers know."""
    told = {"gpu": {"type": "A100", "count": 4}}
    packed = pack({"model": "m", "sharded": True}, ROWS, template=load_template(told))
    assert (packed.template.training.sharded, packed.parameters["sharded"]) == (True, True)
    assert PlanRequest(**plan_fields(packed, None)).sharded
    plain = pack({"model": "m"}, ROWS, template=load_template(told))
    assert "sharded" not in {*plain.template.training.model_fields_set, *plain.parameters, *plan_fields(plain, None)}


@pytest.mark.parametrize(
    ("told", "where", "what"),
    [
        ({"gpu": {"count": 2, "max_count": 4}}, "gpu.max_count", "whose model is split over its GPUs keeps them"),
        ({"gpu": {"count": 2}, "elastic": True}, "elastic", "whose model is split over its GPUs keeps them"),
        ({}, "gpu.count", "1 has nobody to share them"),
        ({"nodes": 2}, "gpu.count", "1 has nobody to share them"),
    ],
)
def test_what_a_split_base_does_not_go_with_is_refused(told: dict[str, Any], where: str, what: str) -> None:
    with pytest.raises(InvalidTemplate) as refused:
        pack({"model": "m", "sharded": True}, ROWS, template=load_template(told))
    (problem,) = refused.value.problems
    assert (problem.where, what in problem.message) == (where, True)
    assert problem.hint in ("leave it out, or sharded=False", '"count": 2')


def test_a_full_fine_tuning_is_split_over_the_gpus_of_all_machines() -> None:
    """One on each of two machines shares it with the other; states in blocks of 8 bits cannot be shared."""
    told = {"model": "m", "method": "full", "sharded": True}
    packed = pack(told, ROWS, template=load_template({"gpu": {"count": 1}, "nodes": 2}))
    assert (packed.template.training.sharded, packed.template.nodes) == (True, 2)
    with pytest.raises(InvalidTemplate) as alone:
        pack(told, ROWS, template=load_template({"gpu": {"count": 1}}))
    assert [problem.where for problem in alone.value.problems] == ["gpu.count"]
    with pytest.raises(InvalidInput, match="optimizer: 'adamw_8bit' keeps states of blocks") as refused:
        Recipe.new({**told, "optimizer": "adamw_8bit"})
    assert 'optimizer="adamw"' in str(refused.value.hint)


@pytest.mark.parametrize("method", ["qlora"])
def test_only_plain_weights_are_split(method: str) -> None:
    with pytest.raises(InvalidInput, match=rf"sharded: True splits weights that .*: method is '{method}'") as refused:
        Recipe.new({"model": "m", "method": method, "sharded": True})
    assert 'method="lora"' in str(refused.value.hint)


@pytest.mark.parametrize(
    ("gpu", "settings", "where", "what", "fix"),
    [
        ({"count": 9}, {}, "gpu.count", "trains on at most 8 GPUs of each machine", '"count": 8'),
        ({"count": 2, "max_count": 9}, {}, "gpu.max_count", "trains on at most 8 GPUs of each", '"max_count": 8'),
        ({"count": 1, "max_count": 4}, {"batch_size": 3}, "gpu.max_count", "4 GPUs have no work", '"max_count": 3'),
        ({"count": 1, "max_count": 4}, {"micro_batch": 8}, "gpu.max_count", "no work with 2 parts", "micro_batch=4"),
        ({"count": 4}, {"batch_size": 3}, "gpu.count", "4 GPUs have no work with 3 rows in a step", '"count": 3'),
        ({"count": 4}, {"micro_batch": 8}, "gpu.count", "no work with 2 parts in a step, of 8 rows", "micro_batch=4"),
        ({"count": 2}, {"micro_batch": 16}, "gpu.count", "2 GPUs have no work with 1 part in a step", "micro_batch=8"),
    ],
)
def test_what_would_leave_gpus_without_work_is_refused(
    gpu: dict[str, Any], settings: dict[str, Any], where: str, what: str, fix: str
) -> None:
    """It names the field, and what to say instead."""
    with pytest.raises(InvalidTemplate) as refused:
        pack({"model": "m", **settings}, ROWS, template=load_template({"gpu": gpu}))
    (problem,) = refused.value.problems
    assert problem.where == where
    assert what in problem.message
    assert fix in str(problem.hint)


def test_it_is_sent_for_so_many_machines_and_trained_by_itself() -> None:
    packed = pack({"model": "m"}, ROWS, template=load_template({"gpu": {"type": "A100", "count": 8}, "nodes": 2}))
    assert (packed.template.gpu.count, packed.template.nodes, packed.template.sharing) == (8, 2, False)
    alone = pack({"model": "m"}, ROWS, template=load_template({"nodes": 2}))
    assert (alone.template.nodes, alone.template.sharing) == (2, False)


@pytest.mark.parametrize(
    ("template", "settings", "where", "what", "fix"),
    [
        (
            {"nodes": 3, "gpu": {"count": 8}},
            {},
            "nodes",
            "24 GPUs of 3 machines have no work with 16 rows",
            '"nodes": 2',
        ),
        ({"nodes": 17}, {}, "nodes", "17 GPUs of 17 machines have no work", '"nodes": 16, or batch_size=17'),
        ({"nodes": 2}, {"batch_size": 16, "micro_batch": 16}, "nodes", "with 1 part in a step", "micro_batch=8"),
        ({"nodes": 2, "gpu": {"count": 9}}, {}, "gpu.count", "at most 8 GPUs of each machine", '"count": 8'),
        ({"nodes": 2, "elastic": True}, {}, "elastic", "on several machines keeps its GPUs", "leave out elastic"),
        ({"resize_by": "restart"}, {}, "resize_by", "changes its GPUs by itself, exactly", "leave it out"),
    ],
)
def test_what_cannot_be_done_over_machines_is_refused_with_what_can(
    template: dict[str, Any], settings: dict[str, Any], where: str, what: str, fix: str
) -> None:
    with pytest.raises(InvalidTemplate) as refused:
        pack({"model": "m", **settings}, ROWS, template=load_template(template))
    (problem,) = refused.value.problems
    assert problem.where == where
    assert what in problem.message
    assert fix in str(problem.hint)


def test_pairs_are_cut_where_they_are_packed() -> None:
    """Two at once unless it is said: a step of 16 is 8 parts, one of 8 is 4."""
    for batch, count in ((16, 8), (8, 4)):
        packed = pack({"model": "m", "batch_size": batch}, PAIRS, template=load_template({"gpu": {"count": count}}))
        assert packed.template.gpu.count == count
    with pytest.raises(InvalidTemplate, match="no work with 4 parts in a step, of 2 rows"):
        pack({"model": "m", "batch_size": 8}, PAIRS, template=load_template({"gpu": {"count": 8}}))
