"""Building and pushing images with the container engine of this host."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from app.core.images.facts import AMD64, ARM64
from app.core.images.reference import DOCKER_HUB, ImageReference
from app.errors import InvalidInput, NotFound

ENGINES = ("docker", "podman", "nerdctl")
PLATFORMS = (AMD64, ARM64)
_NAME = "node.Dockerfile"


def engine_program(wanted: str | None = None) -> str:
    """The path of the engine that is wanted, else of the first there is. Raises InvalidInput, NotFound."""
    if wanted is not None and wanted not in ENGINES:
        raise InvalidInput(f"engine: {wanted!r} is none of {', '.join(ENGINES)}", param="engine")
    for name in (wanted,) if wanted else ENGINES:
        found = shutil.which(name)
        if found is not None:
            return found
    if wanted:
        raise NotFound(f"{wanted} is not in PATH: install it, or name another of {', '.join(ENGINES)}")
    raise NotFound(f"none of {', '.join(ENGINES)} is in PATH: install one; public images can be used without")


def build_command(
    engine: str,
    image: str,
    dockerfile: Path,
    context: Path,
    *,
    platform: str = AMD64,
    arguments: Sequence[tuple[str, str]] = (),
) -> list[str]:
    """`arguments` are those of the Dockerfile. The platform is always said: that of this host may be another one."""
    if platform not in PLATFORMS:
        raise InvalidInput(f"platform: {platform!r} is none of {', '.join(PLATFORMS)}", param="platform")
    given = [word for name, value in arguments for word in ("--build-arg", f"{name}={value}")]
    return [engine, "build", "--platform", platform, "--file", str(dockerfile), "--tag", image, *given, str(context)]


def build(engine: str, image: str, *, platform: str = AMD64, arguments: Sequence[tuple[str, str]] = ()) -> int:
    """The engine's exit code; what it writes is seen as it comes."""
    with tempfile.TemporaryDirectory() as empty:  # nothing is copied into the image, so nothing is sent to the engine
        command = build_command(
            engine, image, dockerfile_of_nodes(), Path(empty), platform=platform, arguments=arguments
        )
        return subprocess.run(command, check=False).returncode  # noqa: S603  # the words of our own command line


def push(engine: str, image: ImageReference, text: str) -> int:
    """The engine's exit code. Raises InvalidInput for a name that can only be somebody else's."""
    if image.registry == DOCKER_HUB and image.repository.startswith(("library/", "allpass/")):
        raise InvalidInput(f"{text!r} cannot be pushed: put a registry and name of yours before it", param="image")
    return subprocess.run([engine, "push", text], check=False).returncode  # noqa: S603  # as above


def dockerfile_of_nodes() -> Path:
    """Of a checkout, or of the installed package. Raises NotFound."""
    here = Path(__file__).resolve()
    for place in (here.parents[2] / "docker" / _NAME, here.with_name(_NAME)):
        if place.is_file():
            return place
    raise NotFound(f"{_NAME} is not in this installation: use a checkout of Allpass")
