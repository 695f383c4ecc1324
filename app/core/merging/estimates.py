"""How long a job of the built-in recipe has still to train, by its losses, its history and the throughput table."""

from __future__ import annotations

from dataclasses import dataclass

from app.core.merging.bounds import Bounds, around, by_history, foretold_end
from app.core.model.merge import Recipe
from app.core.model.snapshot import JobView, RunView
from app.core.remaining import LEAST_MS, predicted_ms, ran_ms

SEEN_SHARE = 0.5  # of the steps that a curve predicts: so many must have been seen before it is believed over history


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """Milliseconds of training that are left: `likely`, and between which bounds."""

    likely: float
    span: Bounds

    def times(self, factor: float) -> TimeLeft:
        """On other GPUs."""
        return TimeLeft(self.likely * factor, self.span.times(factor))

    def later(self, by_ms: float) -> TimeLeft:
        """With a likely end that is so much later."""
        return TimeLeft(self.likely + by_ms, Bounds(self.span.least, max(self.span.most, self.likely + by_ms)))


def train_ms(job: JobView, run: RunView | None, gpus: int, now_ms: int) -> float | None:
    """Milliseconds of training left on so many GPUs. None: nobody knows a step's time there, or when it ends."""
    left = train_left(job, run, gpus, now_ms)
    return None if left is None else left.likely


def train_left(job: JobView, run: RunView | None, gpus: int, now_ms: int) -> TimeLeft | None:
    """As `train_ms`, with its bounds.

    The loss curve is believed once half of what it predicts has been seen, or where nothing else is known.
    """
    recipe = job.recipe
    step_ms = None if recipe is None else dict(recipe.step_ms).get(gpus)
    own_ms = None if recipe is None else dict(recipe.step_ms).get(job.resources.gpus_min)
    if recipe is None or step_ms is None or own_ms is None:
        return None
    ends = last_step(recipe.losses, recipe.target_loss)
    seen = recipe.losses[-1][0] if recipe.losses else 0
    total_ms = predicted_ms(job, run, now_ms)
    if ends is not None and (seen >= SEEN_SHARE * ends or total_ms is None):
        likely_ms, whole = ends * own_ms, around(ends, seen).within(_most_steps(job, seen)).times(own_ms)
    elif total_ms is not None:
        likely_ms, whole = float(total_ms), by_history(total_ms)
    else:
        return None
    done_ms = ran_ms(job, run, now_ms)
    likely_ms, left = max(float(LEAST_MS), likely_ms - done_ms), whole.less(done_ms)
    least_ms, most_ms = max(float(LEAST_MS), left.least), max(float(LEAST_MS), left.most)
    bounds = Bounds(min(least_ms, likely_ms), max(most_ms, likely_ms))
    return TimeLeft(likely_ms, bounds).times(step_ms / own_ms)


def last_step(losses: tuple[tuple[int, float], ...], target_loss: float | None) -> int | None:
    """The step at which a job is expected to end, by its losses so far; None: they do not tell."""
    return foretold_end(losses, target_loss)


def sizes_of(recipe: Recipe) -> tuple[int, ...]:
    """The numbers of GPUs for which the time of a step is known."""
    return tuple(sorted(gpus for gpus, _ in recipe.step_ms))


def _most_steps(job: JobView, seen: int) -> int | None:
    """Beyond which it does not train, by its own word: one that is passed counts for nothing."""
    return job.total_steps if job.total_steps is not None and job.total_steps >= seen else None
