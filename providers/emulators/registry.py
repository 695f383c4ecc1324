"""Private registries, as far as a rental company sees them: an image is fetched with the right login or not at all."""

from __future__ import annotations

SWITCH = "private_registry"  # `registry user password`; empty: every image is public


def why_not_pulled(private: str, image: str, login: tuple[str, str] | None) -> str:
    """What a container engine says when it may not fetch `image`; empty when it may. `private`: the switch's value."""
    registry, _, rest = private.partition(" ")
    if not registry or not image.startswith(f"{registry}/") or (login is not None and " ".join(login) == rest):
        return ""
    if login is None:
        why = "repository does not exist or may require 'docker login'"
        return f"Error response from daemon: pull access denied for {image}, {why}"
    return f"Error response from daemon: Get https://{registry}/v2/: unauthorized: authentication required"
