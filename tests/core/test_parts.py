"""Parts of checkpoints: one manifest of what several machines have written, and never silently one of two."""

from __future__ import annotations

import hashlib
import json
import zlib
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.model import parts as parts_of_checkpoints
from app.core.model.checkpoint import SavedFile, Span
from app.core.model.listing import MAX_LISTED_FILES, files_in, stream_of, unpack
from app.core.model.parts import MAX_ROWS, Part, doubts_of, pack_files, put_together, unpack_files, without_part
from app.errors import InvalidInput


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def whole(path: str, data: bytes) -> SavedFile:
    return SavedFile.whole(path, sha(data), len(data)) if data else SavedFile(path, 0, ())


def packed(files: dict[str, bytes]) -> tuple[SavedFile, ...]:
    """As an agent packs small files: all in one piece."""
    pack = b"".join(files.values())
    found, start = [], 0
    for path, data in files.items():
        spans = (Span(sha(pack), len(pack), start, len(data)),) if data else ()
        found.append(SavedFile(path, len(data), spans))
        start += len(data)
    return tuple(found)


def listed(rank: int, files: dict[str, bytes]) -> Part:
    data = b"".join(files.values())
    told = zlib.compress(json.dumps([[path, len(content)] for path, content in files.items()]).encode())
    return Part(rank, (stream_of(unpack(told), [(sha(data), len(data))]),), told)


def contents(files: tuple[SavedFile, ...], pieces: dict[str, bytes]) -> dict[str, bytes]:
    """What is restored from these."""
    return {
        file.path: b"".join(
            pieces[span.sha256][span.start_byte : span.start_byte + span.length_bytes] for span in file.spans
        )
        for file in files
    }


_names = st.text("abc", min_size=1, max_size=3)
_folders = st.dictionaries(_names, st.binary(max_size=4), max_size=5)


@given(st.lists(_folders, min_size=1, max_size=4), st.booleans())
def test_every_file_of_every_machine_is_there_with_its_bytes(folders: list[dict[str, bytes]], packs: bool) -> None:
    """Whether its files travelled packed or each by itself; where names are the same and bytes differ, it is said."""
    pieces: dict[str, bytes] = {}
    parts = []
    for rank, folder in enumerate(folders):
        for data in (*folder.values(), b"".join(folder.values())):
            pieces[sha(data)] = data
        files = packed(folder) if packs else tuple(whole(path, data) for path, data in folder.items())
        parts.append(Part(rank, files))
    wanted: dict[str, bytes] = {}
    for folder in reversed(folders):
        wanted |= folder
    same = all(wanted[path] == data for folder in folders for path, data in folder.items())
    try:
        doubts = doubts_of(parts)
    except InvalidInput:
        assert not same
        return
    for doubt in doubts:
        (one,) = contents((doubt.one[1],), pieces).values()
        (other,) = contents((doubt.other[1],), pieces).values()
        if one != other:
            assert not same
            return
    assert same
    if not wanted:
        with pytest.raises(InvalidInput, match="no machine has written a file"):
            put_together(parts)
        return
    assert contents(put_together(parts).files, pieces) == wanted


def test_other_bytes_are_told_with_path_and_machines() -> None:
    parts = [Part(2, (whole("rng", b"two"),)), Part(0, (whole("rng", b"one"),)), Part(1, ())]
    with pytest.raises(InvalidInput, match="machine 0 and machine 2 have both written 'rng', and not the same bytes"):
        doubts_of(parts)


def test_other_sizes_need_no_look_at_bytes() -> None:
    with pytest.raises(InvalidInput, match="machine 0 and machine 1"):
        doubts_of([Part(0, packed({"a": b"1", "b": b"2"})), Part(1, packed({"a": b"11", "c": b"2"}))])


def test_a_path_that_is_a_folder_elsewhere_is_told() -> None:
    with pytest.raises(InvalidInput, match="'a/b' is a file on machine 1, and a folder on machine 0"):
        put_together([Part(0, (whole("a/b/c", b"1"),)), Part(1, (whole("a/b", b"2"),))])


@given(st.data())
def test_very_many_files_become_one_stream_that_restores_them(data: st.DataObject) -> None:
    """Of machines that have told files each by itself, packed, in many pieces and as a listing."""
    limit = 30  # as with ten thousand, in a moment: those are tried below
    small = {f"s{number}": bytes([number]) * data.draw(st.integers(0, 3)) for number in range(4)}
    large = b"large" * 3
    cut = SavedFile("large", 15, (Span(sha(large[:8]), 8, 0, 8), Span(sha(large[8:]), 7, 0, 7)))
    many = {f"m/{number}": b"x" for number in range(limit)}
    parts = [Part(0, (*packed(small), cut, whole("empty", b""))), listed(1, many)]
    assert doubts_of(parts) == []
    with mock.patch.object(parts_of_checkpoints, "MAX_ROWS", limit):
        made = put_together(parts)
    assert made.listing is not None and made.file_count == limit + 6
    (found,) = made.files
    pieces = {sha(one): one for one in (large[:8], large[8:], b"x" * limit, b"".join(small.values()))}
    restored = contents(tuple(files_in(found, unpack(made.listing), None, MAX_LISTED_FILES)), pieces)
    assert restored == {**small, **many, "large": large, "empty": b""}


def test_in_very_many_files_a_name_twice_goes_with_whole_pieces_only() -> None:
    """A large file that several machines have written is left out once; of a packed one bytes would be left over."""
    many = listed(1, {f"m/{number}": b"x" for number in range(MAX_ROWS)})
    large, pair = whole("tokenizer", b"words"), packed({"config": b"c", "own": b"o"})
    made = put_together([Part(0, (large, whole("a", b"a"))), many, Part(2, (large, whole("b", b"b")))])
    assert made.file_count == MAX_ROWS + 3
    with pytest.raises(InvalidInput, match="machine 0 and machine 2 have both written 'config'"):
        put_together([Part(0, pair), many, Part(2, packed({"config": b"c", "other": b"p"}))])
    with pytest.raises(InvalidInput, match="machine 0 and machine 1 have both written 'm/7'"):
        put_together([Part(0, (whole("m/7", b"x"), whole("a", b"a"))), many])


def test_files_and_pieces_have_limits_together() -> None:
    half = {f"a/{number}": b"x" for number in range(MAX_LISTED_FILES // 2 + 1)}
    other = {f"b/{number}": b"x" for number in range(MAX_LISTED_FILES // 2 + 1)}
    with pytest.raises(InvalidInput, match="the parts have 200,002 files together, and a checkpoint at most 200,000"):
        put_together([listed(0, half), listed(1, other)])
    spans = tuple(Span(sha(b"%d" % number), 1, 0, 1) for number in range(10_001))
    with pytest.raises(InvalidInput, match="a checkpoint has at most 20000 pieces"):
        put_together([Part(rank, (SavedFile(f"f{rank}", 10_001, spans),)) for rank in range(2)])


def test_a_pack_with_bytes_of_no_file_is_no_stream() -> None:
    """Whoever made it up: a listing of it would restore other bytes."""
    gap = SavedFile("gap", 1, (Span(sha(b"abc"), 3, 1, 1),))
    many = listed(1, {f"m/{number}": b"x" for number in range(MAX_ROWS)})
    with pytest.raises(InvalidInput, match="hold bytes of no file"):
        put_together([Part(0, (gap,)), many])


@given(_folders)
def test_a_part_is_kept_as_it_was_told(folder: dict[str, bytes]) -> None:
    files = packed(folder)
    assert unpack_files(pack_files(files)) == files


def test_machines_are_named_in_order() -> None:
    assert without_part({3}) == "machine 3 has not written its part"
    assert without_part({3, 1, 2}) == "machines 1, 2 and 3 have not written their parts"
