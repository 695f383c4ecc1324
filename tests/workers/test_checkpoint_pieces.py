"""Checkpoints cut into pieces, sent and fetched over real HTTP, through everything that can go wrong on the way."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allpass.wire.agent import CheckpointOpen, ResumeFrom, SavedFile
from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import TOKEN, Fault, Plane, pieces_of
from workers.agent import fetching, pieces, transfer
from workers.agent.api import Api, Writer
from workers.agent.checkpoints import Uploader
from workers.agent.errors import Aborted, Changed, Corrupt
from workers.agent.fetching import Fetcher, LocalPieces, fetch_checkpoint
from workers.agent.files import Fence, listing
from workers.agent.patience import Backoff
from workers.agent.pieces import Manifest, cut, piece_bytes, pieces_missing
from workers.agent.transport import Transport
from workers.agent.uploading import Candidate

Start = Callable[..., AgentProcess]
KB = 1024


@pytest.fixture(autouse=True)
def small_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of 8 KiB, packs of 2 KiB of files below 1 KiB, and short pauses: all borders come within a few files."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", 8 * KB)
    monkeypatch.setattr(pieces, "PACKED_BELOW_BYTES", KB)
    monkeypatch.setattr(pieces, "PACK_BYTES", 2 * KB)
    for module in (transfer, fetching):
        monkeypatch.setattr(module, "Backoff", lambda **_: Backoff(0.001, 0.01))


@pytest.fixture
def link(plane: Plane) -> Iterator[Fetcher]:
    plane.epochs["job_1"] = 1
    transport = Transport()
    writer = Writer(run_id="run_1", job_id="job_1", epoch=1)
    yield Fetcher(Api(plane.url, TOKEN, transport), transport, writer, threading.Event())
    transport.close()


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def content_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in listing(folder)}


def sample(seed: int, **sizes: int) -> dict[str, bytes]:
    chance = random.Random(seed)
    return {f"deep/{name}": chance.randbytes(size) for name, size in sizes.items()}


class Sending:
    """An uploader at work, and what it says."""

    def __init__(self, link: Fetcher, root: Path) -> None:
        self.said: list[str] = []
        self.fenced = threading.Event()
        self._uploader = Uploader(
            link.api,
            link.transport,
            link.writer,
            Fence(root, None),
            before_commit=lambda: None,
            on_fenced=self.fenced.set,
            say=self.said.append,
            gone=link.gone,
        )

    def send(self, folder: Path, step: int) -> str:
        """Upload one checkpoint; the last thing that was said of it."""
        self._uploader.start()
        self._uploader.offer(Candidate(folder, step))
        self._uploader.finish()
        return self.said[-1] if self.said else ""


def uploads(plane: Plane) -> list[str]:
    return [line for line in plane.requests if line.startswith("PUT")]


def newest(plane: Plane) -> Manifest:
    stored = plane.committed("run_1")[-1]
    told = ResumeFrom(checkpoint_id="ckp_1", step=stored.step, files=stored.files)
    return Manifest.from_wire(told.model_dump(mode="json"))


@settings(max_examples=40)
@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "c/d", "c/e", "f"]),
        st.sampled_from([0, 1, 500, 1023, 1024, 8 * KB - 1, 8 * KB, 8 * KB + 1, 20_000]),
        min_size=1,
    )
)
def test_cut_and_put_together_a_folder_is_what_it_was(
    tmp_path_factory: pytest.TempPathFactory, sizes: dict[str, int]
) -> None:
    """Whatever the sizes: the spans in order are each file, pieces are no larger than they should be, and the wire's
    words of it are understood."""
    folder = tmp_path_factory.mktemp("folder")
    files = {name: random.Random(name).randbytes(size) for name, size in sizes.items()}
    fill(folder, files)
    saved = cut(Fence(folder, None), folder, sorted(files), threading.Event())
    stored = {}
    for sha256, one in saved.contents.items():
        data = b"".join(os.pread(file.fileno(), length, offset) for file, offset, length in one.files())
        assert len(data) == one.size_bytes <= 8 * KB
        stored[sha256] = data
    CheckpointOpen.model_validate(
        {"run_id": "r", "job_id": "j", "epoch": 1, "step": 1, "files": [one.as_wire() for one in saved.files]}
    )
    told = [SavedFile.model_validate(one.as_wire()).model_dump(mode="json") for one in saved.files]
    manifest = Manifest.from_wire({"checkpoint_id": "c", "step": 1, "files": told})
    assert manifest.files == saved.files
    for file in manifest.files:
        joined = b"".join(stored[span.sha256][span.start : span.start + span.length] for span in file.spans)
        assert joined == files[file.path]


@given(st.integers(0, 2**45))
def test_a_checkpoint_has_a_bounded_number_of_pieces(total: int) -> None:
    """Larger checkpoints are cut into larger pieces."""
    size = piece_bytes(total)
    assert total / size <= pieces.MOST_PIECES
    assert size == pieces.PIECE_BYTES or total > pieces.MOST_PIECES * size / 2


def test_what_did_not_change_is_never_sent_again(plane: Plane, link: Fetcher, tmp_path: Path) -> None:
    """One byte in the middle of a large file: one piece travels, of the second checkpoint and to a machine that has
    the first; what arrives is the second one, whole."""
    files = sample(1, big=100_000, frozen=50_000, one=100, two=200)
    first, second = fill(tmp_path / "first", files), fill(tmp_path / "second", files)
    changed = bytearray(files["deep/big"])
    changed[50_000] ^= 1
    (second / "deep/big").write_bytes(changed)
    said = Sending(link, tmp_path).send(first, 1)
    assert said == "checkpoint first of step 1 is stored (4 files, 150,300 bytes)"
    before = newest(plane)
    sent = len(uploads(plane))
    said = Sending(link, tmp_path).send(second, 2)
    assert said == "checkpoint second of step 2 is stored (4 files, 150,300 bytes, 8,192 of them new)"
    assert len(uploads(plane)) == sent + 1
    shelf = LocalPieces()
    fetch_checkpoint(link, before, tmp_path / "there-1", shelf)
    assert content_of(tmp_path / "there-1") == content_of(first)
    plane.requests.clear()
    missing = pieces_missing(newest(plane), shelf.held())
    assert len(missing) == 1, "the piece that changed; the pack is put together from its files"
    fetch_checkpoint(link, newest(plane), tmp_path / "there-2", shelf)
    assert content_of(tmp_path / "there-2") == content_of(second)
    fetched = {line.partition("/objects/")[2].partition("?")[0] for line in plane.requests if line.startswith("GET")}
    assert fetched == set(missing)


def test_what_lies_on_the_shelf_is_verified(plane: Plane, link: Fetcher, tmp_path: Path) -> None:
    """A file that somebody changed, or deleted, since it was fetched is not taken: its pieces come from the store."""
    source = fill(tmp_path / "source", sample(2, big=40_000, other=30_000))
    Sending(link, tmp_path).send(source, 1)
    shelf = LocalPieces()
    fetch_checkpoint(link, newest(plane), tmp_path / "there-1", shelf)
    with (tmp_path / "there-1/deep/big").open("r+b") as file:
        file.seek(10_000)
        file.write(b"changed")
    (tmp_path / "there-1/deep/other").unlink()
    fetch_checkpoint(link, newest(plane), tmp_path / "there-2", shelf)
    assert content_of(tmp_path / "there-2") == content_of(source)


@pytest.mark.parametrize(
    "faults",
    [
        [Fault("PUT ", 0, times=4)],
        [Fault("PUT ", 503, times=12), Fault("POST .*/checkpoints$", 503, times=3)],
        [Fault("PUT ", 403, times=2), Fault("POST .*/commit$", 0, times=2)],
    ],
    ids=["the connection breaks", "the store and then the server are away", "links expire, answers are lost"],
)
def test_an_upload_goes_on_where_it_stopped(plane: Plane, link: Fetcher, tmp_path: Path, faults: list[Fault]) -> None:
    """No piece that arrived is sent a second time, and the checkpoint is committed once all are there."""
    source = fill(tmp_path / "source", sample(3, big=100_000, small=100))
    plane.faults += [Fault(one.pattern, one.status, times=one.times) for one in faults]
    said = Sending(link, tmp_path).send(source, 1)
    assert "is stored" in said
    stored = [line.partition("?")[0] for line in plane.stored_lines]
    assert len(stored) == len(set(stored)) == len(pieces_of(plane.committed("run_1")[-1].files))


def test_a_server_that_starts_again_in_the_middle_loses_nothing(plane: Plane, link: Fetcher, tmp_path: Path) -> None:
    """It is gone for a while during the upload; what was stored before is not sent again."""
    source = fill(tmp_path / "source", sample(4, big=200_000))
    sending = Sending(link, tmp_path)
    result: list[str] = []
    plane.hold_after = 5  # pieces; the next ones wait until the server has gone
    thread = threading.Thread(target=lambda: result.append(sending.send(source, 1)))
    thread.start()
    plane.wait(lambda: len(plane.stored_lines) >= 5, "five pieces")
    plane.faults.append(Fault(".*", 0, times=10))  # nobody answers
    plane.release.set()
    thread.join()
    assert "is stored" in result[0]
    stored = [line.partition("?")[0] for line in plane.stored_lines]
    assert len(stored) == len(set(stored)) == 25


def test_a_file_that_shrinks_while_it_is_sent_is_given_up(plane: Plane, link: Fetcher, tmp_path: Path) -> None:
    """What was hashed is not there any more: told, and nothing is committed."""
    source = fill(tmp_path / "source", sample(5, big=100_000))
    saved = cut(Fence(source, None), source, ["deep/big"], link.gone)
    os.truncate(source / "deep/big", 50_000)
    with pytest.raises(Changed):
        transfer.store(
            link.transport,
            saved.contents,
            lambda: {sha256: f"{plane.url}/objects/{sha256}?for=PUT&n=1" for sha256 in saved.contents},
            lambda: None,
            link.gone,
        )


def test_fetching_ends_when_it_is_not_wanted(plane: Plane, link: Fetcher, tmp_path: Path) -> None:
    """A store that never answers well does not hold a run that was given up."""
    Sending(link, tmp_path).send(fill(tmp_path / "source", sample(6, big=10_000)), 1)
    plane.faults.append(Fault("GET ", 503))
    threading.Timer(0.1, link.gone.set).start()
    with pytest.raises(Aborted):
        fetch_checkpoint(link, newest(plane), tmp_path / "there")


@pytest.mark.parametrize("where", [0, 4_000, 8_191])
def test_one_changed_byte_of_any_piece_is_found(plane: Plane, link: Fetcher, tmp_path: Path, where: int) -> None:
    """By its hash, and told with the piece's name."""
    Sending(link, tmp_path).send(fill(tmp_path / "source", sample(7, big=24_576)), 1)
    manifest = newest(plane)
    for sha256 in manifest.pieces():
        whole = plane.objects[sha256]
        plane.objects[sha256] = whole[:where] + bytes([whole[where] ^ 1]) + whole[where + 1 :]
        with pytest.raises(Corrupt, match="big: sha256 is") as caught:
            fetch_checkpoint(link, manifest, tmp_path / sha256)
        assert caught.value.sha256 == sha256
        plane.objects[sha256] = whole


def test_paths_that_lead_out_are_never_written(link: Fetcher, tmp_path: Path) -> None:
    """Whatever the server says."""
    for path in ("../out", "/out", "a/../../out"):
        told: dict[str, Any] = {"path": path, "size_bytes": 0, "sha256": None, "pieces": []}
        manifest = Manifest.from_wire({"checkpoint_id": "c", "step": 1, "files": [told]})
        with pytest.raises(Corrupt, match="leads out"):
            fetch_checkpoint(link, manifest, tmp_path / "into")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_noticed_before_anything_is_fetched(
    plane: Plane, link: Fetcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room is taken first."""
    Sending(link, tmp_path).send(fill(tmp_path / "source", sample(8, big=30_000)), 1)
    plane.requests.clear()

    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        fetch_checkpoint(link, newest(plane), tmp_path / "there")
    assert not [line for line in plane.requests if line.startswith("GET")]


def test_a_machine_without_room_is_to_blame_itself(plane: Plane, start_agent: Start, tmp_path: Path) -> None:
    """A checkpoint that this disk cannot hold: the run ends as the machine's fault, so that another one is tried."""
    huge = SavedFile(path="huge", size_bytes=2**52, sha256=plane.put(b"x"))
    start = ResumeFrom(checkpoint_id="ckp_9", step=40, files=[huge])
    run = desired(plane, "print('ran')", resume=start)
    plane.want(run)
    start_agent()
    ended = plane.wait_exit(run.run_id)
    assert ended.machine_fault
    assert "this machine failed" in (ended.environment_error or "")
