"""Which runs look at their own task before their first step, so that jobs that come later may go on from them."""

from __future__ import annotations

from app.core.merging.partners import kind_of
from app.core.model.snapshot import JobView
from app.core.progress import has_progress


def profiles_itself(job: JobView, least_ms: float) -> bool:
    """Whether a run that trains this job alone, with merging on, begins with a look: at a task that nobody knows, in a
    job that has all its steps to come and takes so long or longer (`AllpassRules.merge_own_least_ms`)."""
    recipe = job.recipe
    if recipe is None or recipe.pull or recipe.profile_tries or kind_of(job) is None or has_progress(job):
        return False
    return job.total_run_ms is None or job.total_run_ms >= least_ms


def task_of(job: JobView) -> tuple[str, str] | None:
    """Equal in jobs that one profile describes; None: nobody else's is known to be this one's."""
    recipe = job.recipe
    return None if recipe is None or not recipe.profile_key else (job.project_id, recipe.profile_key)
