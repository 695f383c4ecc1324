"""Files of checkpoints that are stored in pieces, put together on this disk."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from allpass.client import Client
from allpass.errors import InvalidInput, StorageError
from allpass.submission import job_request
from allpass.wire.template import Template
from tests.sdk.fake_service import FakeService

HEAD, TAIL, PACK = b"h" * 1000, b"t" * 10, b"abcdef"


@pytest.fixture
def job_id(service: FakeService) -> str:
    """A job with a large file, two small ones that share a piece, an empty one, and one that is whole."""
    job_id: str = service.add_job(status="succeeded")["id"]
    service.add_in_pieces(job_id, "big", [(HEAD, 0, 1000), (HEAD, 0, 1000), (TAIL, 0, 10)])
    service.add_in_pieces(job_id, "empty", [])
    service.add_in_pieces(job_id, "small/a", [(PACK, 0, 2)])
    service.add_in_pieces(job_id, "small/b", [(PACK, 2, 4)])
    service.add_artifact(job_id, "whole", b"whole")
    return job_id


EXPECTED = {"big": HEAD + HEAD + TAIL, "empty": b"", "small/a": b"ab", "small/b": b"cdef", "whole": b"whole"}


def test_files_in_pieces_arrive_whole(client: Client, service: FakeService, job_id: str, tmp_path: Path) -> None:
    """Each with its own hash told; a piece that several share is fetched once; nothing else is left in the folder."""
    found = list(client.download(job_id, tmp_path))
    there = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert there == EXPECTED
    assert {one.path.name: one.sha256 for one in found} == {
        Path(name).name: hashlib.sha256(data).hexdigest() for name, data in EXPECTED.items()
    }
    pack = hashlib.sha256(PACK).hexdigest()
    assert len([one for one in service.requests if one.url.path.endswith(pack)]) == 1


def test_what_is_there_is_not_fetched_again(client: Client, job_id: str, tmp_path: Path) -> None:
    """A file whose pieces are its own is recognised; one that shares a piece is fetched anew."""
    list(client.download(job_id, tmp_path))
    (tmp_path / "small/b").write_bytes(b"XXXX")
    again = {one.path.name: one.reused for one in client.download(job_id, tmp_path)}
    assert again == {"big": True, "empty": True, "a": False, "b": False, "whole": True}
    assert (tmp_path / "small/b").read_bytes() == b"cdef"


def test_links_that_expire_on_the_way_are_asked_for_again(
    client: Client, service: FakeService, job_id: str, tmp_path: Path
) -> None:
    """For a piece as for a whole file."""
    service.expired_links = 1
    list(client.download(job_id, tmp_path))
    assert (tmp_path / "big").read_bytes() == EXPECTED["big"]


def test_a_piece_with_other_bytes_is_refused(client: Client, service: FakeService, job_id: str, tmp_path: Path) -> None:
    """The file does not appear, nor anything half-made."""
    list(client.download(job_id, tmp_path / "first"))
    service.objects[hashlib.sha256(TAIL).hexdigest()] = b"T" * 10
    with pytest.raises(StorageError, match="big: a piece of it arrived without its sha256"):
        list(client.download(job_id, tmp_path / "second"))
    assert [path for path in (tmp_path / "second").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("name", ["", "400", "ckpt_1:3", "job_1:", "job_1:x", "job_1:-1", 3])
def test_a_checkpoint_is_named_by_job_and_step(name: str) -> None:
    """Anything else is refused before it travels, with the form that is wanted."""
    with pytest.raises(InvalidInput, match="is not JOB:STEP"):
        job_request(
            "app_1", 1, name=None, template=Template(), parameters=None, soft_deadline=None, from_checkpoint=name
        )


@pytest.mark.parametrize("name", ["job_01JD9K3W0A4T6Z8X2C5V:400", "job_01JD9K3W0A4T6Z8X2C5V"])
def test_a_job_may_begin_with_another_jobs_checkpoint(name: str) -> None:
    """The request says so; without a step, the newest one is meant."""
    request = job_request(
        "app_1", 1, name=None, template=Template(), parameters=None, soft_deadline=None, from_checkpoint=name
    )
    assert request.from_checkpoint == name
