"""Apps and their versions. A version never changes once it is written."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Select, desc, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import app_versions, apps, objects


@dataclass(frozen=True, slots=True)
class AppContent:
    """What makes a version what it is."""

    base_image: str | None
    pip: tuple[str, ...]
    environment_sha256: str
    bundle_sha256: str
    bundle_size_bytes: int
    entrypoint: str


@dataclass(frozen=True, slots=True)
class AppVersion:
    app_id: str
    name: str
    user_name: str
    version: int
    version_id: str
    content: AppContent
    created_ms: int


async def ensure_app(
    connection: AsyncConnection, app_id: str, project_id: str, name: str, user_name: str, *, now_ms: int
) -> tuple[str, int]:
    """Lock the project's app of this name, made with `app_id` if there is none: its id and newest version (0: none)."""
    new = insert(apps).values(
        id=app_id, project_id=project_id, name=name, user_name=user_name, version=0, created_ms=now_ms
    )
    await connection.execute(new.on_conflict_do_nothing(index_elements=["project_id", "name"]))
    row = (
        await connection.execute(
            select(apps.c.id, apps.c.version)
            .where(apps.c.project_id == project_id, apps.c.name == name)
            .with_for_update()
        )
    ).one()
    return row.id, row.version


async def add_version(
    connection: AsyncConnection,
    app_id: str,
    version_id: str,
    version: int,
    content: AppContent,
    user_name: str,
    *,
    now_ms: int,
) -> None:
    """Append a version to a locked app; it is the newest from now on."""
    await connection.execute(
        app_versions.insert().values(
            id=version_id,
            app_id=app_id,
            version=version,
            base_image=content.base_image,
            pip=list(content.pip),
            environment_sha256=content.environment_sha256,
            bundle_sha256=content.bundle_sha256,
            bundle_size_bytes=content.bundle_size_bytes,
            entrypoint=content.entrypoint,
            created_ms=now_ms,
        )
    )
    await connection.execute(update(apps).where(apps.c.id == app_id).values(version=version, user_name=user_name))


async def find_version(
    connection: AsyncConnection, project_id: str, app_id: str, version: int | None = None
) -> AppVersion | None:
    """One version of an app of this project; None for `version` means the newest."""
    wanted = apps.c.version if version is None else version
    statement = _versions().where(
        apps.c.project_id == project_id, apps.c.id == app_id, app_versions.c.version == wanted
    )
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _app_version(row)


async def list_apps(
    connection: AsyncConnection, project_id: str, *, before: str | None, limit: int
) -> list[AppVersion]:
    """The newest version of each app, newest app first, of those with ids below `before`."""
    statement = _versions().where(apps.c.project_id == project_id, app_versions.c.version == apps.c.version)
    if before is not None:
        statement = statement.where(apps.c.id < before)
    rows = await connection.execute(statement.order_by(desc(apps.c.id)).limit(limit))
    return [_app_version(row) for row in rows]


async def add_object(
    connection: AsyncConnection, project_id: str, sha256: str, size_bytes: int, *, now_ms: int
) -> None:
    """Note that the object store holds this content, verified."""
    new = insert(objects).values(project_id=project_id, sha256=sha256, size_bytes=size_bytes, verified_ms=now_ms)
    await connection.execute(new.on_conflict_do_nothing())


def _versions() -> Select[tuple[object, ...]]:
    return select(
        apps.c.id.label("app_id"),
        apps.c.name,
        apps.c.user_name,
        app_versions.c.version,
        app_versions.c.id.label("version_id"),
        app_versions.c.base_image,
        app_versions.c.pip,
        app_versions.c.environment_sha256,
        app_versions.c.bundle_sha256,
        app_versions.c.bundle_size_bytes,
        app_versions.c.entrypoint,
        app_versions.c.created_ms,
    ).join(app_versions, app_versions.c.app_id == apps.c.id)


def _app_version(row: object) -> AppVersion:
    fields = row._mapping  # type: ignore[attr-defined]  # every Row has it
    content = AppContent(
        fields["base_image"],
        tuple(fields["pip"]),
        fields["environment_sha256"],
        fields["bundle_sha256"],
        fields["bundle_size_bytes"],
        fields["entrypoint"],
    )
    return AppVersion(
        fields["app_id"],
        fields["name"],
        fields["user_name"],
        fields["version"],
        fields["version_id"],
        content,
        fields["created_ms"],
    )
