"""Checkpoint entries: what a manifest may name."""

from __future__ import annotations

import pytest

from app.core.model.checkpoint import MAX_PATH_CHARS, FileEntry, check_entries
from app.errors import InvalidInput

SHA = "ab" * 32


def entry(path: str = "model.safetensors", sha256: str = SHA, size_bytes: int = 1) -> FileEntry:
    return FileEntry(path, sha256, size_bytes)


def test_plain_entries_pass() -> None:
    """Relative paths, nested or not, empty files, and one content under two names are all fine."""
    check_entries(
        (entry("a"), entry("b/c.bin", size_bytes=0), entry("b/d..e"), entry("b.c/x"), entry("x" * MAX_PATH_CHARS))
    )


@pytest.mark.parametrize(
    "path", ["", "/a", "a//b", "../a", "a/..", "./a", "a/", "a\\b", "a\x00b", "x" * (MAX_PATH_CHARS + 1)]
)
def test_paths_that_could_leave_the_folder(path: str) -> None:
    """A path that is absolute, climbs, is empty somewhere or means another thing elsewhere is refused by its place."""
    with pytest.raises(InvalidInput) as caught:
        check_entries((entry("ok"), entry(path)))
    assert caught.value.param == "files[1].path"


@pytest.mark.parametrize("paths", [("a", "a"), ("a", "a/b"), ("a/b/c", "a/b")])
def test_paths_that_collide(paths: tuple[str, ...]) -> None:
    """No two entries may want the same place, nor one be a file where another needs a folder."""
    with pytest.raises(InvalidInput):
        check_entries(tuple(entry(path) for path in paths))


@pytest.mark.parametrize("sha256", ["", SHA[:-1], SHA + "0", SHA.upper(), SHA + "\n", "g" * 64])
def test_hashes_that_are_none(sha256: str) -> None:
    """Only 64 lower-case hex digits are a hash."""
    with pytest.raises(InvalidInput) as caught:
        check_entries((entry(sha256=sha256),))
    assert caught.value.param == "files[0].sha256"


def test_negative_size() -> None:
    """A size below zero is refused."""
    with pytest.raises(InvalidInput) as caught:
        check_entries((entry(size_bytes=-1),))
    assert caught.value.param == "files[0].size_bytes"
