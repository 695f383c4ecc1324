"""Very many small files are a checkpoint like any other: few requests, few pieces, and all of them come back."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from allpass.wire.agent import ResumeFrom
from tests.workers.plane import TOKEN, Fault, Plane
from tests.workers.test_checkpoint_pieces import Sending, content_of, fill
from workers.agent import pieces
from workers.agent.api import Api, Writer
from workers.agent.fetching import MOST_OPENED, Fetcher, LocalPieces, PieceTarget, PieceWriter, fetch_checkpoint
from workers.agent.pieces import Manifest
from workers.agent.transport import Transport

MANY = 20_000


@pytest.fixture
def link(plane: Plane) -> Iterator[Fetcher]:
    plane.epochs["job_1"] = 1
    transport = Transport()
    writer = Writer(run_id="run_1", job_id="job_1", epoch=1)
    yield Fetcher(Api(plane.url, TOKEN, transport), transport, writer, threading.Event())
    transport.close()


def listed(plane: Plane) -> Manifest:
    """The newest checkpoint, as a server tells an agent that reads listings."""
    stored = plane.committed("run_1")[-1]
    told = ResumeFrom(checkpoint_id="ckp_1", step=stored.step, files=[], listing=plane.listings[-1])
    return Manifest.from_wire(told.model_dump(mode="json"))


def make_many(folder: Path, count: int, size: int) -> None:
    content = random.Random(1).randbytes(size + count)
    for number in range(count):
        at = folder / f"shard-{number % 100:02}"
        if number < 100:
            at.mkdir(parents=True)
        (at / f"part-{number:06}").write_bytes(content[number : number + size])


def test_20_000_files_of_100_bytes_are_stored_and_restored(plane: Plane, link: Fetcher, tmp_path: Path) -> None:
    """In two uploads and two downloads; how 100,000 fare at the server: test_listed_checkpoints.py."""
    folder = tmp_path / "step-7"
    make_many(folder, MANY, 100)
    said = Sending(link, tmp_path).send(folder, 7)
    assert f"is stored ({MANY} files" in said
    sent = [line for line in plane.requests if line.startswith("PUT")]
    posted = [line for line in plane.requests if line.startswith("POST")]
    assert len(sent) == 2
    assert len(posted) == 2
    assert len(plane.listings[0].files) < 300_000
    into = tmp_path / "restored"
    into.mkdir()
    before = len(plane.requests)
    fetch_checkpoint(link, listed(plane), into)
    assert len(plane.requests) - before == 3
    restored = content_of(into)
    assert len(restored) == MANY
    assert restored == content_of(folder)


@pytest.fixture
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing begins at four files, packs have 2 KiB, pieces 8 KiB."""
    monkeypatch.setattr(pieces, "LISTED_ABOVE", 3)
    monkeypatch.setattr(pieces, "PIECE_BYTES", 8 * 1024)
    monkeypatch.setattr(pieces, "PACK_BYTES", 2 * 1024)
    monkeypatch.setattr(pieces, "PACKED_BELOW_BYTES", 1024)


@pytest.mark.usefixtures("few_are_many")
def test_what_is_between_small_and_large_is_packed_and_large_files_are_not(
    plane: Plane, link: Fetcher, tmp_path: Path
) -> None:
    """A large file that did not change is not sent again, whatever became of the small ones around it; empty files and
    odd names come back."""
    chance = random.Random(2)
    files = {f"s{number}": chance.randbytes(700 + number) for number in range(9)}
    files |= {"large": chance.randbytes(50_000), "m": chance.randbytes(1500), "empty": b"", "a\nb ü": b"odd"}
    folder = fill(tmp_path / "one", files)
    Sending(link, tmp_path).send(folder, 1)
    large = {span.sha256 for file in listed(plane).files if file.path == "large" for span in file.spans}
    assert len(large) == 7
    changed = {**files, "a-new": b"shifts all small ones", "s3": b"smaller"}
    before = len(plane.stored_lines)
    Sending(link, tmp_path).send(fill(tmp_path / "two", changed), 2)
    again = {line.partition("?")[0].rpartition("/")[2] for line in plane.stored_lines[before:]}
    assert again and not again & large
    into = tmp_path / "restored"
    into.mkdir()
    fetch_checkpoint(link, listed(plane), into)
    assert content_of(into) == changed


@pytest.mark.usefixtures("few_are_many")
def test_packs_that_are_here_are_not_fetched(plane: Plane, link: Fetcher, tmp_path: Path) -> None:
    """A move's target has fetched the checkpoint before: what of it did not change is taken from there."""
    chance = random.Random(3)
    files = {f"s{number:02}": chance.randbytes(600) for number in range(30)}
    Sending(link, tmp_path).send(fill(tmp_path / "one", files), 1)
    shelf, into = LocalPieces(), tmp_path / "ahead"
    into.mkdir()
    fetch_checkpoint(link, listed(plane), into, shelf)
    read = len(plane.read)
    assert read > 5
    files["s29"] = chance.randbytes(600)
    Sending(link, tmp_path).send(fill(tmp_path / "two", files), 2)
    again = tmp_path / "again"
    again.mkdir()
    fetch_checkpoint(link, listed(plane), again, shelf)
    assert len(plane.read) - read == 1
    assert content_of(again) == files


@pytest.mark.usefixtures("few_are_many")
def test_an_older_server_refuses_it_in_words(plane: Plane, link: Fetcher, tmp_path: Path) -> None:
    """It knows no listings; what it would have taken is told as ever."""
    plane.faults.append(Fault(r"POST .*/checkpoints$", 422, "extra_forbidden", param="listing"))
    folder = fill(tmp_path / "one", {f"s{number}": b"x" for number in range(5)})
    Sending(link, tmp_path).send(folder, 1)
    assert plane.refusals[-1].why == "it has 5 files, and this server takes 10,000: pack them"


def test_a_piece_of_many_files_never_holds_many_of_them_open(tmp_path: Path) -> None:
    """A process may have a thousand open files, a piece more than that."""
    places = []
    for number in range(500):
        path = tmp_path / str(number)
        path.write_bytes(b"\0" * 2)
        places.append(PieceTarget(path, 0, 2 * number, 2))
    content = random.Random(4).randbytes(1000)
    writer = PieceWriter(1000, "", places)
    for start in range(0, 1000, 7):
        writer.write(content[start : start + 7])
        assert len(writer._opened) <= MOST_OPENED
    writer.close()
    assert b"".join((tmp_path / str(number)).read_bytes() for number in range(500)) == content
