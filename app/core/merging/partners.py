"""Which jobs may be trained as one at all, and why others may not, in words."""

from __future__ import annotations

from app.core.model.merge import MergeMode, Recipe
from app.core.model.snapshot import JobView

_ALIKE = (
    ("base", "base models"),
    ("tokenizer", "tokenizers"),
    ("labels", "label sets"),
    ("sequence", "lengths"),
    ("precision", "precisions"),
)
Kind = tuple[str, str, str, int, str, str | None]


def refusal(one: JobView, other: JobView) -> str | None:
    """Why these two are not merged, whatever it would save; None: they may be."""
    for job in (one, other):
        if job.recipe is None:
            return f"{job.job_id} runs code of its own; only jobs of the built-in recipe can be merged"
    first, second = one.recipe, other.recipe
    assert first is not None
    assert second is not None
    for name, words in _ALIKE:
        if getattr(first, name) != getattr(second, name):
            return f"they have different {words}: {getattr(first, name)} and {getattr(second, name)}"
    if one.resources.base_image != other.resources.base_image:
        return "they ask for different images"
    if other.job_id in one.split_from or one.job_id in other.split_from:
        return "they were merged before, and split"
    if not (first.ends_early or second.ends_early):
        return "both train a fixed number of steps: with a target or a patience, what they learn could save some"
    return _sharing(one, first) or _sharing(other, second) or _across(one, first, other, second)


def refusal_together(one: JobView, other: JobView) -> str | None:
    """Why these two are not trained in one process, though one might be trained after the other; None: they may be."""
    first, second = one.recipe, other.recipe
    assert first is not None
    assert second is not None
    if first.settings != second.settings:
        return "they train with different settings"
    if one.affinity.forbids(other.affinity):
        return "one of them is to run apart from the other"
    types = one.resources.gpu_type, other.resources.gpu_type
    return (
        f"they ask for different GPUs: {types[0]} and {types[1]}" if None not in types and len({*types}) > 1 else None
    )


def modes_of(one: JobView, other: JobView, allowed: frozenset[MergeMode]) -> frozenset[MergeMode]:
    """Of the allowed ways to train two jobs as one, those that nothing about these two forbids."""
    if refusal(one, other) is not None:
        return frozenset()
    return allowed - {MergeMode.TOGETHER} if refusal_together(one, other) is not None else allowed


def kind_of(job: JobView) -> Kind | None:
    """Jobs of equal kinds are alike enough to be merged; None: this one is never merged."""
    recipe = job.recipe
    if recipe is None or not recipe.shares:
        return None
    image = job.resources.base_image
    return recipe.base, recipe.tokenizer, recipe.labels, recipe.sequence, recipe.precision, image


def _sharing(job: JobView, recipe: Recipe) -> str | None:
    return None if recipe.shares else f"{job.job_id} does not share"


def _across(one: JobView, first: Recipe, other: JobView, second: Recipe) -> str | None:
    if one.project_id == other.project_id or (first.shares_across and second.shares_across):
        return None
    return "they are of different projects, and not both share with other projects"
