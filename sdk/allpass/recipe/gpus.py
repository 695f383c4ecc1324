"""How many GPUs a fine-tuning may ask for: each has a whole copy of the model, and parts of every step."""

from __future__ import annotations

from typing import NamedTuple

from allpass.errors import Problem
from allpass.recipe.settings import Recipe
from allpass.wire.template import Template

MOST_GPUS = 8  # of one machine


def problems_of(template: Template, recipe: Recipe) -> list[Problem]:
    """Why a recipe cannot be trained on these, or would leave some of them without work."""
    gpu, nodes = template.gpu, template.nodes
    name, most = ("max_count", gpu.max_count or 0) if gpu.is_range else ("count", gpu.count)
    if most > MOST_GPUS:
        what = f"the recipe trains on at most {MOST_GPUS} GPUs of each machine"
        return [Problem(f"gpu.{name}", what, f'"{name}": {MOST_GPUS}, and "nodes" for more machines')]
    kept = _keeps(template, recipe)
    if kept is not None:
        return [kept]
    if recipe.sharded and most * (nodes if recipe.splits_all else 1) == 1:
        what = "sharded=True splits the model's weights over GPUs, and 1 has nobody to share them"
        return [Problem("gpu.count", what, '"count": 2')]
    count = most * nodes
    work = _work_of(recipe, count)
    if count <= work.parts:
        return []
    on = f"{count} GPUs" if nodes == 1 else f"{count} GPUs of {nodes} machines"
    what = f"{on} have no work with {work.words}"
    return [Problem(f"gpu.{name}" if nodes == 1 else "nodes", what, _instead(template, recipe, name, most))]


def _keeps(template: Template, recipe: Recipe) -> Problem | None:
    """Why it cannot change its GPUs as it is to."""
    if template.resize_by == "restart":
        what = "the recipe changes its GPUs by itself, exactly and without a restart"
        return Problem("resize_by", what, "leave it out")
    if recipe.sharded and (template.elastic or template.gpu.is_range):
        name = "gpu.max_count" if template.gpu.is_range else "elastic"
        what = "a training whose model is split over its GPUs keeps them"
        return Problem(name, what, "leave it out, or sharded=False")
    if template.nodes > 1 and template.elastic:
        return Problem("elastic", "a training on several machines keeps its GPUs", "leave out elastic, or nodes")
    return None


class _Work(NamedTuple):
    """Of a step: parts that processes can take, at most."""

    parts: int
    words: str


def _work_of(recipe: Recipe, count: int) -> _Work:
    is_cut = recipe.micro_batch is not None or recipe.learns_pairs
    if not is_cut or count > recipe.batch_size:
        return _Work(recipe.batch_size, f"{recipe.batch_size} rows in a step")
    parts = "1 part" if recipe.accumulation == 1 else f"{recipe.accumulation} parts"
    return _Work(recipe.accumulation, f"{parts} in a step, of {recipe.rows_at_once} rows")


def _instead(template: Template, recipe: Recipe, name: str, most: int) -> str:
    """The first thing to say otherwise: fewer GPUs, or a step that has more parts."""
    count = most * template.nodes
    if recipe.batch_size >= count:
        return f"micro_batch={recipe.batch_size // count}"
    if template.nodes == 1:
        return f'"{name}": {recipe.batch_size}, or batch_size={count}'
    parts = _work_of(recipe, count).parts
    return f'"nodes": {max(1, parts // most)}, or batch_size={count}'
