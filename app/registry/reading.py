"""Manifests and configurations as registries give them: anything may be missing, or be something else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.core.images.facts import ImageFacts
from app.core.images.reference import ImageReference

_MOST_STEPS, _LONGEST_STEP = 1_000, 8_192


def platforms_of(index: Mapping[str, Any]) -> dict[str, str]:
    """Digests by platform (`linux/amd64`), the first of each. Attestations, which are of no platform, are left out."""
    found: dict[str, str] = {}
    for one in index.get("manifests", ()):
        platform = one.get("platform") if isinstance(one, dict) else None
        if not isinstance(platform, dict) or not isinstance(one.get("digest"), str):
            continue
        name = f"{platform.get('os')}/{platform.get('architecture')}"
        if "unknown" not in name:
            found.setdefault(name, one["digest"])
    return found


def facts_of(
    image: ImageReference,
    digest: str,
    manifest: Mapping[str, Any],
    config: Mapping[str, Any],
    platforms: tuple[str, ...],
) -> ImageFacts:
    """`platforms` empty: it is no index, and the configuration says the only one."""
    inner = config.get("config")
    told: Mapping[str, Any] = inner if isinstance(inner, dict) else {}
    platform = f"{config.get('os', 'linux')}/{config.get('architecture', 'amd64')}"
    variables = (one.partition("=") for one in _texts(told.get("Env")))
    return ImageFacts(
        reference=image,
        digest=digest,
        platform=platform,
        platforms=platforms or (platform,),
        download_bytes=sum(map(_size, _objects(manifest.get("layers")))),
        environment={name: value for name, _, value in variables},
        entrypoint=_texts(told.get("Entrypoint")),
        command=_texts(told.get("Cmd")),
        user=str(told.get("User") or ""),
        steps=tuple(
            str(one.get("created_by", ""))[:_LONGEST_STEP] for one in _objects(config.get("history"))[:_MOST_STEPS]
        ),
    )


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _texts(value: object) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()


def _size(layer: Mapping[str, Any]) -> int:
    size = layer.get("size")
    return size if isinstance(size, int) and size > 0 else 0
