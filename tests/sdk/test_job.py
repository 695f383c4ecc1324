"""Handles: waiting, following, downloading and comparing, across lost connections."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from allpass import errors
from allpass.client import Client
from allpass.download import place_for
from tests.sdk.conftest import Waits
from tests.sdk.fake_service import FakeService

BROKEN = httpx.ConnectError("connection refused")


def at_the_third_wait(service: FakeService, job_id: str, then: Callable[[], None]) -> None:
    waits = iter(range(100))

    def on_wait(asked: str) -> None:
        if asked == job_id and next(waits) == 2:
            then()

    service.on_wait = on_wait


def test_wait_returns_the_ended_job(service: FakeService, client: Client, waits: Waits) -> None:
    """It ends when the job ends, without asking more often than `poll_s`, and reports the last state."""
    job = service.add_job(status="running")

    def end() -> None:
        service.add_event(job["id"], "succeeded")
        job["status"] = "succeeded"

    at_the_third_wait(service, job["id"], end)
    ended = client.job(job["id"]).wait(poll_s=2.0)
    assert (ended.status, client.job(job["id"]).status()) == ("succeeded", "succeeded")
    assert waits.slept == [2.0, 2.0, 2.0]


def test_wait_gives_up_in_time(service: FakeService, client: Client, waits: Waits) -> None:
    """After the timeout it is a WaitTimeout, which is a TimeoutError too, and the job is left alone."""
    job = service.add_job(status="running")
    with pytest.raises(TimeoutError, match="still running after 5 s"):
        client.job(job["id"]).wait(timedelta(seconds=5))
    assert waits.now == pytest.approx(5)
    assert job["status"] == "running"


def test_wait_lives_through_an_outage(service: FakeService, client: Client, waits: Waits) -> None:
    """A server that is away for a minute does not end an hour of waiting; one that is away for long does."""
    job = service.add_job(status="running")
    handle = client.job(job["id"])
    service.faults = [BROKEN] * 40
    at_the_third_wait(service, job["id"], lambda: job.update(status="succeeded"))
    assert handle.wait().status == "succeeded"
    job["status"] = "running"
    service.faults = [BROKEN] * 100_000
    before = waits.now
    with pytest.raises(errors.ConnectionFailed):
        handle.wait()
    assert 300 <= waits.now - before < 330


def test_wait_can_insist_on_success(service: FakeService, client: Client) -> None:
    """With check=True a failed job is an exception that carries the job and its reason."""
    job = service.add_job(status="failed", message="exit code 1")
    assert client.job(job["id"]).wait().status == "failed"
    with pytest.raises(errors.JobFailed, match="failed: exit code 1") as failed:
        client.job(job["id"]).wait(check=True)
    assert failed.value.job.id == job["id"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.sampled_from("ab\n\r "), min_size=1, max_size=12), max_size=12))
def test_log_lines_do_not_depend_on_how_they_were_cut(service: FakeService, client: Client, pieces: list[str]) -> None:
    """However the log was split into pieces, the lines are those of the whole text."""
    job = service.add_job(status="succeeded")
    service.logs[job["id"]] = pieces
    whole = "".join(pieces)
    expected = whole.split("\n")[:-1] + ([whole.split("\n")[-1]] if whole.split("\n")[-1] else [])
    assert list(client.job(job["id"]).logs()) == expected


def test_following_a_log_never_loses_or_repeats(service: FakeService, client: Client) -> None:
    """Across refused connections and gateway errors each piece comes once, up to the job's end."""
    job = service.add_job(status="running")
    service.logs[job["id"]] = ["one\n", "two\n"]
    service.faults = [None, BROKEN, BROKEN, None, httpx.Response(503), *[BROKEN] * 12]

    def end() -> None:
        service.logs[job["id"]].append("three\n")
        job["status"] = "succeeded"

    at_the_third_wait(service, job["id"], end)
    assert list(client.job(job["id"]).logs(follow=True)) == ["one", "two", "three"]


def test_a_log_can_be_resumed_by_another_process(service: FakeService, client: Client) -> None:
    """`next_position` of the last piece read goes on exactly after it."""
    job = service.add_job(status="succeeded")
    service.logs[job["id"]] = ["one\n", "two\n", "three\n"]
    first = next(client.log_pages(job["id"]))
    rest = [one.text for one in client.log_pages(job["id"], position=first.next_position)]
    assert (first.text, rest) == ("one\n", ["two\n", "three\n"])


def test_reading_an_unfinished_log_ends_at_what_is_there(service: FakeService, client: Client) -> None:
    """Without `follow`, a running job's log is read up to now."""
    job = service.add_job(status="running")
    service.logs[job["id"]] = ["one\n"]
    assert list(client.job(job["id"]).logs()) == ["one"]


def test_events_come_in_order_and_following_ends_with_the_job(service: FakeService, client: Client) -> None:
    """Pages are walked by position; the last event is still delivered after the job has ended."""
    job = service.add_job(status="running")
    for number in range(7):
        service.add_event(job["id"], f"e{number}")

    def end() -> None:
        job["status"] = "failed"
        service.add_event(job["id"], "last")

    at_the_third_wait(service, job["id"], end)
    handle = client.job(job["id"])
    assert [one.position for one in handle.events()] == list(range(1, 8))
    assert [one.kind for one in handle.events(follow=True)][-1] == "last"


def test_artifacts_are_verified_and_whole(service: FakeService, client: Client, tmp_path: Path) -> None:
    """Files arrive in their folders; a second download fetches only what has changed."""
    job = service.add_job(status="succeeded")
    for number in range(5):
        service.add_artifact(job["id"], f"deep/{number}.bin", bytes([number]) * 1000)
    done = client.job(job["id"]).download(tmp_path)
    assert [one.path.relative_to(tmp_path.resolve()).as_posix() for one in done] == [f"deep/{n}.bin" for n in range(5)]
    (tmp_path / "deep/2.bin").write_bytes(b"changed")
    again = client.job(job["id"]).download(tmp_path)
    assert [one.reused for one in again] == [True, True, False, True, True]
    assert (tmp_path / "deep/2.bin").read_bytes() == b"\x02" * 1000


@pytest.mark.parametrize("content", [b"weightz", b"weight", b"weights and more"])
def test_bytes_with_another_hash_leave_nothing_behind(
    service: FakeService, client: Client, tmp_path: Path, content: bytes
) -> None:
    """Corrupt, short and long answers are StorageErrors; what was there before stays as it was."""
    job = service.add_job(status="succeeded")
    sha256 = service.add_artifact(job["id"], "model.bin", b"weights")
    (tmp_path / "model.bin").write_bytes(b"old one")
    service.faults = [None, httpx.Response(200, content=content)]
    with pytest.raises(errors.StorageError, match=r"^model\.bin"):
        client.job(job["id"]).download(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["model.bin"]
    assert (tmp_path / "model.bin").read_bytes() == b"old one"
    assert hashlib.sha256(b"weights").hexdigest() == sha256


def test_links_that_expired_are_asked_for_again(service: FakeService, client: Client, tmp_path: Path) -> None:
    """One refusal by the store is answered with fresh links; a second one is told."""
    job = service.add_job(status="succeeded")
    service.add_artifact(job["id"], "model.bin", b"weights")
    service.expired_links = 1
    assert len(client.job(job["id"]).download(tmp_path)) == 1
    (tmp_path / "model.bin").unlink()
    service.expired_links = 2
    with pytest.raises(errors.StorageError, match="HTTP 403"):
        client.job(job["id"]).download(tmp_path)


@pytest.mark.parametrize(
    "path", ["../x", "a/../../x", "/etc/passwd", "C:x", "a\\..\\x", "", ".", "a/..", "x\0y", "link/x"]
)
def test_names_never_lead_out_of_the_folder(tmp_path: Path, path: str) -> None:
    """Whatever a server calls its files, nothing outside the folder is written."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/link").symlink_to(tmp_path)
    with pytest.raises(errors.StorageError):
        place_for(path, tmp_path / "in")


@given(st.lists(st.text(max_size=8), max_size=5).map("/".join))
def test_any_accepted_name_is_inside(path: str) -> None:
    """A place is given only below the folder."""
    root = Path("/nonexistent/root")
    try:
        place = place_for(path, root)
    except errors.StorageError:
        return
    assert root in place.parents
