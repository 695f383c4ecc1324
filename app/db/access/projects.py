"""Projects: the tenants, and what each has settled for itself."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Row, exists, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.foreign import read_as
from app.core.model.job import TERMINAL_JOB_STATES, PriorityClass
from app.db import notify
from app.db.tables import api_keys, jobs, projects
from app.ports.clock import Clock, IdSource


@dataclass(frozen=True, slots=True)
class ProjectRow:
    """`ahead`: machines are rented ahead, and kept idle, for jobs of the project that are still to come.
    `default_class`: of jobs that name none."""

    project_id: str
    name: str
    created_ms: int
    ahead: bool
    archived_ms: int | None = None
    default_class: PriorityClass = PriorityClass.GUARANTEED


# As SQL, where a statement has the row. What is no class that is known here is guaranteed: nobody leaves by mistake.
PROJECT_CLASS = (
    f"CASE projects.default_class WHEN '{PriorityClass.SPOT}' THEN '{PriorityClass.SPOT}' "
    f"ELSE '{PriorityClass.GUARANTEED}' END"
)


async def ensure_project(connection: AsyncConnection, name: str, *, clock: Clock, ids: IdSource) -> str:
    """The id of the project of this name, made if there is none yet."""
    new = insert(projects).values(id=ids.new("proj"), name=name, created_ms=clock.now_ms())
    await connection.execute(new.on_conflict_do_nothing(index_elements=["name"]))
    found: str = (await connection.execute(select(projects.c.id).where(projects.c.name == name))).scalar_one()
    return found


async def project_of_owners(connection: AsyncConnection) -> str | None:
    """The project that has a key with scope `owner`, revoked or not; None where there is no such key yet."""
    held = api_keys.c.scopes.contains(["owner"]) & projects.c.archived_ms.is_(None)
    found = select(projects.c.id).join(api_keys, api_keys.c.project_id == projects.c.id).where(held)
    project_id: str | None = (await connection.execute(found.order_by(projects.c.id).limit(1))).scalar_one_or_none()
    return project_id


async def add_project(connection: AsyncConnection, project_id: str, name: str, *, now_ms: int) -> ProjectRow | None:
    """A new project; None when one has this name already, also when it is archived."""
    new = insert(projects).values(id=project_id, name=name, created_ms=now_ms)
    unless_taken = new.on_conflict_do_nothing(index_elements=["name"]).returning(projects)
    row = (await connection.execute(unless_taken)).one_or_none()
    return None if row is None else _row(row)


async def list_projects(
    connection: AsyncConnection, *, name: str | None, before: str | None, limit: int
) -> list[ProjectRow]:
    """All projects of the installation, or the one of this name; newest first, archived ones too."""
    statement = select(projects).order_by(projects.c.id.desc()).limit(limit)
    if name is not None:
        statement = statement.where(projects.c.name == name)
    if before is not None:
        statement = statement.where(projects.c.id < before)
    return [_row(row) for row in await connection.execute(statement)]


async def project_names(connection: AsyncConnection) -> list[tuple[str, str]]:
    """Id and name of each project that is not archived."""
    row = projects.c
    rows = await connection.execute(select(row.id, row.name).where(row.archived_ms.is_(None)).order_by(row.id))
    return [(row.id, row.name) for row in rows]


async def lock_project(connection: AsyncConnection, project_id: str) -> ProjectRow | None:
    """The project, into which no job is submitted until this transaction ends."""
    found = await connection.execute(select(projects).where(projects.c.id == project_id).with_for_update())
    row = found.one_or_none()
    return None if row is None else _row(row)


async def has_unfinished_jobs(connection: AsyncConnection, project_id: str) -> bool:
    """Whether a job of the project is not over, paused ones included."""
    unfinished = exists().where(jobs.c.project_id == project_id, jobs.c.state.not_in(TERMINAL_JOB_STATES))
    answer: bool = (await connection.execute(select(unfinished))).scalar_one()
    return answer


async def owns_installation(connection: AsyncConnection, project_id: str) -> bool:
    """Whether a key of the project with scope `owner` is not revoked."""
    owner = exists().where(
        api_keys.c.project_id == project_id, api_keys.c.revoked_ms.is_(None), api_keys.c.scopes.contains(["owner"])
    )
    answer: bool = (await connection.execute(select(owner))).scalar_one()
    return answer


async def archive_project(connection: AsyncConnection, project_id: str, archived_ms: int | None) -> ProjectRow:
    """Archive a locked project, or bring it back (None). Machines that are kept for its jobs to come are given back."""
    changed = update(projects).where(projects.c.id == project_id).values(archived_ms=archived_ms).returning(projects)
    row = (await connection.execute(changed)).one()
    await notify.control(connection)
    return _row(row)


async def is_archived(connection: AsyncConnection, project_id: str) -> bool:
    """Whether its keys are refused."""
    there = exists().where(projects.c.id == project_id, projects.c.archived_ms.is_not(None))
    answer: bool = (await connection.execute(select(there))).scalar_one()
    return answer


async def find_project(connection: AsyncConnection, project_id: str) -> ProjectRow:
    """The project, which is there: keys refer to it."""
    return _row((await connection.execute(select(projects).where(projects.c.id == project_id))).one())


async def change_project(connection: AsyncConnection, project_id: str, *, ahead: bool) -> ProjectRow:
    """Settle whether machines are kept for its jobs to come, and have it decided on at once."""
    changed = update(projects).where(projects.c.id == project_id).values(ahead=ahead).returning(projects)
    row = (await connection.execute(changed)).one()
    await notify.control(connection)
    return _row(row)


async def without_ahead(connection: AsyncConnection) -> tuple[str, ...]:
    """The projects for whose jobs to come nothing is rented or kept, by id."""
    neither = or_(~projects.c.ahead, projects.c.archived_ms.is_not(None))
    found = await connection.execute(select(projects.c.id).where(neither).order_by(projects.c.id))
    return tuple(found.scalars())


def _row(row: Row[tuple[object, ...]]) -> ProjectRow:
    default_class = read_as(PriorityClass, row.default_class)
    return ProjectRow(row.id, row.name, row.created_ms, row.ahead, row.archived_ms, default_class)


async def set_default_class(connection: AsyncConnection, project_id: str, default_class: PriorityClass) -> ProjectRow:
    """Of jobs of a locked project that are submitted from now on and name none."""
    changed = update(projects).where(projects.c.id == project_id).values(default_class=default_class)
    return _row((await connection.execute(changed.returning(projects))).one())
