"""How long a job of the built-in recipe has still to train, by its losses, its history and the throughput table."""

from __future__ import annotations

from functools import lru_cache

from app.core.merging.convergence import fit_curve, steps_left
from app.core.model.merge import Recipe
from app.core.model.snapshot import JobView, RunView
from app.core.remaining import LEAST_MS, predicted_ms, ran_ms, remaining_ms

SEEN_SHARE = 0.5  # of the steps that a curve predicts: so many must have been seen before it is believed over history


def train_ms(job: JobView, run: RunView | None, gpus: int, now_ms: int) -> float | None:
    """Milliseconds of training left on so many GPUs. None: nobody knows a step's time there, or when it ends.

    The loss curve is believed once half of what it predicts has been seen, or where nothing else is known.
    """
    recipe = job.recipe
    step_ms = None if recipe is None else dict(recipe.step_ms).get(gpus)
    own_ms = None if recipe is None else dict(recipe.step_ms).get(job.resources.gpus_min)
    if recipe is None or step_ms is None or own_ms is None:
        return None
    done_ms = ran_ms(job, run, now_ms)
    ends = last_step(recipe.losses, recipe.target_loss)
    seen = recipe.losses[-1][0] if recipe.losses else 0
    total_ms = predicted_ms(job, run, now_ms)
    if ends is not None and (seen >= SEEN_SHARE * ends or total_ms is None):
        left_ms = max(float(LEAST_MS), ends * own_ms - done_ms)
    elif total_ms is not None:
        left_ms = float(remaining_ms(job, run, now_ms))
    else:
        return None
    return left_ms * step_ms / own_ms


@lru_cache(maxsize=4096)  # pure; a fit takes milliseconds, and one curve is asked for in many decisions
def last_step(losses: tuple[tuple[int, float], ...], target_loss: float | None) -> int | None:
    """The step at which a job is expected to end, by its losses so far; None: they do not tell."""
    curve = fit_curve([step for step, _ in losses], [loss for _, loss in losses])
    return None if curve is None else steps_left(curve, 0, target=target_loss)


def sizes_of(recipe: Recipe) -> tuple[int, ...]:
    """The numbers of GPUs for which the time of a step is known."""
    return tuple(sorted(gpus for gpus, _ in recipe.step_ms))
