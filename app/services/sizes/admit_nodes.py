"""Whether a job may be on another number of machines, as far as that is its own affair: its memory, and its work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from allpass.errors import InvalidInput as RecipeError
from allpass.recipe.gpus import problems_of
from allpass.recipe.packing import SCRIPT_NAME
from allpass.recipe.settings import Recipe
from allpass.wire.template import Template
from app.core.layout import StepCut
from app.core.memory.host import MERGING
from app.db.engine import Database
from app.db.runs.machine_counts import SpreadJob, spread_job
from app.errors import InvalidInput
from app.services.jobs.admit_memory import MemoryAdmission
from app.services.jobs.compose_job import NOTHING_STATED, Predicted, refuse_on_several

_PARAM = "nodes"


@dataclass(frozen=True, slots=True)
class AdmittedNodes:
    """`predicted`: what each of its GPUs needs then. `refused`: why it would not fit, to be said once it is known that
    the job may be resized at all."""

    nodes: int
    predicted: Predicted = NOTHING_STATED
    refused: InvalidInput | None = None


async def admit_nodes(
    database: Database, memory: MemoryAdmission, project_id: str, job_id: str, nodes: int
) -> AdmittedNodes:
    """Predict what the job needs on so many machines, as for a new job. Opens transactions of its own: before those
    that write."""
    async with database.statement() as connection:
        job = await spread_job(connection, job_id, project_id)
    template = None if job is None else on_machines(job, nodes)
    if job is None or template is None:
        return AdmittedNodes(nodes)
    try:
        predicted = await memory.predict(
            project_id,
            template,
            by_recipe=is_recipe(job),
            merges=isinstance(job.parameters, Mapping) and job.parameters.get("export") in MERGING,
        )
    except InvalidInput as error:
        return AdmittedNodes(nodes, refused=_of_nodes(job_id, nodes, str(error)))
    return AdmittedNodes(nodes, predicted)


def is_recipe(job: SpreadJob) -> bool:
    """Whether the built-in fine-tuning trains it: on any number of machines with the same bytes."""
    return job.entrypoint == SCRIPT_NAME


def on_machines(job: SpreadJob, nodes: int) -> Template | None:
    """The job's template for so many machines, with the GPUs that it asks for now. None of one that an older release
    let in and this one would not."""
    try:
        template = Template.model_validate(job.template)
    except ValidationError:
        return None
    most = job.resources.gpus_max
    gpu = template.gpu.model_copy(update={"count": min(template.gpu.count, most), "max_count": most})
    if not template.gpu.is_range:
        gpu = template.gpu.model_copy(update={"count": most})
    return template.model_copy(update={"nodes": nodes, "gpu": gpu})


def check_work(job: SpreadJob, cut: StepCut | None, nodes: int) -> None:
    """Raises InvalidInput for what a job on several machines cannot be, and where some of them would have nothing to
    do. `cut`: how its steps have been cut so far, as they will be."""
    template = on_machines(job, nodes)
    if template is None:
        return
    if nodes > 1:
        try:
            refuse_on_several(template)
        except InvalidInput as error:
            raise _of_nodes(job.job_id, nodes, str(error)) from None
    recipe = _recipe(job, cut)
    problems = [] if recipe is None else problems_of(template, recipe)
    if recipe is None or not problems:
        return
    fewer = (template.model_copy(update={"nodes": number}) for number in range(nodes - 1, 0, -1))
    most = next((one.nodes for one in fewer if not problems_of(one, recipe)), None)
    instead = "" if most is None else f"; it can be on {most}"
    raise _of_nodes(job.job_id, nodes, f"{problems[0].message}{instead}")


def _recipe(job: SpreadJob, cut: StepCut | None) -> Recipe | None:
    if not is_recipe(job) or not isinstance(job.parameters, dict):
        return None
    try:
        recipe = Recipe.of(job.parameters)
    except (RecipeError, TypeError, ValueError):
        return None  # of another release: its trainer says what it makes of it
    if cut is None or recipe.micro_batch is not None or cut.micro_batch > recipe.batch_size:
        return recipe
    return replace(recipe, micro_batch=cut.micro_batch)


def _of_nodes(job_id: str, nodes: int, why: str) -> InvalidInput:
    machines = "1 machine" if nodes == 1 else f"{nodes} machines"
    return InvalidInput(f"{_PARAM}: {job_id} cannot be on {machines}: {why}", param=_PARAM)


def needs_of(asks: Mapping[str, Any], predicted: Predicted, *, says_memory: bool) -> dict[str, Any]:
    """What each machine has to have: never less than before, of which runs may have made more."""
    by_type = dict(asks.get("gpu_memory_bytes_by_type") or ())
    for name, needed in predicted.by_type:
        by_type[name] = max(needed, by_type.get(name, 0))
    least = asks.get("gpu_memory_bytes_min") or 0
    host = max(asks.get("memory_bytes_min") or 0, predicted.host_bytes)
    return {
        "gpu_memory_bytes_min": least if says_memory else max(least, predicted.gpu_memory_bytes),
        "memory_bytes_min": host,
        **({"gpu_memory_bytes_by_type": [list(one) for one in sorted(by_type.items())]} if by_type else {}),
    }
