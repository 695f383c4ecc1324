"""What a workspace holds besides sandboxes: Apps, images, secrets. All of it survives a restart."""

from __future__ import annotations

import hashlib
import secrets
import string
from typing import Any

from grpclib import GRPCError, Status
from modal_proto import api_pb2

from providers.emulators.estate import Estate

_LETTERS = string.digits + string.ascii_letters
DEFAULT_ENVIRONMENT = "main"
Result = api_pb2.GenericResult


def new_id(prefix: str, length: int = 22, end: str = "") -> str:
    """`sb-` and 22 letters and digits, say: the client tells the kind of a thing by the shape of its id."""
    return f"{prefix}-" + "".join(secrets.choice(_LETTERS) for _ in range(length - len(end))) + end


class ModalWorkspace:
    """Apps by environment and name, images by definition, secrets by id."""

    def __init__(self, estate: Estate) -> None:
        self._estate = estate

    # -- Apps

    def app(self, name: str, environment: str, *, create: bool) -> str:
        """The id of an App. NOT_FOUND when there is none and none is to be made."""
        key = f"{environment or DEFAULT_ENVIRONMENT}/{name}"
        apps: dict[str, str] = self._estate.recall("apps", {})
        if key not in apps:
            if not create:
                raise GRPCError(Status.NOT_FOUND, f"App '{name}' not found in environment '{environment}'")
            apps[key] = new_id("ap")
            self._estate.remember("apps", apps)
        return apps[key]

    def environment_of(self, app_id: str) -> str:
        """The environment in which an App lives. NOT_FOUND for an id that is none."""
        apps: dict[str, str] = self._estate.recall("apps", {})
        for key, known in apps.items():
            if known == app_id:
                return key.partition("/")[0]
        raise GRPCError(Status.NOT_FOUND, f"App {app_id} not found")

    # -- images

    @staticmethod
    def usual_build_ms(definition: bytes, speed: float) -> int:
        """One to three minutes, always the same for one image."""
        drawn = int.from_bytes(hashlib.sha256(definition).digest()[:4]) / 2**32
        return round((60_000 + 120_000 * drawn) * speed)

    def image(self, definition: bytes, build_ms: int, failure: dict[str, Any] | None) -> dict[str, Any]:
        """The image of this definition; building (again) where it has not been built. `failure`: how that will end."""
        images: dict[str, dict[str, Any]] = self._estate.recall("images", {})
        key = hashlib.sha256(definition).hexdigest()
        known = images.get(key)
        if known is None or known["failure"] is not None or failure is not None:
            ready_ms = self._estate.now_ms() + build_ms
            image_id = new_id("im") if known is None else known["id"]
            known = images[key] = {"id": image_id, "ready_ms": ready_ms, "failure": failure}
            self._estate.remember("images", images)
        return known

    def abandon(self, image_id: str) -> None:
        """Nobody waits for its build any more: it is not built, and begins anew when it is asked for."""
        images: dict[str, dict[str, Any]] = self._estate.recall("images", {})
        left = {key: known for key, known in images.items() if known["id"] != image_id}
        self._estate.remember("images", left)

    def image_of(self, image_id: str) -> dict[str, Any]:
        """NOT_FOUND for an id that is none."""
        images: dict[str, dict[str, Any]] = self._estate.recall("images", {})
        for known in images.values():
            if known["id"] == image_id:
                return known
        raise GRPCError(Status.NOT_FOUND, f"Image {image_id} not found")

    def build_result(self, image: dict[str, Any]) -> api_pb2.GenericResult | None:
        """How its build ended; None while it goes on."""
        if self._estate.now_ms() < image["ready_ms"]:
            return None
        if image["failure"] is None:
            return Result(status=Result.GENERIC_STATUS_SUCCESS)
        status = Result.GenericStatus.Value(f"GENERIC_STATUS_{image['failure']['status']}")
        return Result(status=status, exception=image["failure"]["message"])

    # -- secrets

    def keep_secret(self, environment: dict[str, str]) -> str:
        secret_id = new_id("st")
        kept: dict[str, dict[str, str]] = self._estate.recall("secrets", {})
        kept[secret_id] = environment
        self._estate.remember("secrets", kept)
        return secret_id

    def environment(self, secret_ids: list[str], sources: list[Any]) -> dict[str, str]:
        """The variables of these secrets together. NOT_FOUND for an id that is none."""
        kept: dict[str, dict[str, str]] = self._estate.recall("secrets", {})
        told: dict[str, str] = {}
        for secret_id in [*secret_ids, *(source.secret_id for source in sources if source.secret_id)]:
            if secret_id not in kept:
                raise GRPCError(Status.NOT_FOUND, f"Secret {secret_id} not found")
            told |= kept[secret_id]
        for source in sources:
            told |= dict(source.env.contents)
        return told
