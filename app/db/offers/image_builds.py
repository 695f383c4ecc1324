"""Builds of images at providers: one row for each provider and image, which every process reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, delete, exists, func, literal, null, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.foreign import read_as
from app.core.image_builds import expected_ms
from app.core.model.image import ImageState, ImageView
from app.core.model.job import PLACEABLE_JOB_STATES
from app.db import notify
from app.db.arrays import is_one_of
from app.db.tables import app_versions, apps, image_builds, jobs, provider_states
from app.db.transitions import Event, add_job_event

MOST_CHARS = 500  # of an image's name
_MOST_TOLD = 200  # jobs that are told of a build by an event; all are told by the reason that they wait for
row = image_builds.c


@dataclass(frozen=True, slots=True)
class ImageBuild:
    """`ready_ms`: when a build that goes on is expected to be done. `why`, `log`: of one that failed; `log` has the
    builder's last lines. `again_ms`: when that is tried again; None: when somebody asks for it."""

    provider: str
    image: str
    state: ImageState
    since_ms: int
    took_ms: int | None
    ready_ms: int | None
    failures: int
    error_code: str | None
    why: str | None
    log: str | None
    again_ms: int | None

    def view(self, usual_image: str) -> ImageView:
        """As a decision sees it: the usual image has no name."""
        image = "" if self.image == usual_image else self.image
        told = self.why or "", self.again_ms
        return ImageView(self.provider, image, self.image, self.state, self.since_ms, self.ready_ms, *told)


@dataclass(frozen=True, slots=True)
class BuildFailure:
    """How a build failed: `why` in a sentence with what to do, `log` in the builder's own last lines."""

    code: str
    why: str
    log: str
    failures: int
    again_ms: int | None


async def set_builders(connection: AsyncConnection, names: Collection[str]) -> None:
    """These of the configured providers build images, and no others."""
    builds = is_one_of(provider_states.c.provider, names)
    changed = update(provider_states).where(provider_states.c.builds_images.is_distinct_from(builds))
    await connection.execute(changed.values(builds_images=builds))


async def builders(connection: AsyncConnection) -> list[str]:
    """Configured providers that build images, by name."""
    state = provider_states.c
    found = select(state.provider).where(state.configured, state.builds_images).order_by(state.provider)
    return list((await connection.execute(found)).scalars())


async def builds_now(
    connection: AsyncConnection, *, image: str | None = None, project_id: str | None = None, usual_image: str = ""
) -> list[ImageBuild]:
    """By provider and name; `image`: only of this one; `project_id`: of the usual one and of those that this project
    uses."""
    wanted = select(image_builds).order_by(row.provider, row.image)
    if image is not None:
        wanted = wanted.where(row.image == image)
    if project_id is not None:
        wanted = wanted.where(or_(row.image == usual_image, _used_by(project_id)))
    found = (await connection.execute(wanted)).all()
    expected = await _expected(connection) if found else {}
    return [_read(one, expected) for one in found]


async def want_image(connection: AsyncConnection, provider: str, image: str, *, now_ms: int) -> bool:
    """Have it built, unless it is known already. True when that is news."""
    fresh = insert(image_builds).values(provider=provider, image=image, state=ImageState.WANTED, since_ms=now_ms)
    made = fresh.on_conflict_do_nothing(index_elements=[row.provider, row.image]).returning(row.provider)
    return (await connection.execute(made)).first() is not None


async def want_again(connection: AsyncConnection, provider: str, image: str, *, now_ms: int) -> None:
    """Somebody asks for it: one that failed is built again at once. One that is ready, or being built, stays so."""
    await want_image(connection, provider, image, now_ms=now_ms)
    asked = update(image_builds).where(_is(provider, image), row.state == ImageState.FAILED)
    await connection.execute(asked.values(state=ImageState.WANTED, since_ms=now_ms, failures=0, again_ms=None))
    await notify.control(connection)


async def not_ready_after_all(connection: AsyncConnection, provider: str, image: str, *, now_ms: int) -> None:
    """The provider has no copy, or no longer: it is built again."""
    await want_image(connection, provider, image, now_ms=now_ms)
    lost = update(image_builds).where(_is(provider, image), row.state == ImageState.READY)
    await connection.execute(lost.values(state=ImageState.WANTED, since_ms=now_ms))
    await notify.control(connection)


async def to_build(connection: AsyncConnection, providers: Collection[str], *, now_ms: int) -> list[ImageBuild]:
    """What is to be built at these providers now, or was being built by a process that is gone: first come first."""
    due = (row.state == ImageState.FAILED) & (row.again_ms <= now_ms)
    open_ = _is_open()
    found = await connection.execute(
        select(image_builds)
        .where(is_one_of(row.provider, providers), or_(open_, due))
        .order_by(row.since_ms, row.provider, row.image)
    )
    return [_read(one, {}) for one in found]


async def begin(connection: AsyncConnection, provider: str, image: str, *, now_ms: int) -> int:
    """It is being built from now on, or was already; how long that takes as a rule."""
    begun = update(image_builds).where(_is(provider, image), row.state != ImageState.BUILDING)
    await connection.execute(begun.values(state=ImageState.BUILDING, since_ms=now_ms))
    await notify.control(connection)
    return (await _expected(connection)).get(provider, expected_ms(()))


async def succeed(connection: AsyncConnection, provider: str, image: str, *, now_ms: int) -> None:
    """Machines with this image can be had."""
    took = func.greatest(0, literal(now_ms) - row.since_ms)
    done = update(image_builds).where(_is(provider, image))
    nothing_wrong: dict[str, Any] = {"failures": 0, "error_code": None, "why": None, "log": None, "again_ms": None}
    await connection.execute(done.values(state=ImageState.READY, took_ms=took, since_ms=now_ms, **nothing_wrong))
    await notify.control(connection)


async def fail(connection: AsyncConnection, provider: str, image: str, failure: BuildFailure, *, now_ms: int) -> None:
    """No machine with this image can be had there."""
    failed = update(image_builds).where(_is(provider, image))
    told = {"error_code": failure.code, "why": failure.why, "log": failure.log, "again_ms": failure.again_ms}
    await connection.execute(failed.values(state=ImageState.FAILED, since_ms=now_ms, failures=failure.failures, **told))
    await notify.control(connection)


async def add_events_of_jobs_with(
    connection: AsyncConnection, image: str, usual_image: str, event: Event, *, now_ms: int
) -> None:
    """Note it in the story of jobs that wait for a place and run on this image."""
    runs_on = func.coalesce(jobs.c.resources["base_image"].astext, app_versions.c.base_image, literal(usual_image))
    waiting = await connection.execute(
        select(jobs.c.id)
        .join(app_versions, app_versions.c.id == jobs.c.app_version_id)
        .where(jobs.c.state.in_(PLACEABLE_JOB_STATES), runs_on == image)
        .order_by(jobs.c.id)
        .limit(_MOST_TOLD)
    )
    for job_id in list(waiting.scalars()):
        await add_job_event(connection, job_id, event, now_ms=now_ms)


async def delete_builds(connection: AsyncConnection, *, before_ms: int) -> None:
    """Delete what was settled before that moment: should it be used again, it is asked for again."""
    settled = row.state.in_((ImageState.READY, ImageState.FAILED)) & (row.since_ms < before_ms)
    await connection.execute(delete(image_builds).where(settled))


def _is_open() -> ColumnElement[bool]:
    """Neither ready nor failed: a word of a newer release counts as one that is still to be built."""
    return row.state.not_in((ImageState.READY, ImageState.FAILED))


def _is(provider: str, image: str) -> ColumnElement[bool]:
    return (row.provider == provider) & (row.image == image)


def _used_by(project_id: str) -> ColumnElement[bool]:
    versions = (
        exists()
        .where(app_versions.c.base_image == row.image, apps.c.project_id == project_id)
        .where(app_versions.c.app_id == apps.c.id)
    )
    named = exists().where(jobs.c.project_id == project_id, jobs.c.resources["base_image"].astext == row.image)
    return or_(versions, named)


async def _expected(connection: AsyncConnection) -> Mapping[str, int]:
    """How long builds take at each provider that has done some."""
    past: dict[str, list[int]] = defaultdict(list)
    done: Iterable[Any] = await connection.execute(
        select(row.provider, row.took_ms).where(row.took_ms.is_not(null())).order_by(row.since_ms.desc()).limit(100)
    )
    for provider, took_ms in done:
        past[provider].append(took_ms)
    return {provider: expected_ms(took) for provider, took in past.items()}


def _read(one: Row[Any], expected: Mapping[str, int]) -> ImageBuild:
    state = read_as(ImageState, one.state)
    usual_ms = expected.get(one.provider, expected_ms(()))
    return ImageBuild(
        provider=one.provider,
        image=one.image,
        state=state,
        since_ms=one.since_ms,
        took_ms=one.took_ms,
        ready_ms=one.since_ms + usual_ms if state is ImageState.BUILDING else None,
        failures=one.failures,
        error_code=one.error_code,
        why=one.why,
        log=one.log,
        again_ms=one.again_ms,
    )
