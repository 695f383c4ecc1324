"""Quotas: what is promised is reachable, what is idle is lent, and turns go by dominant share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.quotas import (
    USAGE_HALF_LIFE_MS,
    Admission,
    NodeQuota,
    PastUsage,
    PoolNode,
    QuotaPool,
    by_dominant_share,
)

HOUR_MS = 3_600_000


def _pool(nodes: int, **quotas: int) -> QuotaPool:
    made = [PoolNode(f"n{number}", "A", 8) for number in range(nodes)]
    return QuotaPool(made, [NodeQuota(project, "A", count) for project, count in quotas.items()])


def test_scattered_jobs_of_one_do_not_break_the_promise_to_another() -> None:
    """Sixteen jobs of one GPU of project a fill its two nodes and no third; b's job of a whole node has its place. With
    quotas counted in single GPUs they could stand on all three nodes."""
    pool = _pool(3, a=2, b=1)
    for number in range(16):
        grant = pool.grant("a", "A", 1)
        assert grant.admission is Admission.GUARANTEED
        pool.take(f"a{number}", "a", grant.places)
    assert pool.grant("a", "A", 1).admission is Admission.BORROWED
    assert pool.grant("b", "A", 8).admission is Admission.GUARANTEED


def test_beyond_the_quota_a_job_borrows_or_is_refused() -> None:
    """As spot where it may, else not at all, as in the paper; both with the numbers in words. So with a kind or a
    project of which nothing is promised, and a job larger than a node."""
    pool = _pool(2, a=1)
    over = pool.grant("a", "A", 8, 2)
    assert (over.admission, over.places) == (Admission.BORROWED, {})
    assert over.words.startswith("2 x 8 GPUs of A for a: 0 of its 1 nodes are in use")
    assert pool.grant("a", "A", 8, 2, may_borrow=False).admission is Admission.REFUSED
    for project, kind, gpus in (("stranger", "A", 1), ("a", "B", 1), ("a", "A", 9)):
        assert pool.grant(project, kind, gpus).admission is Admission.BORROWED


def test_a_node_is_bound_while_guaranteed_jobs_are_on_it() -> None:
    """Small jobs fill the fullest node; an empty node is anybody's again; the preferred one is bound first."""
    pool = _pool(3, a=2, b=1)
    first = pool.grant("a", "A", 4, prefer=("n2",))
    assert first.places == {"n2": 4}
    pool.take("j", "a", first.places)
    assert pool.grant("a", "A", 2).places == {"n2": 2}
    assert (pool.idle("n2"), pool.idle("n0")) == (4, 8)
    with pytest.raises(ValueError, match="cannot take"):
        pool.take("k", "b", {"n2": 1})
    pool.give("j")
    assert pool.grant("b", "A", 8, prefer=("n2",)).places == {"n2": 8}


def test_names_of_nodes_do_not_change_how_jobs_are_packed() -> None:
    """Two half-filled nodes tie: whichever was bound first is filled, whatever it is called, so that a private cluster
    of the same size would be packed alike."""
    for names in (("n0", "n1"), ("n1", "n0")):
        pool = _pool(2, a=2)
        for job_id, name in zip("jk", names, strict=True):
            pool.take(job_id, "a", {name: 5})
        assert pool.grant("a", "A", 2).places == {names[0]: 2}


def test_wrong_pools_and_calls_are_refused() -> None:
    """More promised than there is, less than nothing, mixed nodes of a kind, no GPUs, twice the same job."""
    with pytest.raises(ValueError, match="3 nodes of A are promised, 2 are there"):
        _pool(2, a=2, b=1)
    with pytest.raises(ValueError, match="cannot have -1"):
        _pool(2, a=-1)
    with pytest.raises(ValueError, match="different numbers"):
        QuotaPool([PoolNode("n1", "A", 8), PoolNode("n2", "A", 4)], [])
    pool = _pool(1, a=1)
    for gpus, parts in ((0, 1), (1, 0), (-1, 1)):
        with pytest.raises(ValueError, match="no job"):
            pool.grant("a", "A", gpus, parts)
    pool.take("j", "a", {"n0": 1})
    with pytest.raises(ValueError, match="already"):
        pool.take("j", "a", {"n0": 1})
    with pytest.raises(ValueError, match="cannot take"):
        pool.take("k", "a", {"n0": 8})
    with pytest.raises(KeyError):
        pool.give("k")


def test_turns_go_by_the_scarcest_kind_and_are_forgotten() -> None:
    """Half of the two H100s outweighs a tenth of the forty A100s; after some half-lives the last week counts."""
    totals = {"A100": 40, "H100": 2}
    usage = {
        "few": PastUsage({}).used({"H100": 1}, HOUR_MS),
        "many": PastUsage({}).used({"A100": 4}, HOUR_MS),
        "new": PastUsage({}),
        "odd": PastUsage({"TPU": 1e30}),
    }
    assert [project for _, project in by_dominant_share(usage, totals, HOUR_MS)] == ["new", "odd", "many", "few"]
    late = {"old": PastUsage({"A100": 8.0}, 0), "recent": PastUsage({"A100": 2.0}, 3 * USAGE_HALF_LIFE_MS)}
    assert [project for _, project in by_dominant_share(late, totals, 3 * USAGE_HALF_LIFE_MS)] == ["old", "recent"]
    assert by_dominant_share({}, totals, 0) == []
    assert by_dominant_share({"a": PastUsage({"A100": 1.0})}, {"A100": 0}, 0) == [(0.0, "a")]


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 10**9)), max_size=6))
def test_past_usage_is_never_below_zero_and_never_above_all_of_it(held: list[tuple[int, int]]) -> None:
    """Whatever was held for however long, what counts is between nothing and all GPU time so far."""
    usage, now_ms, all_of_it = PastUsage({}), 0, 0
    for gpus, for_ms in held:
        now_ms, all_of_it = now_ms + for_ms, all_of_it + gpus * for_ms
        usage = usage.used({"A": gpus}, now_ms)
    assert 0 <= usage.gpu_ms.get("A", 0.0) <= all_of_it * (1 + 1e-9)
    assert usage.used({"A": 1}, -5).at_ms == now_ms
