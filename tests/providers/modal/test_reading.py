"""Sandboxes, as Modal shows them, as machines of ours."""

from __future__ import annotations

import pytest
from modal_proto import api_pb2

from app.core.model.money import Money
from app.ports.provider import MachineStatus
from providers.conformance.suite import new_label
from providers.modal.reading import from_listing, from_result, named

LABEL, OTHER = new_label(), new_label()
Result = api_pb2.GenericResult


def tags(**values: str) -> list[api_pb2.SandboxTag]:
    return [api_pb2.SandboxTag(tag_name=name.replace("_", "-"), tag_value=value) for name, value in values.items()]


def shown(**fields: object) -> api_pb2.SandboxInfo:
    given = {"id": "sb-1", "created_at": 1_795_000_000.25, "name": LABEL, "tags": tags(allpass_price="1256976")}
    return api_pb2.SandboxInfo(**(given | fields))


def test_a_sandbox_waits_starts_runs_and_ends() -> None:
    """Each stage of a sandbox is told apart, and its bill runs from its task's start to the end of it."""
    waits = from_listing(shown())
    assert (waits.status, waits.billed_from_ms, waits.detail) == (MachineStatus.BOOTING, None, "waits for a machine")
    starts = from_listing(shown(task_info=api_pb2.TaskInfo(id="ta-1")))
    assert (starts.status, starts.detail) == (MachineStatus.BOOTING, "its container starts")
    runs = from_listing(shown(task_info=api_pb2.TaskInfo(id="ta-1", started_at=1_795_000_004.001)))
    assert (runs.status, runs.billed_from_ms, runs.billed_to_ms) == (MachineStatus.RUNNING, 1_795_000_004_001, None)
    over = api_pb2.TaskInfo(
        id="ta-1",
        started_at=1_795_000_004.001,
        finished_at=1_795_000_009.5,
        result=Result(status=Result.GENERIC_STATUS_TERMINATED),
    )
    ended = from_listing(shown(task_info=over))
    assert (ended.status, ended.billed_to_ms) == (MachineStatus.ENDED, 1_795_000_009_500)
    assert (ended.label, ended.price_per_hour, ended.created_ms) == (LABEL, Money(1_256_976), 1_795_000_000_250)


def test_one_that_never_ran_was_never_billed() -> None:
    """A sandbox that ended while it waited for a machine has no billed times."""
    over = api_pb2.TaskInfo(finished_at=1_795_000_009.5, result=Result(status=Result.GENERIC_STATUS_TERMINATED))
    ended = from_listing(shown(task_info=over))
    assert (ended.billed_from_ms, ended.billed_to_ms) == (None, None)


@pytest.mark.parametrize(
    ("name", "node_tag", "label"),
    [(LABEL, LABEL, LABEL), (LABEL, OTHER, LABEL), ("", LABEL, LABEL), ("web", "web", None), ("", "", None)],
    ids=["both", "they differ", "tag only", "not ours", "neither"],
)
def test_the_name_counts_before_the_tags(name: str, node_tag: str, label: str | None) -> None:
    """The name cannot be changed after the create call, tags can; what is neither a node's is not ours."""
    assert named(name, tags(allpass_node=node_tag)).label == label


@pytest.mark.parametrize("price", ["", "-1", "1.5", "²"])
def test_a_tag_that_holds_nonsense_is_no_price(price: str) -> None:
    """A tag that somebody has rewritten does not stop a listing."""
    assert named(LABEL, tags(allpass_price=price)).price_per_hour == Money(0)


def test_without_a_listing_it_is_told_what_is_known() -> None:
    """A sandbox that only answers for itself is there or over, with the price and the time from its tags."""
    who = named("", tags(allpass_node=LABEL, allpass_price="5", allpass_asked="77"))
    there = from_result("sb-1", who, Result())
    assert (there.status, there.created_ms, there.price_per_hour) == (MachineStatus.BOOTING, 77, Money(5))
    over = from_result("sb-1", who, Result(status=Result.GENERIC_STATUS_INTERNAL_FAILURE, exitcode=0))
    assert (over.status, over.detail) == (MachineStatus.ENDED, "a failure inside Modal")
