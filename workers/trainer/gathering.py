"""The other processes of a job of the recipe, one for each further GPU."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from allpass.recipe.settings import Recipe
from allpass.training.elastic import gathering
from allpass.training.elastic.ranks import Join
from allpass.training.session import Session

COMMAND: tuple[str, ...] = (sys.executable, "-m", "workers.trainer.follower")


def gathered(
    folder: Path, recipe: Recipe, session: Session, gpus: Sequence[str]
) -> contextlib.AbstractContextManager[Join]:
    """As `allpass.training.elastic.gathering`; those of a training whose bytes depend on its one process stay as they
    are."""
    task = replace(recipe, wandb=None, push_to=None)
    told = {"folder": str(folder), "recipe": task.parameters()}
    return gathering.gathered(COMMAND, told, session, gpus, may_change=recipe.draws_by_part)
