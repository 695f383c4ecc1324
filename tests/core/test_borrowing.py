"""What a project is sure of in a pool, and what it has borrowed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.core.borrowing import PoolQuotas, PoolUse
from app.core.model.pool import Pool

LAB = Pool("lab", quotas=(("proj_a", 2), ("proj_b", 1)))


def use(run: str, project: str = "proj_a", gpus: int = 1, since_ms: int = 0, pool: str = "lab") -> PoolUse:
    return PoolUse(pool, project, gpus, run, since_ms)


def test_those_that_have_been_there_longest_are_within_the_quota() -> None:
    found = PoolQuotas.of([LAB], [use("c", since_ms=3), use("b", since_ms=2), use("a", since_ms=1)])
    assert found.borrowed == {"c"}
    assert not found.is_sure("lab", "proj_a", 1)
    assert found.is_sure("lab", "proj_b", 1) and not found.is_sure("lab", "proj_b", 2)
    assert found.words("lab", "proj_a") == "its project has 2 of the 2 GPUs of lab that it is sure of"


def test_one_that_is_too_large_borrows_and_smaller_ones_behind_it_do_not() -> None:
    found = PoolQuotas.of([LAB], [use("a", gpus=3, since_ms=1), use("b", gpus=2, since_ms=2)])
    assert found.borrowed == {"a"}


def test_a_project_without_a_quota_borrows_all_of_it() -> None:
    found = PoolQuotas.of([LAB], [use("x", "proj_c")])
    assert found.borrowed == {"x"}
    assert not found.is_sure("lab", "proj_c", 1)


def test_in_a_pool_without_quotas_and_beside_pools_nothing_is_borrowed() -> None:
    found = PoolQuotas.of([Pool("lab"), LAB][:1], [use("x", gpus=99), use("y", pool="")])
    assert found.borrowed == set()
    assert found.is_sure("lab", "proj_c", 99) and found.is_sure("", "proj_c", 99)
    assert found.words("lab", "proj_c") is None


def test_what_is_kept_for_a_job_counts_as_its_projects() -> None:
    """It borrows nothing, however much it is: it was sure when it was promised."""
    found = PoolQuotas.of([LAB], [use("a", since_ms=1), PoolUse("lab", "proj_a", 1)])
    assert (found.borrowed, found.is_sure("lab", "proj_a", 1)) == (set(), False)


def test_what_is_on_hosts_of_anothers_quota_is_borrowed_and_uses_nothing_of_its_own() -> None:
    """However long it has been there: its project is sure of as many elsewhere."""
    there = PoolUse("lab", "proj_b", 1, "there", 1, is_on_others_hosts=True)
    found = PoolQuotas.of([LAB], [there])
    assert (found.borrowed, found.is_sure("lab", "proj_b", 1)) == ({"there"}, True)
    found = PoolQuotas.of([LAB], [there, use("later", "proj_b", since_ms=9)])
    assert (found.borrowed, found.is_sure("lab", "proj_b", 1)) == ({"there"}, False)


@given(st.lists(st.tuples(st.sampled_from(["proj_a", "proj_b", "proj_c"]), st.integers(1, 3), st.integers(0, 5))))
def test_what_is_not_borrowed_is_never_more_than_the_quota(held: list[tuple[str, int, int]]) -> None:
    uses = [use(f"run_{n}", *one) for n, one in enumerate(held)]
    found = PoolQuotas.of([LAB], uses)
    for project, most in (("proj_a", 2), ("proj_b", 1), ("proj_c", 0)):
        mine = [one for one in uses if one.project_id == project]
        assert sum(one.gpus for one in mine if one.run_id not in found.borrowed) <= most
        assert all(one.run_id in found.borrowed for one in mine if one.gpus > most)
