"""Make, change, archive and restore projects, on behalf of an owner of the installation."""

from __future__ import annotations

from dataclasses import dataclass

from app.core.model.ids import is_id
from app.core.model.job import PriorityClass
from app.db.access.projects import (
    ProjectRow,
    add_project,
    archive_project,
    has_unfinished_jobs,
    lock_project,
    owns_installation,
    set_default_class,
)
from app.db.connection import Connection
from app.db.reservations.reservations import close_all_of_project
from app.errors import Conflict, NotFound
from app.ports.clock import Clock, IdSource
from app.services.access.authenticate import Caller
from app.services.access.issue_key import ADMIN, IssuedKey, issue_key

FIRST_KEY = "first"


@dataclass(frozen=True, slots=True)
class MadeProject:
    """`key`: the first of the project."""

    project: ProjectRow
    key: IssuedKey


async def create_project(
    connection: Connection, caller: Caller, name: str, *, clock: Clock, ids: IdSource
) -> MadeProject:
    """A project with a key that can manage it. Raises Conflict when the name is taken."""
    made = await add_project(connection, ids.new("proj"), name, now_ms=clock.now_ms())
    if made is None:
        raise Conflict(
            f"name: there is a project {name!r} already (archived ones keep their name); choose another", param="name"
        )
    key = await issue_key(
        connection,
        caller,
        FIRST_KEY,
        (ADMIN,),
        expires_ms=None,
        clock=clock,
        ids=ids,
        project_id=made.project_id,
    )
    return MadeProject(made, key)


async def close_project(connection: Connection, project_id: str, *, now_ms: int) -> ProjectRow:
    """Archive the project: its keys are refused, and nothing can be submitted to it. Again changes nothing.

    Raises NotFound, and Conflict while one of its jobs is not over, and for the project of the owners.
    """
    project = await held_project(connection, project_id)
    if project.archived_ms is not None:
        return project
    if await owns_installation(connection, project_id):
        raise Conflict(
            f"{project.name} holds the keys of the installation's owners: archived, nobody could manage projects; "
            "archive the others, or revoke its keys one by one"
        )
    if await has_unfinished_jobs(connection, project_id):
        raise Conflict(
            f"{project.name} has jobs that are not over (paused ones count): cancel them or let them end, with a key "
            "of the project, then archive it"
        )
    await close_all_of_project(connection, project_id, "its project was archived", now_ms=now_ms)
    return await archive_project(connection, project_id, now_ms)


async def reopen_project(connection: Connection, project_id: str) -> ProjectRow:
    """Restore an archived project with the keys it had; any other stays as it is. Raises NotFound."""
    project = await held_project(connection, project_id)
    return project if project.archived_ms is None else await archive_project(connection, project_id, None)


async def settle_default_class(connection: Connection, project_id: str, default_class: PriorityClass) -> ProjectRow:
    """The class of its jobs to come that name none. Raises NotFound."""
    await held_project(connection, project_id)
    return await set_default_class(connection, project_id, default_class)


async def held_project(connection: Connection, project_id: str) -> ProjectRow:
    """The project, which stays as it is until this transaction ends. Raises NotFound."""
    found = await lock_project(connection, project_id) if is_id(project_id, "proj") else None
    if found is None:
        raise NotFound(f"there is no project {project_id!r} (an id looks like proj_..., see `allpass project list`)")
    return found
