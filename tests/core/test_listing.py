"""Checkpoints of very many files: one list, one stream of pieces, and every file found again in it."""

from __future__ import annotations

import hashlib
import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.model.checkpoint import check_saved
from app.core.model.listing import MAX_LISTED_FILES, ListedFile, files_in, stream_of, unpack
from app.errors import InvalidInput


def packed(entries: Any) -> bytes:
    return zlib.compress(json.dumps(entries).encode())


def cut(content: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in [*sizes, len(content)]:
        if content:
            pieces.append(content[: size + 1])
            content = content[size + 1 :]
    return pieces


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=4), st.binary(max_size=12), min_size=1, max_size=12),
    st.lists(st.integers(0, 9), max_size=20),
    st.integers(1, 13),
)
def test_every_file_is_found_again_page_by_page(files: dict[str, bytes], sizes: list[int], limit: int) -> None:
    """Wherever pieces are cut, also within a file and around empty ones, whatever the order of the stream."""
    stored = {hashlib.sha256(piece).hexdigest(): piece for piece in cut(b"".join(files.values()), sizes)}
    order = [hashlib.sha256(piece).hexdigest() for piece in cut(b"".join(files.values()), sizes)]
    listed = unpack(packed([[path, len(data)] for path, data in files.items()]))
    stream = stream_of(listed, [(sha256, len(stored[sha256])) for sha256 in order])
    found: dict[str, bytes] = {}
    after = None
    while page := files_in(stream, listed, after, limit):
        assert len(page) <= limit
        check_saved(tuple(page))
        for file in page:
            spans = file.spans
            found[file.path] = b"".join(
                stored[span.sha256][span.start_byte : span.start_byte + span.length_bytes] for span in spans
            )
        after = page[-1].path
    assert found == files
    assert list(found) == sorted(files)


@pytest.mark.parametrize(
    "listing",
    [
        b"",
        b"no zlib",
        zlib.compress(b"{"),
        zlib.compress(b"[" * 5_000_000),
        zlib.compress(b" " * 100_000_000),
        packed([["a", 1]])[:-3],
        packed([]),
        packed({"a": 1}),
        packed([["a"]]),
        packed([["a", -1]]),
        packed([["a", True]]),
        packed([["a", 1.5]]),
        packed([["a", 2**60]]),
        packed([[1, 1]]),
        packed([["\ud800", 1]]),
        packed([["a", 0]] * (MAX_LISTED_FILES + 1)),
    ],
    ids=range(16),
)
def test_what_is_no_listing_is_refused(listing: bytes) -> None:
    """In bounded memory, and as the sender's mistake."""
    with pytest.raises(InvalidInput) as refused:
        unpack(listing)
    assert refused.value.param == "listing.files"
    assert len(refused.value.message) < 1000


@pytest.mark.parametrize("path", ["/etc/passwd", "a/../b", "..", "", "a//b", "/", "a\\b", "a\0b", "p" * 5000])
def test_paths_that_leave_the_folder_are_refused(path: str) -> None:
    """As in any checkpoint."""
    with pytest.raises(InvalidInput):
        stream_of((ListedFile(path, 1),), [("a" * 64, 1)])


@pytest.mark.parametrize(
    ("files", "pieces"),
    [
        ([("a", 1), ("a", 1)], [("a" * 64, 2)]),
        ([("a", 1), ("a/b", 1)], [("a" * 64, 2)]),
        ([("a", 1)], [("a" * 64, 2)]),
        ([("a", 2)], [("a" * 64, 1)]),
        ([("a", 1)], [("A" * 64, 1)]),
        ([("a", 0)], [("a" * 64, 0)]),
        ([("a", 20_001)], [("a" * 64, 1)] * 20_001),
    ],
)
def test_what_does_not_add_up_is_refused(files: list[tuple[str, int]], pieces: list[tuple[str, int]]) -> None:
    """Before anything of it is written down."""
    with pytest.raises(InvalidInput):
        stream_of(tuple(ListedFile(*file) for file in files), pieces)
