"""Say where a code bundle goes. What is stored already is not sent again."""

from __future__ import annotations

from app.errors import InvalidInput, TooLarge
from app.ports.objects import ObjectStore, content_key
from app.settings import Settings


async def offer_bundle_upload(
    objects: ObjectStore, settings: Settings, project_id: str, *, sha256: str, size_bytes: int, expires_ms: int
) -> str | None:
    """A signed URL to PUT exactly these bytes to, or None when they are there. Raises TooLarge and InvalidInput."""
    if size_bytes > settings.max_bundle_bytes:
        raise TooLarge(
            f"size_bytes: {size_bytes} is more than {settings.max_bundle_bytes}; leave data and models out of the "
            "bundle and fetch them from the script",
            param="size_bytes",
        )
    key = content_key(project_id, sha256)
    stored = await objects.head(key)
    if stored is None:
        return objects.sign_put(key, sha256=sha256, size_bytes=size_bytes, expires_ms=expires_ms)
    if stored.size_bytes != size_bytes:
        raise InvalidInput(
            f"size_bytes: {size_bytes}, but the content with this sha256 has {stored.size_bytes}", param="size_bytes"
        )
    return None
