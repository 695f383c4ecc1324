"""Two jobs side by side as one: what binds either, binds the view of both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.core.merging.joined import joined
from app.core.merging.partners import modes_of, refusal, refusal_together
from app.core.model.job import Affinity, Caps, JobKind, Resources
from app.core.model.merge import MergeMode
from app.core.model.money import Money
from app.core.model.snapshot import JobView
from tests.core.merging.mergeable import HOUR_MS, MINUTE_MS, NOW_MS, merge_of, mergeable

BOTH = frozenset(MergeMode)


def pair(one: dict[str, Any], other: dict[str, Any], **merge: Any) -> JobView:
    open_ = merge_of("job_a", "job_b", MergeMode.TOGETHER, **merge)
    return joined(mergeable("job_a", **one), mergeable("job_b", **other), open_)


def test_the_view_of_both() -> None:
    """The earlier deadline, the GPUs of the merge, the larger of what each needs, and the time of both less the gain:
    18 and 36 minutes on two GPUs, a half quicker, are 36."""
    one = {"resources": Resources(gpu_memory_bytes_min=5, cpus_min=1, memory_bytes_min=9), "not_before_ms": 3}
    other = {
        "resources": Resources(
            gpu_type="L4", gpu_memory_bytes_min=7, cpus_min=4, gpu_memory_bytes_by_type=(("l4", 6),)
        ),
        "deadline_ms": NOW_MS + 9 * HOUR_MS,
        "total_run_ms": HOUR_MS,
        "kind": JobKind.INTERACTIVE,
        "avoided_offers": frozenset({"x/1"}),
        "leaving": True,
        "affinity": Affinity(apart=frozenset({"team=a"})),
    }
    seen = pair(one, other, gpus=2, gain=0.5)
    assert seen.job_id == "job_a"
    assert seen.total_run_ms == 36 * MINUTE_MS
    assert seen.resources == Resources(2, 2, "L4", 7, 4, 9, gpu_memory_bytes_by_type=(("l4", 6),))
    assert (seen.deadline_ms, seen.kind, seen.not_before_ms) == (NOW_MS + 9 * HOUR_MS, JobKind.INTERACTIVE, 3)
    assert (seen.avoided_offers, seen.leaving, seen.affinity.apart) == ({"x/1"}, True, {"team=a"})


def test_what_is_not_known_is_not_made_up() -> None:
    """Without a prediction for one there is none for both; on GPUs that were never measured it is that of its own."""
    assert pair({}, {"total_run_ms": None}).total_run_ms is None
    assert pair({}, {}, gpus=4, gain=0.0).total_run_ms == HOUR_MS


@pytest.mark.parametrize("turned", [False, True], ids=["of the lead", "of the companion"])
def test_the_tighter_cap_binds_both(turned: bool) -> None:
    """The cap of the job that has less left to spend, with what that has spent."""
    rich = {"caps": Caps(max_cost=Money.usd(9)), "spent": Money.usd(1)}
    poor = {"caps": Caps(max_cost=Money.usd(20)), "spent": Money.usd(18)}
    seen = pair(rich, poor) if turned else pair(poor, rich)
    assert (seen.caps, seen.spent) == (Caps(max_cost=Money.usd(20)), Money.usd(18))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"recipe": {"settings": "set-b"}}, "they train with different settings"),
        ({"resources": Resources(gpu_type="L4")}, "they ask for different GPUs: A100 and L4"),
        ({"affinity": Affinity(own=frozenset({"team=a"}))}, "one of them is to run apart from the other"),
    ],
    ids=["settings", "types", "apart"],
)
def test_one_process_asks_for_more_than_one_after_the_other(changes: dict[str, Any], told: str) -> None:
    """What stands against one process does not stand against one after the other."""
    one = mergeable("job_a", resources=Resources(gpu_type="A100"), affinity=Affinity(apart=frozenset({"team=a"})))
    other = mergeable("job_b", **changes)
    assert refusal_together(one, replace(one, job_id="job_b")) is None
    assert (refusal(one, other), refusal_together(one, other)) == (None, told)
    assert modes_of(one, other, BOTH) == {MergeMode.IN_TURN}
    assert modes_of(one, other, frozenset({MergeMode.TOGETHER})) == frozenset()
    assert modes_of(one, mergeable("job_b", project_id="proj_b"), BOTH) == frozenset()
