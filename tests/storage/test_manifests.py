"""Manifests: one spelling per content."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.model.checkpoint import SavedFile
from app.errors import InvalidInput, ObjectCorrupt
from app.storage.manifests import Manifest, manifest_bytes, manifest_sha256, read_manifest

_name = st.text(st.characters(exclude_characters="/\\\x00", exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda part: part not in (".", "..")
)
_path = st.lists(_name, min_size=1, max_size=3).map("/".join)


def _entries(found: dict[str, tuple[int, int]]) -> tuple[SavedFile, ...]:
    """Files by path, less those whose path needs another file to be a folder."""
    parents = {path: {path[:at] for at, character in enumerate(path) if character == "/"} for path in found}
    return tuple(
        SavedFile.whole(path, f"{number:064x}", size)
        for path, (size, number) in found.items()
        if not parents[path] & found.keys()
    )


_contents = st.tuples(st.integers(0, 2**60), st.integers(0, 2**256 - 1))
_files = st.dictionaries(_path, _contents, max_size=8).map(_entries)
_manifests = st.builds(
    Manifest, job_id=st.just("job_1"), epoch=st.integers(0, 99), step=st.integers(0, 10**9), files=_files
)


@given(_manifests, st.randoms(use_true_random=False))
def test_the_order_of_files_does_not_matter(manifest: Manifest, chance: random.Random) -> None:
    """The same files in any order have the same bytes and hash, and read back sorted by path."""
    files = list(manifest.files)
    chance.shuffle(files)
    shuffled = Manifest(manifest.job_id, manifest.epoch, manifest.step, tuple(files))
    assert manifest_bytes(shuffled) == manifest_bytes(manifest)
    assert manifest_sha256(shuffled) == manifest_sha256(manifest)
    assert read_manifest(manifest_bytes(shuffled)).files == tuple(sorted(files, key=lambda entry: entry.path))


@given(_manifests, _manifests)
def test_different_manifests_have_different_hashes(one: Manifest, other: Manifest) -> None:
    """Hashes are equal exactly when job, epoch, step and files are."""

    def content(manifest: Manifest) -> object:
        return (manifest.job_id, manifest.epoch, manifest.step, frozenset(manifest.files))

    assert (manifest_sha256(one) == manifest_sha256(other)) == (content(one) == content(other))


@pytest.mark.parametrize("path", ["../x", "/x", "a//b", "a/./b", "", "a\\b"])
def test_paths_that_leave_the_folder_are_refused(path: str) -> None:
    """A manifest with such a path is never written."""
    with pytest.raises(InvalidInput, match="relative path"):
        manifest_bytes(Manifest("job_1", 1, 1, (SavedFile.whole(path, "a" * 64, 1),)))


def test_changed_bytes_are_no_manifest() -> None:
    """Other spacing, order, fields or types are refused when reading."""
    files = (SavedFile.whole("a", "a" * 64, 1), SavedFile.whole("b", "b" * 64, 2))
    data = manifest_bytes(Manifest("job_1", 3, 40, files))
    body = json.loads(data)
    for changed in (
        data[:-1],
        data.replace(b":", b": "),
        json.dumps({**body, "more": 1}, sort_keys=True, separators=(",", ":")).encode() + b"\n",
        json.dumps({**body, "files": body["files"][::-1]}, sort_keys=True, separators=(",", ":")).encode() + b"\n",
        data.replace(b'"step":40', b'"step":"40"'),
        data.replace(b'"path":"a"', b'"path":"../a"'),
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
    ):
        with pytest.raises(ObjectCorrupt):
            read_manifest(changed)
