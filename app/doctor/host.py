"""What this machine itself has to have: a database that is up to date, room on the disk; and what may be rented."""

from __future__ import annotations

import shutil
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from app.core.images.reference import parse_image
from app.core.limits import FIRST_TIME, Limits
from app.core.model.finding import Finding, doubtful, good, wrong
from app.core.reach import is_public
from app.db.capacity import read_room
from app.db.engine import Database, make_engine
from app.db.money.limits import read_limits
from app.db.readiness import reach_database
from app.db.schema import check_schema
from app.doctor.situation import SetUpKind, Situation
from app.errors import AllpassError
from app.settings import Settings

_DATABASE_S = 10.0
_GIB = 2**30
_LEAST_BYTES, _LITTLE_BYTES = _GIB, 10 * _GIB
_SPARE_CONNECTIONS = 5
_NEVER_PUBLISHED = "docker.io/allpass/node"


async def look_at_database(situation: Situation) -> list[Finding]:
    """Reachable, of this release, with connections left."""
    if situation.kind is SetUpKind.PLANNED:
        return [good("database", "`allpass up` makes its own")]
    settings = situation.settings
    url = settings.database_url.get_secret_value()
    try:
        await reach_database(url, timeout_s=_DATABASE_S)
        standing = await check_schema(url, timeout_s=_DATABASE_S, may_migrate=settings.migrate_on_start)
    except AllpassError as error:
        fix = "python -m app.main migrate, if the database is the right one"
        return [wrong("database", f"database_{error.error_code}", error.message, fix)]
    room, needed = await read_room(url, timeout_s=_DATABASE_S), settings.database_pool_size + _SPARE_CONNECTIONS
    free = room.free_connections
    told = f"PostgreSQL {room.version}, revision {standing.revision or 'none yet'}, {free} connections free"
    if situation.kind is SetUpKind.SERVICE and free < needed:
        fix = "raise max_connections of PostgreSQL, or lower ALLPASS_DATABASE_POOL_SIZE"
        return [doubtful("database", "database_few_connections", f"{told}; a process wants {needed}", fix)]
    return [good("database", told)]


async def look_at_limits(situation: Situation) -> list[Finding]:
    """What stands between a mistake and a large bill."""
    limits = FIRST_TIME
    if situation.kind is not SetUpKind.PLANNED:
        settings = situation.settings
        engine = make_engine(settings.database_url.get_secret_value(), pool_size=1, timeout_s=_DATABASE_S)
        database = Database(engine)
        try:
            async with database.transaction() as connection:
                limits = await read_limits(connection)
        except (AllpassError, SQLAlchemyError):
            fix = "mend the database first"
            return [doubtful("limits", "limits_not_known", "not known: the database does not tell them", fix)]
        finally:
            await database.close()
    return [_judge_limits(limits)]


def _judge_limits(limits: Limits) -> Finding:
    machines = "any number of" if limits.machines is None else f"at most {limits.machines}"
    day = "any sum" if limits.per_day is None else f"at most {limits.per_day}"
    told = f"{machines} machines at once, {day} a day"
    if limits == FIRST_TIME:
        return good("limits", f"{told} (as for a first time)")
    if limits.machines is None or limits.per_day is None:
        fix = "allpass limits set --machines 2 --per-day 10"
        return doubtful("limits", "no_limit", told, fix)
    return good("limits", told)


async def look_at_disk(situation: Situation) -> list[Finding]:
    """Room for what is stored here: the stack's folder, or that of a directory store."""
    settings = situation.settings
    stack = situation.kind is not SetUpKind.SERVICE
    if not stack and settings.objects_store != "directory":
        return [good("disk", "objects are stored elsewhere")]
    folder = situation.layout.root if stack else settings.objects_dir.resolve()
    free = shutil.disk_usage(_existing(folder)).free
    told = f"{free / _GIB:.0f} GiB free for {folder}"
    if free < _LEAST_BYTES:
        return [wrong("disk", "disk_full", told, "free some space, or choose another folder or an S3 store")]
    if free < _LITTLE_BYTES:
        return [doubtful("disk", "disk_little", told, "checkpoints of large models take more: free some, or use S3")]
    return [good("disk", told)]


async def look_at_image(settings: Settings, companies: list[str]) -> list[Finding]:
    """What its name tells. What is in it is asked of its registry by `allpass images check`."""
    image = settings.node_image
    if not any(one != "lambda" for one in companies):
        return [good("image", "no container is rented")]
    reference = parse_image(image)
    if reference.name == _NEVER_PUBLISHED:
        told = f"ALLPASS_NODE_IMAGE is {image}, which nobody has published"
        fix = "leave it out, or build and push one under a name of yours (allpass images build, allpass images push)"
        return [wrong("image", "image_not_published", told, fix)]
    if not is_public(f"https://{reference.registry}") and not settings.private_addresses:
        fix = "push it to a registry that the internet reaches"
        return [wrong("image", "image_registry_private", f"{image}: machines cannot pull from there", fix)]
    return [good("image", f"{image}; what its registry has of it: allpass images check")]


def _existing(folder: Path) -> Path:
    """It, or what it will be made in."""
    return next(one for one in (folder, *folder.parents) if one.exists())
