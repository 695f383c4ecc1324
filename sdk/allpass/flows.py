"""What takes more than one request, as flows: both clients perform the same ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from allpass import calls
from allpass.bundle import Bundle
from allpass.calls import Call
from allpass.download import Assembly, FileSink, PieceSink, Sink, file_sha256
from allpass.errors import InvalidInput, StorageError, WaitTimeout
from allpass.http import Answer, Emit, Flow, ItemFlow, Pause, Protocol, Send, Store
from allpass.wire.apps import BundleUploadRequest
from allpass.wire.base import Page
from allpass.wire.jobs import TERMINAL_STATUSES, FileLink, Job, LogPage, MetricPoint

Item = TypeVar("Item", bound=BaseModel)
LONG_POLL_S = 25
LEAST_POINTS = 4  # of a curve: first, last, lowest, highest
LINK_EXPIRED = frozenset({400, 401, 403})
Clock = Callable[[], float]


@dataclass(frozen=True)
class Downloaded:
    """One file that is on this disk now. `reused`: it was there already with the same content."""

    path: Path
    sha256: str
    size_bytes: int
    reused: bool


def every(protocol: Protocol, page_of: Callable[[str | None], Call[Page[Item]]]) -> ItemFlow[Item]:
    """Each item of a list, page after page."""
    cursor: str | None = None
    while True:
        page = yield from protocol.exchange(page_of(cursor))
        for item in page.data:
            yield Emit(item)
        if not page.next_cursor or page.next_cursor == cursor:
            return
        cursor = page.next_cursor


def upload(protocol: Protocol, bundle: Bundle, *, key: str) -> Flow[bool]:
    """Make sure that the service has the bundle. Whether bytes were sent: False if it had them already."""
    request = BundleUploadRequest(sha256=bundle.sha256, size_bytes=bundle.size_bytes)
    place = yield from protocol.exchange(calls.put_bundle(request, key=key))
    if place.upload_url is None:
        return False
    headers = {"Content-Type": "application/octet-stream"}  # no credentials: the signature is in the URL
    send = Send("PUT", place.upload_url, headers, bundle.content, max(protocol.timeout_s, 60.0))
    answer = yield from protocol.attempts(send, "the object store")
    if answer.status >= 300 and answer.status != 412:  # 412: another client stored the same content meanwhile
        raise StorageError(
            f"the code was not stored: HTTP {answer.status} {_excerpt(answer)}", http_status=answer.status
        )
    return True


def log_pages(protocol: Protocol, job_id: str, position: str, follow: bool, clock: Clock) -> ItemFlow[LogPage]:
    """Pieces of the log from `position` on, each exactly once, also across lost connections."""
    while True:
        started = clock()
        wait_s = LONG_POLL_S if follow else 0
        page = yield from read_page(protocol, calls.get_log(job_id, position=position, wait_s=wait_s), follow, clock)
        moved = page.next_position != position
        position = page.next_position
        if page.text:
            yield Emit(page)
        if page.complete or (not follow and (not page.text or not moved)):
            return
        if not page.text:
            yield from at_least(1.0, started, clock)


def metrics(protocol: Protocol, job_id: str) -> ItemFlow[MetricPoint]:
    """Every reported point, by step."""
    after: int | None = None
    while True:
        page = yield from protocol.exchange(calls.get_metrics(job_id, after=after))
        for point in page.data:
            yield Emit(point)
        if not page.data or page.data[-1].step == after:
            return
        after = page.data[-1].step


def last_metrics(protocol: Protocol, job_id: str) -> Flow[dict[str, float]]:
    """The last value of each metric: one request, or a walk through all points at a server that cannot thin them."""
    values: dict[str, float] = {}
    page = yield from protocol.exchange(calls.get_metric_curves(job_id, max_points=LEAST_POINTS, names=None))
    while True:
        for point in page.data:
            values.update(point.values)
        if not page.next_cursor or not page.data:
            return values
        page = yield from protocol.exchange(calls.get_metrics(job_id, after=page.data[-1].step))


def wait(
    protocol: Protocol,
    job_id: str,
    timeout_s: float | None,
    poll_s: float,
    clock: Clock,
    until: Callable[[Job], bool] | None = None,
) -> Flow[Job]:
    """The job once it has ended, or `until` holds. Its events wake us, so the end is seen at once; asks at most every
    `poll_s`, and with `until` at least every second: that a step is reached is no event."""
    if poll_s <= 0:
        raise InvalidInput(f"poll_s: {poll_s} is not a positive number of seconds", hint="poll_s=2.0")
    started = clock()
    position = 0
    while True:
        job = yield from protocol.patiently(calls.get_job(job_id), clock)
        if job.status in TERMINAL_STATUSES or (until is not None and until(job)):
            return job
        left_s = float("inf") if timeout_s is None else started + timeout_s - clock()
        if left_s <= 0:
            raise WaitTimeout(f"{job_id} is still {job.status} after {timeout_s:g} s; it goes on")
        asked = clock()
        if left_s >= 1:
            hold_s = int(min(LONG_POLL_S if until is None else 1, left_s))
            call = calls.get_events(job_id, after=position, wait_s=hold_s)
            page = yield from protocol.patiently(call, clock)
            position = max([position, *(event.position for event in page.data)])
            if len(page.data) >= calls.PAGE_LIMIT:
                continue  # the past, not news: read on without a pause
        yield from at_least(min(poll_s, left_s), asked, clock)


def download(
    protocol: Protocol,
    links_of: Callable[[str | None], Call[Page[FileLink]]],
    directory: Path,
    only: Callable[[FileLink], bool] | None = None,
    begin: Callable[[int], None] | None = None,
) -> ItemFlow[Downloaded]:
    """Every file behind `links_of`, verified. Links that expire on the way are asked for again. `begin` is told how
    many bytes all of them have, before the first comes."""
    links = yield from _all_links(protocol, links_of)
    shared: dict[str, bytes] = {}
    wanted = [one for one in links if only is None or only(one)]
    if begin is not None:
        begin(sum(one.size_bytes for one in wanted))
    for link in wanted:
        if link.sha256 is None or link.url is None:
            yield Emit((yield from _download_pieces(protocol, links_of, link, directory, shared)))
            continue
        sink = FileSink(link, link.sha256, directory)
        reused = sink.is_there_already()
        if not reused:
            yield from _fetch_freshly(protocol, links_of, link.path, link.sha256, link.url, sink)
        yield Emit(Downloaded(sink.target, link.sha256, link.size_bytes, reused))


def _download_pieces(
    protocol: Protocol,
    links_of: Callable[[str | None], Call[Page[FileLink]]],
    link: FileLink,
    directory: Path,
    shared: dict[str, bytes],
) -> Flow[Downloaded]:
    """`shared`: the last piece that more than one file is in. Files come by path, and so do those that share one."""
    assembly = Assembly(link, directory)
    if assembly.is_there_already():
        return Downloaded(assembly.target, file_sha256(assembly.target), link.size_bytes, reused=True)
    assembly.begin()
    try:
        for piece in link.pieces:
            if piece.sha256 in shared:
                assembly.take(piece, shared[piece.sha256])
                continue
            sink = PieceSink(assembly, piece)
            yield from _fetch_freshly(protocol, links_of, link.path, piece.sha256, piece.url, sink)
            if sink.content:
                shared.clear()
                shared[piece.sha256] = sink.content
        return Downloaded(assembly.target, assembly.commit(), link.size_bytes, reused=False)
    finally:
        assembly.discard()


def _fetch_freshly(
    protocol: Protocol,
    links_of: Callable[[str | None], Call[Page[FileLink]]],
    path: str,
    sha256: str,
    url: str,
    sink: Sink,
) -> Flow[None]:
    """With a new link when the first one has expired. Raises StorageError."""
    answer = yield from _fetch(protocol, sink, url)
    if answer.status in LINK_EXPIRED:
        fresh = yield from _all_links(protocol, links_of)
        again = next((found for one in fresh if one.path == path and (found := _url_of(one, sha256))), None)
        answer = (yield from _fetch(protocol, sink, again)) if again else answer
    if answer.status != 200:
        raise StorageError(
            f"{path}: was not downloaded: HTTP {answer.status} {_excerpt(answer)}", http_status=answer.status
        )


def _url_of(link: FileLink, sha256: str) -> str | None:
    if link.sha256 == sha256:
        return link.url
    return next((piece.url for piece in link.pieces if piece.sha256 == sha256), None)


def _all_links(protocol: Protocol, links_of: Callable[[str | None], Call[Page[FileLink]]]) -> Flow[list[FileLink]]:
    links: list[FileLink] = []
    cursor: str | None = None
    while True:
        page = yield from protocol.exchange(links_of(cursor))
        links.extend(page.data)
        if not page.next_cursor or page.next_cursor == cursor:
            return links
        cursor = page.next_cursor


def _fetch(protocol: Protocol, sink: Sink, url: str) -> Flow[Answer]:
    return (yield from protocol.attempts(Store(url, sink, protocol.timeout_s), "the object store"))


def read_page(protocol: Protocol, call: Call[calls.Reply], follow: bool, clock: Clock) -> Flow[calls.Reply]:
    """One page; who follows waits out an outage."""
    if follow:
        return (yield from protocol.patiently(call, clock))
    return (yield from protocol.exchange(call))


def at_least(seconds: float, since: float, clock: Clock) -> Flow[None]:
    """Wait until `seconds` have passed since then: a server that does not hold requests open is not hammered."""
    left_s = since + seconds - clock()
    if left_s > 0:
        yield Pause(left_s)


def _excerpt(answer: Answer) -> str:
    return answer.content[:200].decode("utf-8", "replace").strip()
