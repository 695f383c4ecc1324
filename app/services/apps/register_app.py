"""Register an app: the same content as its newest version gives that version, anything else the next one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from allpass.wire.apps import AppRequest
from app.db.apps.versions import AppContent, AppVersion, add_object, add_version, ensure_app, find_version
from app.db.connection import Connection
from app.errors import InvalidInput, InvariantBroken
from app.ports.clock import IdSource
from app.ports.objects import ObjectStore, content_key
from app.services.apps.check_bundle import BundleChecks

CREATED = 201
FOUND = 200


@dataclass(frozen=True, slots=True)
class Registered:
    """`status`: 201 for a new version, 200 for one that was there."""

    app: AppVersion
    status: int


async def describe_content(
    objects: ObjectStore, bundles: BundleChecks, project_id: str, request: AppRequest
) -> AppContent:
    """What the request is about, once its bundle is stored. Raises InvalidInput when it is not, when no machine could
    unpack it or begin with its entrypoint, or a field is wrong; TooLarge."""
    pip = _check_pip(request.runtime.pip)
    _check_entrypoint(request.entrypoint)
    bundle = await objects.head(content_key(project_id, request.bundle_sha256))
    if bundle is None:
        raise InvalidInput(
            f"bundle_sha256: {request.bundle_sha256} is not stored; ask POST /v1/bundles where to put it, and PUT it "
            "there first",
            param="bundle_sha256",
        )
    await bundles.check(objects, bundle, request.entrypoint)
    return AppContent(
        base_image=request.runtime.base_image,
        pip=pip,
        environment_sha256=environment_sha256(pip),
        bundle_sha256=request.bundle_sha256,
        bundle_size_bytes=bundle.size_bytes,
        entrypoint=request.entrypoint,
    )


async def register_app(
    connection: Connection, ids: IdSource, project_id: str, request: AppRequest, content: AppContent, *, now_ms: int
) -> Registered:
    """The app's newest version, if it has this content; else the next one."""
    await add_object(connection, project_id, content.bundle_sha256, content.bundle_size_bytes, now_ms=now_ms)
    app_id, newest = await ensure_app(
        connection, ids.new("app"), project_id, request.name, request.user_name, now_ms=now_ms
    )
    if newest:
        found = await _version(connection, project_id, app_id, newest)
        if found.content == content:
            return Registered(found, FOUND)
    await add_version(connection, app_id, ids.new("ver"), newest + 1, content, request.user_name, now_ms=now_ms)
    return Registered(await _version(connection, project_id, app_id, newest + 1), CREATED)


def environment_sha256(pip: tuple[str, ...]) -> str:
    """Names an environment: the hash of its requirements, in sorted order."""
    return hashlib.sha256("\n".join(sorted(pip)).encode()).hexdigest()


async def _version(connection: Connection, project_id: str, app_id: str, version: int) -> AppVersion:
    found = await find_version(connection, project_id, app_id, version)
    if found is None:
        raise InvariantBroken(f"version {version} of {app_id} is gone")
    return found


def _check_pip(requirements: list[str]) -> tuple[str, ...]:
    """Requirement specifiers only: an option such as --index-url would change where nodes fetch from."""
    for index, requirement in enumerate(requirements):
        text = requirement.strip()
        if not text or text.startswith("-") or any(ord(character) < ord(" ") for character in text):
            raise InvalidInput(
                f"runtime.pip[{index}]: {requirement!r} is not a requirement; write e.g. 'peft==0.21.2'",
                param=f"runtime.pip[{index}]",
            )
    return tuple(dict.fromkeys(requirement.strip() for requirement in requirements))


def _check_entrypoint(entrypoint: str) -> None:
    if not entrypoint:
        return  # each job brings its command
    outside = any(part in ("", ".", "..") for part in entrypoint.split("/"))
    if outside or "\\" in entrypoint:
        raise InvalidInput(
            f"entrypoint: {entrypoint!r} is not a relative path inside the bundle; write e.g. 'train.py'",
            param="entrypoint",
        )
