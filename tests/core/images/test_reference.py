"""How the name of an image is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.images.reference import ImageReference, parse_image
from app.errors import InvalidInput

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("python", ("docker.io", "library/python", None, None)),
        ("python:3.11-slim", ("docker.io", "library/python", "3.11-slim", None)),
        ("pytorch/pytorch:2.13.0", ("docker.io", "pytorch/pytorch", "2.13.0", None)),
        ("docker.io/python", ("docker.io", "library/python", None, None)),
        ("index.docker.io/team/node:1", ("docker.io", "team/node", "1", None)),
        ("ghcr.io/team/node:1", ("ghcr.io", "team/node", "1", None)),
        ("GHCR.io/team/node", ("ghcr.io", "team/node", None, None)),
        ("localhost/node:1", ("localhost", "node", "1", None)),
        ("127.0.0.1:5000/a/b/c:v_1", ("127.0.0.1:5000", "a/b/c", "v_1", None)),
        (f"nvcr.io/nvidia/x@{DIGEST}", ("nvcr.io", "nvidia/x", None, DIGEST)),
        (f"nvcr.io/nvidia/x:1@{DIGEST}", ("nvcr.io", "nvidia/x", "1", DIGEST)),
    ],
)
def test_a_name_is_read_as_docker_reads_it(text: str, expected: tuple[str, ...]) -> None:
    """A first part is a registry only if it looks like a host; Docker Hub's own images live under library/."""
    assert parse_image(text) == ImageReference(*expected)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no repository"),
        ("Team/node", "no repository"),
        ("ghcr.io/", "no repository"),
        ("ghcr.io/team//node", "no repository"),
        ("ghcr.io/../node", "no repository"),
        ("team/node:", "no tag"),
        ("team/node:a b", "no tag"),
        ("team/node:" + "t" * 129, "no tag"),
        ("team/node@sha256:abc", "64 hexadecimal digits"),
        ("a b.io/team/node", "no host"),
        ("user:secret@ghcr.io/team/node", "64 hexadecimal digits"),
        ("x.io\r\nHost: evil/team/node", "no host"),
        ("n" * 1025, "1025 characters"),
    ],
)
def test_what_is_no_image_is_refused_with_the_reason(text: str, why: str) -> None:
    """The message quotes what was given and shows what an image looks like."""
    with pytest.raises(InvalidInput, match="is no image") as raised:
        parse_image(text)
    assert why in raised.value.message
    assert raised.value.param == "image"


@given(st.text(max_size=60))
def test_any_text_is_an_image_or_is_refused(text: str) -> None:
    """No text gets through that would make another address than that of one repository."""
    try:
        image = parse_image(text)
    except InvalidInput:
        return
    assert not set(f"{image.name}{image.version}") & set(" \t\r\n?#%\\\"'")
    assert ".." not in image.repository.split("/")


@pytest.mark.parametrize(
    ("text", "can_change"), [("a/b", True), ("a/b:latest", True), ("a/b:1", False), (f"a/b@{DIGEST}", False)]
)
def test_a_name_without_a_version_may_change(text: str, can_change: bool) -> None:
    """What is not pinned may be another image on the next machine."""
    assert parse_image(text).can_change is can_change
