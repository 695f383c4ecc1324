"""Have an image built ahead at the providers that build images before they run them."""

from __future__ import annotations

from app.db.connection import Connection
from app.db.offers.image_builds import ImageBuild, builders, builds_now, want_again
from app.errors import InvalidInput


async def prepare_image(connection: Connection, image: str, provider: str | None, *, now_ms: int) -> list[ImageBuild]:
    """How far it is at each of them; nothing where no provider builds images. One that failed is tried again."""
    names = await builders(connection)
    if provider is not None and provider not in names:
        known = ", ".join(names) or "none of those that are configured"
        raise InvalidInput(
            f"{provider!r} builds no images ahead, or is not configured; those that do: {known}", param="provider"
        )
    for name in names if provider is None else [provider]:
        await want_again(connection, name, image, now_ms=now_ms)
    return [
        build for build in await builds_now(connection, image=image) if build.provider == (provider or build.provider)
    ]
