"""What follows when a GPU's memory runs out in the middle of a step that nobody but the plan has cut: the same step
again, in smaller parts. A prediction may be wrong, and a GPU that is rented already is worth more than a larger one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from allpass.recipe.settings import CUT, Recipe
from allpass.training.session import Session


def left_open(session: Session) -> frozenset[str]:
    """What of a step's cut the owner has not chosen, by the job's template."""
    template = session.template()
    chosen = template.get("training") or {}
    return frozenset(name for name in CUT if template and chosen.get(name) is None)


def smaller(recipe: Recipe, is_open: Collection[str]) -> Recipe | None:
    """With half the rows at once, or as many as divide the batch; then with activations recomputed; None where nothing
    is left to give."""
    rows = recipe.rows_at_once
    if "micro_batch" in is_open and rows > 1:
        fewer = max(count for count in range(1, rows // 2 + 1) if recipe.batch_size % count == 0)
        return replace(recipe, micro_batch=fewer)
    if "checkpointing" in is_open and not recipe.checkpointing:
        return replace(recipe, checkpointing=True)
    return None


def words(recipe: Recipe) -> str:
    """As `4 of 16 rows at once, activations recomputed`."""
    recomputed = ", activations recomputed" if recipe.checkpointing else ""
    return f"{recipe.rows_at_once} of {recipe.batch_size} rows at once{recomputed}"
