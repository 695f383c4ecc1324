"""What decides with whom a job may be merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.merge import Recipe
from app.core.model.snapshot import JobView, RunView
from app.db.merging.merges import split_pairs, turns_come
from app.db.merging.recipes import recipe_of, recipes_of
from app.db.tables import jobs, merges
from app.db.unreadable import RowReading


@dataclass(frozen=True, slots=True)
class Mergeable:
    """See `JobView`."""

    recipe: Recipe | None = None
    split_from: frozenset[str] = frozenset()
    turn_has_come: bool = False

    def added_to(self, job: JobView) -> JobView:
        if self == NOT_MERGED:
            return job
        return replace(job, recipe=self.recipe, split_from=self.split_from, turn_has_come=self.turn_has_come)


NOT_MERGED = Mergeable()


async def mergeable_jobs(
    connection: AsyncConnection, rows: Sequence[Row[Any]], held: Mapping[str, RunView], reading: RowReading
) -> dict[str, Mergeable]:
    """Of rows that can be read. Without them, and without what is known of their tasks, jobs are not merged."""
    sound = [row for row in rows if reading.of(jobs.name, row.id, partial(_has_sound_recipe, row))]
    recipes: Mapping[str, Recipe] = await reading.aside(
        connection, "profiles", lambda: recipes_of(connection, sound, held), {}
    )
    if not recipes:
        return {}
    split: Mapping[str, frozenset[str]] = await reading.aside(
        connection, merges.name, lambda: split_pairs(connection, list(recipes)), {}
    )
    up_next: frozenset[str] = await reading.aside(
        connection, merges.name, lambda: turns_come(connection, list(recipes)), frozenset()
    )
    return {row.id: Mergeable(recipes.get(row.id), split.get(row.id, frozenset()), row.id in up_next) for row in rows}


def _has_sound_recipe(row: Row[Any]) -> bool:
    """Raises for parameters or a template that nobody can read."""
    recipe_of(row)
    return True
