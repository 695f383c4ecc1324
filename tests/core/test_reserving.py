"""What can be reserved of a pool, and which GPUs are kept for it."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.host_spaces import host_spaces, reserved_spaces
from app.core.market import is_for
from app.core.model.job import PriorityClass
from app.core.model.pool import HostGpu, OwnHost, Pool
from app.core.pools import free_of, offers_of, used_gpus
from app.core.reserving import (
    FOREVER_MS,
    GpuKey,
    GpuReservation,
    GpuUse,
    keep_gpus,
    most_at_once,
    room_for,
    room_for_quotas,
)
from tests.core.samples import job

GIB = 2**30
LAB = Pool("lab")
MINE, OTHERS = GpuUse("p", False, ("job_p",)), GpuUse("q", False, ("job_q",))
SPOT = GpuUse("q", True, ("job_s",))


def host(name: str, gpus: int = 8, kind: str = "A100", **more: object) -> OwnHost:
    every = tuple(HostGpu(index, kind, 80 * GIB) for index in range(gpus))
    return replace(OwnHost(name, "lab", 8 * gpus, 64 * gpus * GIB, every), **more)  # type: ignore[arg-type]


def asks(gpus: int, name: str = "resv_a", project: str = "p", at: tuple[int, int] = (0, 100)) -> GpuReservation:
    return GpuReservation(name, project, "lab", "A100", gpus, *at)


def chosen(gpus: int, hosts: list[OwnHost], uses: dict[GpuKey, GpuUse] | None = None) -> Counter[str]:
    found = keep_gpus([asks(gpus)], {}, hosts, uses or {})
    return Counter(host_id for host_id, _ in found.added["resv_a"])


def test_whole_hosts_as_far_as_the_number_goes() -> None:
    hosts = [host("h1"), host("h2"), host("h3", 4)]
    assert chosen(8, hosts) == {"h1": 8}
    assert chosen(12, hosts) == {"h1": 8, "h3": 4}, "the host on which it leaves the least"
    assert chosen(4, hosts) == {"h3": 4}


def test_those_on_which_the_fewest_have_to_be_waited_for() -> None:
    """What spot jobs use is as good as free; what the project has itself comes after that."""
    uses = {("h1", 0): OTHERS, ("h2", 0): SPOT, ("h2", 1): SPOT}
    assert chosen(8, [host("h1"), host("h2")], uses) == {"h2": 8}
    found = keep_gpus([asks(4)], {}, [host("h1")], {("h1", 0): MINE, ("h1", 1): OTHERS})
    assert found.added == {"resv_a": (("h1", 2), ("h1", 3), ("h1", 4), ("h1", 5))}
    found = keep_gpus([asks(7)], {}, [host("h1")], {("h1", 0): MINE, ("h1", 1): OTHERS})
    assert ("h1", 1) not in found.added["resv_a"]
    found = keep_gpus([asks(8)], {}, [host("h1")], {("h1", 0): MINE, ("h1", 1): OTHERS})
    assert (found.blocked, found.short) == ({"resv_a": 1}, {})


def test_a_host_that_is_silent_is_replaced_where_there_is_another_and_else_told() -> None:
    kept = {"resv_a": [("h1", index) for index in range(8)]}
    found = keep_gpus([asks(8)], kept, [host("h1", is_open=False), host("h2")], {})
    assert (set(found.dropped["resv_a"]), Counter(one for one, _ in found.added["resv_a"])) == (
        {*kept["resv_a"]},
        {"h2": 8},
    )
    found = keep_gpus([asks(8)], kept, [host("h1", is_open=False), host("h3", 4)], {})
    assert found.short == {"resv_a": 4}
    found = keep_gpus([asks(8)], kept, [], {})
    assert (len(found.dropped["resv_a"]), found.short) == (8, {"resv_a": 8})


def test_others_see_nothing_of_it_and_spot_jobs_see_all_of_it() -> None:
    kept = host("h1", 4, kept={0: "p", 1: "p"}, taken=(3,))
    offers = offers_of([LAB], [kept], 0)
    guaranteed = {one: job("job_a", project_id=one, priority_class=PriorityClass.GUARANTEED) for one in "pq"}
    spot = job("job_s", project_id="q", priority_class=PriorityClass.SPOT)
    sizes = {
        name: max(offer.gpu_count for offer in offers if is_for(one, offer))
        for name, one in (*guaranteed.items(), ("spot", spot))
    }
    assert sizes == {"p": 3, "q": 1, "spot": 3}
    assert [gpu.index for gpu in free_of(kept, "A100")] == [2]
    assert [gpu.index for gpu in free_of(kept, "A100", kept_for="p")] == [0, 1, 2]
    assert used_gpus([kept]) == {"lab": 3}


def test_a_limit_of_the_pool_counts_what_is_kept() -> None:
    offers = offers_of([replace(LAB, most_gpus=3)], [host("h1", 4, kept={0: "p", 1: "p"})], 0)
    most = {one.projects: one.gpu_count for one in offers if not one.spot_only}
    assert most == {(): 1, ("p",): 3}


def test_what_spot_jobs_would_leave_is_for_whom_it_is_kept() -> None:
    """In its own space alone, from which nobody has to be spared; others would get what is not kept."""
    kept = host("h1", 4, kept={0: "p", 1: "p"}, taken=(0, 1, 2, 3))
    nodes = {"node_a": ("h1", (0, 1)), "node_b": ("h1", (2, 3))}
    (own,) = reserved_spaces([replace(LAB, most_gpus=1)], [kept], nodes, 0)
    assert (own.project_id, own.nodes, max(one.gpu_count for one in own.offers)) == ("p", {"node_a": 2}, 2)
    spaces = {
        one.project_id: (dict(one.nodes), max(offer.gpu_count for offer in one.offers))
        for one in host_spaces([LAB], [kept], nodes, 0)
    }
    assert spaces == {"": ({"node_b": 2}, 2), "p": ({"node_a": 2, "node_b": 2}, 4)}


@pytest.mark.parametrize(
    ("pool", "gpus", "left"),
    [(LAB, 8, None), (LAB, 9, 8), (replace(LAB, quotas=(("q", 3),)), 6, 5), (replace(LAB, most_gpus=2), 3, 2)],
)
def test_what_a_pool_can_keep(pool: Pool, gpus: int, left: int | None) -> None:
    found = room_for(asks(gpus), [], pool, [host("h1"), host("h2", is_open=False), host("h3", pool="other")])
    assert left == (None if found is None else found.left)


def test_kinds_are_reserved_apart() -> None:
    hosts = [host("h1", 4), host("h2", 4, "H100")]
    other_kind = replace(asks(4, "resv_b"), gpu_type="H100")
    assert room_for(asks(4), [other_kind], LAB, hosts) is None
    assert room_for(asks(1), [replace(other_kind, gpu_type="a-100")], LAB, hosts) is not None, "one kind, written so"


PLACES = st.tuples(st.integers(0, 3), st.integers(0, 7))
WINDOWS = st.tuples(st.integers(0, 40), st.integers(1, 40), st.integers(1, 5)).map(
    lambda it: asks(it[2], at=(it[0], it[0] + it[1]))
)


@given(st.lists(WINDOWS, max_size=12), WINDOWS)
def test_the_most_at_one_moment_is_that_of_counting_each(others: list[GpuReservation], window: GpuReservation) -> None:
    counted = max(
        sum(one.gpus for one in others if one.from_ms <= at < one.until_ms)
        for at in range(window.from_ms, window.until_ms)
    )
    assert most_at_once(others, window) == counted


@given(
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from("pqr")), max_size=6),
    st.lists(st.tuples(st.integers(1, 8), st.booleans()), min_size=1, max_size=4),
    st.dictionaries(
        st.tuples(st.integers(0, 3), st.integers(0, 7)), st.sampled_from([MINE, OTHERS, SPOT]), max_size=12
    ),
    st.integers(0, 2**12),
)
def test_no_gpu_is_kept_for_two_and_what_is_kept_stays(
    asked: list[tuple[int, str]],
    sizes: list[tuple[int, bool]],
    used: dict[tuple[int, int], GpuUse],
    gone: int,
) -> None:
    hosts = [host(f"h{number}", size, is_open=is_open) for number, (size, is_open) in enumerate(sizes)]
    there = {(one.host_id, gpu.index) for one in hosts for gpu in one.gpus}
    uses = {(f"h{name}", index): use for (name, index), use in used.items()}
    wanted = [asks(gpus, f"resv_{number}", project) for number, (gpus, project) in enumerate(asked)]
    first = keep_gpus(wanted, {}, hosts, uses)
    every = [key for keys in first.added.values() for key in keys]
    assert len(every) == len(set(every)) and there.issuperset(every)
    usable = sum(len(one.gpus) for one in hosts if one.is_open)
    lacking = sum(first.short.values())
    assert lacking == max(0, sum(one.gpus for one in wanted) - usable)
    again = keep_gpus(wanted, first.added, hosts, {})
    assert (again.added, again.dropped, again.short) == ({}, {}, first.short)
    left = [replace(one, is_open=one.is_open and not gone >> number & 1) for number, one in enumerate(hosts)]
    later = keep_gpus(wanted, first.added, left, uses)
    for name, keys in first.added.items():
        now = {*keys} - {*later.dropped.get(name, ())} | {*later.added.get(name, ())}
        shut = {key for key in now if not left[int(key[0][1:])].is_open}
        assert len(now - shut) + later.short.get(name, 0) == next(
            one.gpus for one in wanted if one.reservation_id == name
        )


def test_ten_thousand_reservations_are_looked_through_in_a_moment() -> None:
    every = [asks(1, f"resv_{number}", at=(number, number + 5_000)) for number in range(10_000)]
    hosts = [host(f"h{number}") for number in range(1_000)]
    began = time.process_time()
    assert room_for(asks(3_000, at=(0, 20_000)), every, LAB, hosts) is None
    assert room_for(asks(3_001, at=(0, 20_000)), every, LAB, hosts) is not None
    assert time.process_time() - began < 2


def test_many_are_kept_on_many_hosts_in_a_moment() -> None:
    hosts = [host(f"h{number}") for number in range(300)]
    wanted = [asks(8, f"resv_{number}") for number in range(300)]
    began = time.process_time()
    found = keep_gpus(wanted, {}, hosts, {})
    assert sum(map(len, found.added.values())) == 2_400
    assert keep_gpus(wanted, found.added, hosts, {}).added == {}
    assert time.process_time() - began < 5


# Quotas of whole hosts: pieces without an end


def sure(hosts: int, piece: int = 8, name: str = "quota", project: str = "p", kind: str = "A100") -> GpuReservation:
    return GpuReservation(name, project, "lab", kind, hosts * piece, 0, FOREVER_MS, piece)


def test_a_quota_of_hosts_is_made_of_whole_pieces_or_lacks_them() -> None:
    """Seven free GPUs of one host and one of another are no host of eight."""
    hosts = [host("h1", 7), host("h2", 8), host("h3", 9)]
    found = keep_gpus([sure(2)], {}, hosts, {})
    assert Counter(host_id for host_id, _ in found.added["quota"]) == {"h2": 8, "h3": 8}
    found = keep_gpus([sure(3)], {}, hosts, {})
    assert (len(found.added["quota"]), found.short) == (16, {"quota": 8})


def test_it_comes_before_windows_and_takes_the_host_where_its_project_is_already() -> None:
    hosts = [host("h1"), host("h2")]
    uses = {("h2", index): MINE for index in range(3)}
    found = keep_gpus([asks(8), sure(1)], {}, hosts, uses)
    assert Counter(host_id for host_id, _ in found.added["quota"]) == {"h2": 8}
    assert Counter(host_id for host_id, _ in found.added["resv_a"]) == {"h1": 8}


def test_of_a_host_that_has_lost_a_gpu_the_piece_is_given_up_for_a_whole_one() -> None:
    kept = {"quota": [("h1", index) for index in range(8)]}
    broken, whole = host("h1", 7), host("h2")
    found = keep_gpus([sure(1)], kept, [broken, whole], {})
    assert (len(found.dropped["quota"]), Counter(host_id for host_id, _ in found.added["quota"])) == (8, {"h2": 8})
    alone = keep_gpus([sure(1)], kept, [broken], {})
    assert alone.short == {"quota": 8}


def test_quotas_may_not_be_raised_above_what_is_left_at_any_moment() -> None:
    hosts = [host("h1"), host("h2")]
    pool = replace(LAB, quotas=(("p", 6), ("q", 2)))
    assert room_for_quotas(pool, [], [host("h1", 1)]) is None, "hosts may join later"
    assert room_for_quotas(pool, [asks(8, at=(10, 20))], hosts) is None
    found = room_for_quotas(pool, [asks(8, at=(10, 20)), sure(1, 1)], hosts)
    assert found is not None
    assert (found.left, found.of, found.reserved, found.quotas) == (7, 16, 9, 8)
    assert room_for_quotas(replace(pool, most_gpus=15), [asks(8, at=(10, 20))], hosts) is not None
    assert room_for_quotas(pool, [asks(8, at=(10, 20)), asks(8, "resv_b", at=(20, 30))], hosts) is None


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from([1, 2, 4, 8])), max_size=4),
    st.lists(st.integers(1, 8), max_size=3),
    st.integers(0, 3),
)
def test_whatever_comes_and_goes_pieces_are_whole_and_nobodys_twice(
    sizes: list[int], quotas: list[tuple[int, int]], windows: list[int], gone: int
) -> None:
    """Before and after hosts have gone: what is kept of open hosts is whole pieces, stays where it was, and is short by
    whole pieces alone."""
    hosts = [host(f"h{n}", size) for n, size in enumerate(sizes)]
    of_hosts = [sure(number, piece, f"quota_{n}", f"p{n}") for n, (number, piece) in enumerate(quotas)]
    every = [*of_hosts, *(asks(gpus, f"resv_{n}") for n, gpus in enumerate(windows))]
    first = keep_gpus(every, {}, hosts, {})
    left = hosts[gone:]
    second = keep_gpus(every, first.added, left, {})
    for found, before in ((first, {}), (second, first.added)):
        now = {
            one.reservation_id: (set(before.get(one.reservation_id, ())) | set(found.added.get(one.reservation_id, ())))
            - set(found.dropped.get(one.reservation_id, ()))
            for one in every
        }
        keys = [key for kept in now.values() for key in kept]
        assert len(keys) == len(set(keys))
        for one in of_hosts:
            on = Counter(host_id for host_id, _ in now[one.reservation_id])
            assert all(number % (one.piece or 1) == 0 for number in on.values())
            assert found.short.get(one.reservation_id, 0) % (one.piece or 1) == 0
            assert len(now[one.reservation_id]) + found.short.get(one.reservation_id, 0) == one.gpus
    here = {one.host_id for one in left}
    for one in of_hosts:
        assert not any(key[0] in here for key in second.dropped.get(one.reservation_id, ())), "bound is bound"


@given(
    st.lists(st.tuples(st.integers(1, 2), st.sampled_from([2, 4])), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([1, 2, 4]), st.booleans()), max_size=12),
)
def test_what_fits_a_private_cluster_fits_what_is_bound(
    quotas: list[tuple[int, int]], line: list[tuple[int, int, bool]]
) -> None:
    """HiveD's promise: of each project the same jobs, packed by the same rule, whoever else fills the pool. A job ends
    where the last number says so, and leaves its GPUs to the next."""
    total = sum(number for number, _ in quotas)
    pool_hosts = [host(f"h{n}", 4) for n in range(total)]
    bound = keep_gpus(
        [sure(number, piece, f"quota_{n}", f"p{n}") for n, (number, piece) in enumerate(quotas)], {}, pool_hosts, {}
    )
    for n, (number, piece) in enumerate(quotas):
        mine = Counter(host_id for host_id, _ in bound.added[f"quota_{n}"])
        pieces = [piece for count in mine.values() for _ in range(count // piece)]
        private = [piece] * number
        assert len(pieces) == number
        for at, gpus, ends in line:
            if at != n:
                continue
            fits = [max((left for left in have if left >= gpus), default=None) for have in (private, pieces)]
            assert fits[0] is None or fits[1] is not None
            for have in (private, pieces):
                tight = min((left for left in have if left >= gpus), default=None)
                if tight is not None and not ends:
                    have[have.index(tight)] -= gpus
