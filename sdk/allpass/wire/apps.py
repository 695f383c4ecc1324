"""Bundles and apps: what `build()` registers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from allpass.wire.base import Name, Positive, Request, Response, Sha256

Requirement = Annotated[str, StringConstraints(max_length=1000)]


class BundleUploadRequest(Request):
    """Ask where to put a code bundle. Content-addressed: a bundle that is there already is not sent again."""

    sha256: Sha256
    size_bytes: Positive


class BundleUpload(Response):
    """`upload_url` is None when the content is already stored; else PUT the bytes there."""

    sha256: Sha256
    upload_url: str | None


class Runtime(Request):
    """`base_image`: a container image (a placement constraint on real clouds). `pip`: requirement specifiers."""

    base_image: str | None = Field(None, max_length=500)
    pip: list[Requirement] = Field(default_factory=list, max_length=1000)


class AppRequest(Request):
    """Register an app. The same content gives the version that exists; any change gives the next version."""

    name: Name
    user_name: Name
    runtime: Runtime = Field(default_factory=Runtime)
    bundle_sha256: Sha256
    entrypoint: str = Field(
        "",
        description="script inside the bundle, e.g. train.py or train.sh; none: each job brings its command",
        max_length=500,
    )


class App(Response):
    id: str
    name: str
    user_name: str
    version: int
    version_id: str
    runtime: Runtime
    bundle_sha256: Sha256
    entrypoint: str = Field(description="empty: each job brings its command")
    created_at: datetime
