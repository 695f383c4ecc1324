"""The leader keeps the object store clean, project by project."""

from __future__ import annotations

from app.control.context import ControlContext
from app.control.each import each_by_itself
from app.core.model.health import Chore
from app.ports.objects import ObjectStore
from app.services.checkpoints.collect_garbage import (
    adopt_strays,
    collect_garbage,
    forget_old_files,
    projects_with_content,
)


async def collect(context: ControlContext, objects: ObjectStore) -> int:
    """Delete what nothing refers to; how many pieces were condemned. What is condemned and not deleted now is deleted
    in a later round."""

    async def forget(_what: str) -> None:
        await forget_old_files(context.database, context.clock)

    async def one(project_id: str) -> int:
        return await collect_garbage(context.database, objects, context.clock, project_id)

    await each_by_itself(context, Chore.GARBAGE, ["files of old checkpoints"], forget)
    return sum(await each_by_itself(context, Chore.GARBAGE, await projects_with_content(context.database), one))


async def adopt(context: ControlContext, objects: ObjectStore) -> int:
    """Note what is stored and was never told of; how much that was."""

    async def one(project_id: str) -> int:
        return await adopt_strays(context.database, objects, context.clock, project_id)

    return sum(await each_by_itself(context, Chore.STRAYS, await projects_with_content(context.database), one))
