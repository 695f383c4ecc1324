"""What two jobs must have in common to be trained as one. Pure."""

from __future__ import annotations

from allpass.recipe.settings import SHARED_BY_A_PAIR, Recipe


def differing(first: Recipe, second: Recipe) -> str | None:
    """The setting that keeps two jobs apart, with both its values; None: they may be merged.

    The tokenizer comes with the model. Label sets may differ: each classifier then has a head of its own. Length of
    training, evaluations, target, patience and seed are each job's own.
    """
    if "dpo" in (first.task, second.task):
        return "task is 'dpo', whose reference is that of one job alone"
    for name in SHARED_BY_A_PAIR:
        one, other = getattr(first, name), getattr(second, name)
        if one != other:
            return f"{name} is {one!r} for one and {other!r} for the other"
    return None
