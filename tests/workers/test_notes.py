"""What a file's writer noted of it: believed where it fits, found out where it does not."""

from __future__ import annotations

import hashlib
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpass.training.noted_file import NotedFile
from tests.workers.plane import Plane
from tests.workers.test_checkpoint_pieces import Sending, content_of, link, newest, small_and_quick, uploads
from workers.agent.fetching import Fetcher, fetch_checkpoint
from workers.agent.files import Fence, listing
from workers.agent.notes import note_of
from workers.agent.pieces import CutFolder, cut

__all__ = ["link", "small_and_quick"]  # fixtures

KB = 1024
PIECE = 8 * KB
SIZE = 5 * PIECE + 100


def write_noted(path: Path, data: bytes, *, step: int = 3000, piece_bytes: int = PIECE) -> Path:
    """`data` in writes of `step` bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NotedFile(path, len(data), piece_bytes) as file:
        for start in range(0, len(data), step):
            file.write(memoryview(data[start : start + step]))
    return path


def note_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.allpass-note")


def cut_of(folder: Path, *, believing: bool = True) -> CutFolder:
    return cut(Fence(folder, None), folder, listing(folder), threading.Event(), believing=believing)


def names_of(saved: CutFolder) -> dict[str, tuple[object, ...]]:
    return {sha256: (one.size_bytes, one.parts) for sha256, one in saved.contents.items()}


def data_of(seed: int, size: int = SIZE) -> bytes:
    return random.Random(seed).randbytes(size)


def forge(path: Path, wrong: dict[str, str]) -> None:
    """Make the note claim other hashes."""
    text = note_path(path).read_text()
    for old, new in wrong.items():
        assert old in text
        text = text.replace(old, new)
    note_path(path).write_text(text)


@given(size=st.integers(0, 6 * PIECE), step=st.integers(1, 3 * PIECE))
def test_a_note_says_what_reading_would_say(tmp_path_factory: pytest.TempPathFactory, size: int, step: int) -> None:
    """Whatever the sizes of file and writes: the same pieces with the same hashes, and the same bytes."""
    folder = tmp_path_factory.mktemp("noted")
    data = data_of(size, size)
    path = write_noted(folder / "state", data, step=max(step, size // 50 + 1))
    assert path.read_bytes() == data
    believed, read = cut_of(folder), cut_of(folder, believing=False)
    assert believed.files == read.files
    assert names_of(believed) == names_of(read)
    assert bool(believed.unproven) == (size >= PIECE)
    assert read.unproven == frozenset()
    assert listing(folder) == ["state"], "a note is no file of the checkpoint"


def torn(path: Path) -> None:
    os.truncate(note_path(path), note_path(path).stat().st_size - 10)


def changed_at_once(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(PIECE + 5)
        file.write(b"changed")


def of_an_older_file(path: Path) -> None:
    """Another file of the same size has its place, and its times."""
    facts, note = path.stat(), note_path(path).read_bytes()
    write_noted(path.with_name("newer"), data_of(99))
    path.with_name("newer").replace(path)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    note_path(path).write_bytes(note)
    note_path(path.with_name("newer")).unlink()


def nonsense(path: Path) -> None:
    note_path(path).write_bytes(b'{"format": 1, "size_bytes": "many"}\n\xff[[[')


def endless(path: Path) -> None:
    first = f'{{"format": 1, "size_bytes": {2**60}, "inode": 1, "piece_bytes": 4096}}\n'
    note_path(path).write_text(first)


def led_astray(path: Path) -> None:
    """A link to a file elsewhere."""
    moved = path.parent.parent / "elsewhere"
    note_path(path).rename(moved)
    note_path(path).symlink_to(moved)


@pytest.mark.parametrize("harm", [torn, changed_at_once, of_an_older_file, nonsense, endless, led_astray])
def test_a_note_that_does_not_fit_is_left_aside(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    """Torn, older than the file, of another file, or no note at all: the file is read, as if there was none."""
    folder = tmp_path / "folder"
    path = write_noted(folder / "state", data_of(1))
    assert cut_of(folder).unproven
    harm(path)
    saved = cut_of(folder)
    assert saved.unproven == frozenset()
    assert saved.files == cut_of(folder, believing=False).files


def test_a_file_that_was_not_finished_has_no_note(tmp_path: Path) -> None:
    """Whatever ended the writing, or when other bytes came than were announced."""
    with pytest.raises(OSError, match="the disk"), NotedFile(tmp_path / "a", SIZE, PIECE) as file:
        file.write(memoryview(bytes(SIZE - 1)))
        raise OSError("the disk")
    with NotedFile(tmp_path / "b", SIZE, PIECE) as file:
        file.write(memoryview(bytes(SIZE - 1)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_pieces_are_noted_while_the_rest_is_written(tmp_path: Path) -> None:
    """A reader finds the hash of a piece before the file is complete, and no end of the note."""
    data = data_of(2)
    fence, path = Fence(tmp_path, None), tmp_path / "state"
    seen = threading.Event()
    with NotedFile(path, SIZE, PIECE) as file:
        file.write(memoryview(data)[: 2 * PIECE + 10])

        def look() -> None:
            while not seen.is_set():
                note = note_of(fence, path)
                if note is not None and len(note.hashes) == 2:
                    seen.set()

        reader = threading.Thread(target=look, daemon=True)
        reader.start()
        reader.join(30)
        assert seen.is_set()
        note = note_of(fence, path)
        assert note is not None
        assert note.hashes[1] == hashlib.sha256(data[PIECE : 2 * PIECE]).hexdigest()
        assert not note.is_of(path.stat())
        file.write(memoryview(data)[2 * PIECE + 10 :])
    assert cut_of(tmp_path).unproven


def test_a_noted_checkpoint_is_stored_and_fetched_as_any_other(plane: Plane, link: Fetcher, tmp_path: Path) -> None:
    """And its unchanged pieces are not sent again, but read here before they are believed."""
    first, second = data_of(3), bytearray(data_of(3))
    second[PIECE] ^= 1
    write_noted(tmp_path / "one/state", first)
    assert "is stored" in Sending(link, tmp_path).send(tmp_path / "one", 1)
    write_noted(tmp_path / "two/state", bytes(second))
    said = Sending(link, tmp_path).send(tmp_path / "two", 2)
    assert f"{PIECE:,} of them new" in said
    fetch_checkpoint(link, newest(plane), tmp_path / "there")
    assert content_of(tmp_path / "there") == {"state": bytes(second)}


def test_a_wrong_note_is_found_out_by_the_store(plane: Plane, link: Fetcher, tmp_path: Path) -> None:
    """It refuses bytes that have another hash than their name says; the file is read then, and stored as it is."""
    data = data_of(4)
    path = write_noted(tmp_path / "one/state", data)
    forge(path, {hashlib.sha256(data[PIECE : 2 * PIECE]).hexdigest(): "0" * 64})
    assert "is stored" in Sending(link, tmp_path).send(tmp_path / "one", 1)
    fetch_checkpoint(link, newest(plane), tmp_path / "there")
    assert content_of(tmp_path / "there") == {"state": data}
    assert "0" * 64 not in plane.objects


def test_a_wrong_note_that_names_stored_content_is_found_out_here(plane: Plane, link: Fetcher, tmp_path: Path) -> None:
    """What the store has already is not sent, so nobody else would notice."""
    old, data = data_of(5), data_of(6)
    write_noted(tmp_path / "one/state", old)
    Sending(link, tmp_path).send(tmp_path / "one", 1)
    path = write_noted(tmp_path / "two/state", data)
    pairs = [(bytes_[PIECE : 2 * PIECE]) for bytes_ in (data, old)]
    forge(path, {hashlib.sha256(pairs[0]).hexdigest(): hashlib.sha256(pairs[1]).hexdigest()})
    sent = len(uploads(plane))
    assert "is stored" in Sending(link, tmp_path).send(tmp_path / "two", 2)
    fetch_checkpoint(link, newest(plane), tmp_path / "there")
    assert content_of(tmp_path / "there") == {"state": data}
    assert len(uploads(plane)) == sent + 6, "no piece is sent twice"


def test_bytes_changed_while_they_are_sent_never_become_a_checkpoint(
    plane: Plane, link: Fetcher, tmp_path: Path
) -> None:
    """Somebody writes into the file after its note was judged: what is stored is one of the two, whole."""
    data = data_of(7)
    path = write_noted(tmp_path / "one/state", data)
    plane.hold_after = 1
    result: list[str] = []
    thread = threading.Thread(target=lambda: result.append(Sending(link, tmp_path).send(tmp_path / "one", 1)))
    thread.start()
    plane.wait(lambda: len(plane.stored_lines) >= 1, "one piece")
    changed_at_once(path)
    plane.hold_after = None
    plane.release.set()
    thread.join()
    assert "is stored" in result[0]
    fetch_checkpoint(link, newest(plane), tmp_path / "there")
    assert (tmp_path / "there/state").read_bytes() in (data, path.read_bytes())
