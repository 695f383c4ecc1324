"""Who may be trained with whom, and in which words others are told why not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.core.merging.partners import kind_of, refusal
from app.core.model.job import Resources
from tests.core.merging.mergeable import mergeable

ONE = mergeable("job_a")
OTHER_PROJECT: dict[str, Any] = {"project_id": "proj_b"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"recipe": {"base": "base-b"}}, "they have different base models: base-a and base-b"),
        ({"recipe": {"tokenizer": "tok-b"}}, "they have different tokenizers: tok-a and tok-b"),
        ({"recipe": {"labels": "yes,no"}}, "they have different label sets: pos,neg and yes,no"),
        ({"recipe": {"sequence": 1024}}, "they have different lengths: 512 and 1024"),
        ({"recipe": {"precision": "fp32"}}, "they have different precisions: bf16 and fp32"),
        ({"recipe": {"shares": False}}, "job_b does not share"),
        ({"resources": Resources(base_image="x")}, "they ask for different images"),
        ({"split_from": frozenset({"job_a"})}, "they were merged before, and split"),
        (OTHER_PROJECT, "they are of different projects, and not both share with other projects"),
        (
            OTHER_PROJECT | {"recipe": {"shares_across": True}},
            "they are of different projects, and not both share with other projects",
        ),
    ],
    ids=["base", "tokenizer", "labels", "length", "precision", "opted out", "image", "split", "project", "one opts in"],
)
def test_unlike_jobs_are_told_why(changes: dict[str, Any], told: str) -> None:
    """What differs is named, with both values; equal jobs of one project are refused nothing."""
    assert refusal(ONE, mergeable("job_b")) is None
    assert refusal(ONE, mergeable("job_b", **changes)) == told


def test_across_projects_both_have_to_agree() -> None:
    """Jobs of two projects are merged when both have opted in."""
    agree = {"recipe": {"shares_across": True}}
    assert refusal(mergeable("job_a", **agree), mergeable("job_b", **OTHER_PROJECT, **agree)) is None


def test_code_of_ones_own_is_never_merged() -> None:
    """A job without a recipe is refused from both sides, and is of no kind."""
    script = replace(ONE, job_id="job_s", recipe=None)
    told = "job_s runs code of its own; only jobs of the built-in recipe can be merged"
    assert refusal(ONE, script) == refusal(script, ONE) == told
    assert kind_of(script) is None
    assert kind_of(mergeable("job_b", recipe={"shares": False})) is None
    assert kind_of(ONE) == kind_of(mergeable("job_b"))
