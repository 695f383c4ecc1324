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
    if gpu.max_count is not None and gpu.max_count != gpu.count:
        return [Problem("gpu.max_count", "the number of GPUs of a job does not change", f'"max_count": {gpu.count}')]
    if gpu.count > MOST_GPUS:
        what = f"the recipe trains on at most {MOST_GPUS} GPUs of each machine"
        return [Problem("gpu.count", what, f'"count": {MOST_GPUS}, and "nodes" for more machines')]
    if nodes > 1 and template.elastic:
        return [Problem("elastic", "a training on several machines keeps its GPUs", "leave out elastic, or nodes")]
    count = gpu.count * nodes
    work = _work_of(recipe, count)
    if count <= work.parts:
        return []
    on = f"{count} GPUs" if nodes == 1 else f"{count} GPUs of {nodes} machines"
    what = f"{on} have no work with {work.words}"
    return [Problem("gpu.count" if nodes == 1 else "nodes", what, _instead(template, recipe, work.parts))]


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


def _instead(template: Template, recipe: Recipe, parts: int) -> str:
    """The first thing to say otherwise: fewer GPUs, or a step that has more parts."""
    count = template.gpu.count * template.nodes
    if recipe.batch_size >= count:
        return f"micro_batch={recipe.batch_size // count}"
    if template.nodes == 1:
        return f'"count": {recipe.batch_size}, or batch_size={count}'
    return f'"nodes": {max(1, parts // template.gpu.count)}, or batch_size={count}'
