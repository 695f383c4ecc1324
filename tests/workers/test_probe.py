"""How fast a machine downloads is measured once, within bounds, and nothing waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from app.core.downloads import download_mbps
from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import Fault, Plane
from workers.agent import probe
from workers.agent.errors import Unreachable
from workers.agent.probe import Probe

Start = Callable[..., AgentProcess]
MB = 1_000_000


class Link:
    """An answer that comes with so many bytes a second, by a clock of its own."""

    def __init__(self, bytes_per_s: float, whole: int, clock: Clock, slow_start_s: float = 0.0) -> None:
        self._bytes_per_s, self._left, self._clock, self._slow_start_s = bytes_per_s, whole, clock, slow_start_s
        self.read_bytes = 0

    def read(self, amount: int) -> bytes:
        block = min(amount, self._left)
        self._left -= block
        self._clock.now_s += block / self._bytes_per_s + self._slow_start_s
        self._slow_start_s = 0.0
        self.read_bytes += block
        return bytes(block)


class Clock:
    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


class Api:
    def __init__(self, link: Link | None) -> None:
        self._link = link
        self.asked = 0

    @contextmanager
    def probe(self, size_bytes: int, *, timeout_s: float) -> Iterator[Any]:
        self.asked = size_bytes
        if self._link is None:
            raise Unreachable("no")
        yield self._link


def measured(
    monkeypatch: pytest.MonkeyPatch, bytes_per_s: float, *, whole: int = 8 * MB, slow_start_s: float = 0.0
) -> tuple[float | None, Link, list[str]]:
    clock, words = Clock(), []  # type: tuple[Clock, list[str]]
    monkeypatch.setattr(probe, "time", clock)
    link = Link(bytes_per_s, whole, clock, slow_start_s)
    asks = Probe(8 * MB, words.append)
    asks._work(Api(link))  # type: ignore[arg-type]
    return download_mbps(asks.facts()), link, words


@pytest.mark.parametrize("mbps", [2.0, 50.0, 900.0])
def test_the_speed_of_the_link_is_told(monkeypatch: pytest.MonkeyPatch, mbps: float) -> None:
    """In facts that the service reads, and in words."""
    told, link, words = measured(monkeypatch, mbps * MB / 8)
    assert told == pytest.approx(mbps, rel=0.02)
    assert len(words) == 1
    assert "Mbit/s from this service" in words[0]
    assert link.read_bytes <= 8 * MB


def test_a_slow_beginning_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection from far away takes a while to get fast."""
    told, _, _ = measured(monkeypatch, 100 * MB / 8, slow_start_s=2.0)
    assert told == pytest.approx(100, rel=0.02)


def test_a_slow_link_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """After some seconds, with what came until then: the bytes may have to be paid for."""
    told, link, _ = measured(monkeypatch, 20_000)
    assert told == pytest.approx(0.16, rel=0.02)
    assert link.read_bytes < 8 * MB / 10


def test_an_answer_that_is_cut_off_counts_as_far_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """And an empty one tells nothing."""
    told, _, _ = measured(monkeypatch, 80 * MB / 8, whole=4 * MB)
    assert told == pytest.approx(80, rel=0.02)
    assert measured(monkeypatch, 80 * MB / 8, whole=0)[0] is None


def test_a_service_without_a_probe_is_not_measured() -> None:
    """One of the release before, or one that has too much to do."""
    words: list[str] = []
    asks = Probe(8 * MB, words.append)
    asks._work(Api(None))  # type: ignore[arg-type]
    assert (asks.facts(), words) == ({}, [])


def test_an_agent_measures_its_link_as_it_joins(plane: Plane, start_agent: Start) -> None:
    """Once, and tells it."""
    start_agent(ALLPASS_AGENT_PROBE_BYTES=str(2 * MB))
    plane.wait(lambda: any("download" in sync.host for sync in plane.syncs), "a measured link")
    told = next(sync.host for sync in plane.syncs if "download" in sync.host)
    assert download_mbps(told) is not None
    assert any(
        notice["kind"] == "node_download_measured" for sync in plane.syncs for notice in sync.host.get("notices", [])
    )
    assert sum("/probe" in line for line in plane.requests) == 1


@pytest.mark.parametrize("status", [0, 404, 429, 500])
def test_a_probe_that_fails_keeps_nothing_from_running(plane: Plane, start_agent: Start, status: int) -> None:
    """It is a luxury."""
    plane.faults.append(Fault("/probe", status))
    start_agent(ALLPASS_AGENT_PROBE_BYTES=str(MB))
    run = desired(plane, "print('ok')")
    plane.want(run)
    assert plane.wait_exit(run.run_id).exit_code == 0
    assert not any("download" in sync.host for sync in plane.syncs)


def test_an_agent_that_was_not_asked_does_not_measure(plane: Plane, start_agent: Start) -> None:
    """What it reads may have to be paid for."""
    start_agent()
    run = desired(plane, "print('ok')")
    plane.want(run)
    plane.wait_exit(run.run_id)
    assert not any("/probe" in line for line in plane.requests)
