"""The end of a rehearsal waits for every machine that was rented for its job, also for one that never ran it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import allpass
from allpass.wire.jobs import Node
from app.smoke.ending import end_everything
from app.smoke.rehearsing import Rehearsal
from app.smoke.report import Report
from app.smoke.spending import Spending

JOB = "job_1"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def node(name: str, state: str, *, rented_for: str | None = JOB) -> Node:
    return Node(
        id=name, provider="vast", tier="marketplace", state=state, gpu_type="T4", gpu_count=1, gpu_memory_bytes=1 << 34,
        region="here", price_per_hour=1, job_ids=[], rented_for_job_id=rented_for, requested_at=NOW, ready_at=None,
        ended_at=None, cost=0,
    )  # fmt: skip


class Service:
    """A cancelled job that never ran, and what is listed at one look after the other; the last is repeated."""

    def __init__(self, *looks: list[Node]) -> None:
        self._looks = iter(looks)
        self._now: list[Node] = []
        self.looks = 0

    def get_job(self, job_id: str) -> Any:
        return SimpleNamespace(id=job_id, status="cancelled")

    def timeline(self, job_id: str) -> Any:
        return SimpleNamespace(stays=[])

    def nodes(self, *, include_gone: bool) -> Iterator[Node]:
        assert include_gone
        self.looks += 1
        self._now = next(self._looks, self._now)
        return iter(self._now)


def rehearsal(service: Service) -> Rehearsal:
    made = Rehearsal(
        cast(allpass.Client, service), cast(Spending, None), cast(Report, SimpleNamespace(note=lambda *_: None)),
        lambda _: None,
    )  # fmt: skip
    made.job_id = JOB
    return made


def test_a_machine_that_never_ran_the_job_is_waited_for() -> None:
    played = rehearsal(Service([node("a", "booting")], [node("a", "terminating")], [node("a", "terminated")]))
    assert end_everything(played, poll_s=0) == []
    assert set(played.nodes) == {"a"}


def test_a_machine_that_is_rented_just_after_the_first_look_is_waited_for_too() -> None:
    service = Service([], [node("a", "requested")], [node("a", "terminated")])
    played = rehearsal(service)
    assert end_everything(played, poll_s=0) == []
    assert set(played.nodes) == {"a"}
    assert service.looks == 4, "two quiet looks one after the other"


def test_one_that_stays_is_named_and_those_of_others_are_not() -> None:
    played = rehearsal(Service([node("mine", "booting"), node("theirs", "booting", rented_for="job_2")]))
    assert end_everything(played, within_s=0, poll_s=0) == ["mine"]
