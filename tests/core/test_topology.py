"""A gang's GPUs come from as few switches as can be, never at more entropy than any other way to take them."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.topology import (
    Domain,
    Seats,
    SwitchRule,
    _completed,
    allocate,
    allocate_literally,
    choose,
    complete,
    complete_nested,
    domains_of,
    entropy,
)

_switches = st.lists(st.integers(0, 6), min_size=1, max_size=4).map(
    lambda sizes: {f"s{number}": size for number, size in enumerate(sizes)}
)


def _least_entropy(free_gpus: list[int], gpus: int) -> float:
    ways = itertools.product(*(range(have + 1) for have in free_gpus))
    return min(entropy(way) for way in ways if sum(way) == gpus)


def test_entropy_of_halves_and_of_one_switch() -> None:
    assert entropy([8, 8]) == pytest.approx(math.log(2))
    assert entropy([16]) == entropy([]) == entropy([0, 5]) == 0.0


def test_one_switch_where_one_fits_and_the_tightest() -> None:
    assert allocate({"a": 32, "b": 16, "c": 64}, 12) == {"b": 12}


def test_the_largest_first_and_a_tight_rest() -> None:
    assert allocate({"a": 10, "b": 6, "c": 5, "d": 4}, 14) == {"a": 10, "d": 4}


def test_algorithm_2_as_printed_takes_a_third_switch_where_two_do() -> None:
    free_gpus = {"a": 1, "b": 8, "c": 5}
    assert allocate(free_gpus, 13) == {"b": 8, "c": 5}
    assert allocate_literally(free_gpus, 13) == {"a": 1, "b": 8, "c": 4}


@pytest.mark.parametrize("gpus", [0, -3, 9, 1 << 60])
def test_what_is_not_there_is_not_allocated(gpus: int) -> None:
    assert allocate({"a": 4, "b": 4}, gpus) is None
    assert allocate_literally({"a": 4, "b": 4}, gpus) is None
    assert allocate({}, gpus) is None
    assert allocate({"a": -5, "b": 4}, 5) is None


def test_a_failure_domain_holds_no_more_than_allowed() -> None:
    assert allocate({"a": 32, "b": 4, "c": 4}, 8, most_of_one=4) == {"a": 4, "b": 4}
    found = allocate({"a": 32, "b": 4, "c": 4}, 10, most_of_one=4)
    assert found is not None
    assert sorted(found.values()) == [2, 4, 4]
    assert allocate({"a": 32, "b": 4}, 10, most_of_one=4) is None


@settings(max_examples=200, deadline=None)
@given(_switches, st.integers(1, 14))
def test_no_other_way_has_less_entropy(free_gpus: dict[str, int], gpus: int) -> None:
    taken, literal = allocate(free_gpus, gpus), allocate_literally(free_gpus, gpus)
    assert (taken is None) == (literal is None) == (sum(free_gpus.values()) < gpus)
    if taken is None or literal is None:
        return
    for found in (taken, literal):
        assert sum(found.values()) == gpus
        assert all(0 < count <= free_gpus[name] for name, count in found.items())
    least = _least_entropy(list(free_gpus.values()), gpus)
    assert entropy(taken.values()) == pytest.approx(least, abs=1e-9)
    assert entropy(literal.values()) >= least - 1e-9


@settings(max_examples=100, deadline=None)
@given(_switches, st.integers(1, 14), st.integers(1, 6))
def test_a_bound_on_one_domain_holds(free_gpus: dict[str, int], gpus: int, most: int) -> None:
    taken = allocate(free_gpus, gpus, most_of_one=most)
    assert (taken is None) == (sum(min(have, most) for have in free_gpus.values()) < gpus)
    assert taken is None or max(taken.values()) <= most


@given(_switches, st.lists(st.integers(0, 3), max_size=4), st.integers(1, 14))
def test_algorithm_2_is_the_paper_s_line_by_line(free_gpus: dict[str, int], has: list[int], gpus: int) -> None:
    """Against the least score of every switch, each time, with nothing left out or remembered."""
    held = {f"s{number}": count for number, count in enumerate(has)}
    found = allocate_literally(free_gpus, gpus, held)
    left, under, taken = dict(free_gpus), Counter(held), Counter[str]()
    while gpus > sum(taken.values()) and any(left.values()):
        missing = gpus - sum(taken.values())
        scores = {
            name: (round(entropy((under + Counter({name: min(have, missing)})).values()), 12), name)
            for name, have in left.items()
            if have
        }
        name = min(scores, key=scores.__getitem__)
        more = min(left.pop(name), missing)
        under[name] += more
        taken[name] += more
    assert found == (dict(taken) if sum(taken.values()) == gpus else None)


def test_algorithm_2_is_quick_among_twenty_thousand_switches() -> None:
    free: dict[Domain, int] = {(f"r{number % 200}", f"s{number}"): 1 + number % 3 for number in range(20_000)}
    began_s = time.process_time()
    taken = allocate_literally(free, 64, {("r0", "s0"): 2})
    assert taken is not None and sum(taken.values()) == 64
    assert time.process_time() - began_s < 1.5


def test_each_rule_by_its_name() -> None:
    free = {("", "a"): 1, ("", "b"): 8, ("", "c"): 5}
    assert choose(SwitchRule.FEWEST, free, {}, 13) == {("", "b"): 8, ("", "c"): 5}
    assert choose(SwitchRule.LITERAL, free, {}, 13) == {("", "a"): 1, ("", "b"): 8, ("", "c"): 4}
    for rule in SwitchRule:
        assert choose(rule, free, {}, 0) == {}
        assert choose(rule, free, {}, 15) is None


def test_what_is_missing_comes_from_where_the_gang_is() -> None:
    assert complete({"a": 3, "b": 9, "c": 2}, {"c": 4}, 2) == {"c": 2}
    assert complete({"a": 3, "b": 9}, {"a": 1, "b": 2}, 2) == {"b": 2}, "where it has most"
    assert complete({"a": 1, "b": 3}, {"a": 1}, 3) == {"b": 3}, "one more under its own switch would halve the gang"
    assert complete({"a": 1}, {"a": 4}, 2) is None
    assert complete({}, {"a": 4}, 0) == {}


@settings(max_examples=400, deadline=None)
@given(_switches, st.lists(st.integers(0, 4), max_size=5), st.integers(1, 14))
def test_no_way_to_complete_a_gang_has_less_entropy(free: dict[str, int], has: list[int], missing: int) -> None:
    """Of every way there is among few switches. A gang may be under switches that have nothing free."""
    here = {f"s{number}": count for number, count in enumerate(has)}
    found = complete(free, here, missing)
    if sum(free.values()) < missing:
        assert found is None
        return
    assert found is not None
    assert sum(found.values()) == missing
    assert all(0 < number <= free[name] for name, number in found.items())

    def spread(taken: dict[str, int]) -> float:
        return entropy([here.get(name, 0) + taken.get(name, 0) for name in {*free, *here}])

    every = (dict(zip(free, way, strict=True)) for way in itertools.product(*(range(n + 1) for n in free.values())))
    assert spread(found) <= min(spread(way) for way in every if sum(way.values()) == missing) + 1e-9
    if not any(here.values()):
        alone = allocate(free, missing)
        assert alone is not None and spread(alone) == pytest.approx(spread(found))


# Racks above switches

DOMAINS = st.dictionaries(
    st.tuples(st.sampled_from(["", "r1", "r2", "r3"]), st.sampled_from(["", "s1", "s2", "s3"])),
    st.integers(0, 5),
    max_size=9,
)


@given(DOMAINS, DOMAINS, st.integers(1, 14))
def test_what_is_taken_by_racks_is_there_and_all_of_it(
    free: dict[Domain, int], has: dict[Domain, int], missing: int
) -> None:
    taken = complete_nested(free, has, missing)
    if sum(free.values()) < missing:
        assert taken is None
        return
    assert taken is not None
    assert sum(taken.values()) == missing
    assert all(0 < number <= free[domain] for domain, number in taken.items())


@given(DOMAINS, st.integers(1, 14))
def test_whatever_holds_all_is_not_left(free: dict[Domain, int], gpus: int) -> None:
    """One switch where one holds them all, else one rack; and no other choice of racks has less entropy."""
    taken = complete_nested(free, {}, gpus)
    if taken is None:
        return
    by_rack: Counter[str] = Counter()
    for (rack, _), number in free.items():
        by_rack[rack] += number
    if max(free.values()) >= gpus:
        assert len(taken) == 1
    if max(by_rack.values()) >= gpus:
        assert len({rack for rack, _ in taken}) == 1
    own: Counter[str] = Counter()
    for (rack, _), number in taken.items():
        own[rack] += number
    best = allocate(by_rack, gpus)
    assert best is not None
    assert entropy(own.values()) <= entropy(best.values()) + 1e-9


_FLAT = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 5))


@given(_FLAT, _FLAT, st.integers(1, 9))
def test_without_racks_it_is_spread_as_before(free: dict[str, int], has: dict[str, int], missing: int) -> None:
    flat = complete(free, has, missing)
    nested = complete_nested(_in_one_rack(free), _in_one_rack(has), missing)
    if flat is None or nested is None:
        assert flat is nested
        return
    both = [Counter(has) + Counter(flat), Counter(has) + Counter({name: n for (_, name), n in nested.items()})]
    assert entropy(both[0].values()) == pytest.approx(entropy(both[1].values()))


def _in_one_rack(counts: dict[str, int]) -> dict[Domain, int]:
    return {("", name): number for name, number in counts.items()}


@pytest.mark.parametrize("racks", [20_000, 200, 1])
def test_twenty_thousand_switches_are_no_matter(racks: int) -> None:
    """Also where somebody has called each host a rack: that took 9 s of a processor once, and a tenth of one now."""
    free: dict[Domain, int] = {(f"r{number % racks}", f"s{number}"): 1 + number % 3 for number in range(20_000)}
    began_s = time.process_time()
    taken = complete_nested(free, {("r0", "s0"): 2, ("r1" if racks > 1 else "r0", "s1"): 1}, 60)
    assert taken is not None and sum(taken.values()) == 60
    assert time.process_time() - began_s < 1.5


@given(st.dictionaries(st.sampled_from("abcdefghijkl"), st.integers(0, 3)), _FLAT, st.integers(1, 9))
def test_those_that_are_left_out_of_many_would_not_have_come(
    free: dict[str, int], has: dict[str, int], missing: int
) -> None:
    """As by trying each as the first, with all that there are."""
    taken = complete(free, has, missing)
    if taken is None:
        return
    left = {name: have for name, have in free.items() if have > 0}
    own = [name for name in left if has.get(name, 0)]
    ways = [_completed(left, has, missing, first) for first in (None, *(left if own else ()))]
    best = min(entropy((Counter(has) + Counter(way)).values()) for way in ways)
    assert entropy((Counter(has) + Counter(taken)).values()) == pytest.approx(best)


def test_a_switch_is_in_the_rack_that_most_of_its_hosts_name() -> None:
    """Who names none, or another one, does not tear it apart; a host without a switch is in its own rack."""
    said = {"a": ("r1", "s1"), "b": ("", "s1"), "c": ("r2", "s1"), "d": ("r1", "s1"), "e": ("r3", ""), "f": ("", "s2")}
    assert domains_of(said) == {
        **dict.fromkeys("abcd", ("r1", "s1")),
        "e": ("r3", ""),
        "f": ("", "s2"),
    }


# No more than so many under one

_BOUNDS = st.tuples(st.none() | st.integers(1, 4), st.none() | st.integers(1, 4))


def _seated(free: dict[Domain, int], has: dict[Domain, int], most: tuple[int | None, ...]) -> Counter[Domain]:
    seats = Seats(most, has)
    return Counter(domain for domain, number in free.items() for _ in range(number) if seats.take(domain))


@given(DOMAINS, DOMAINS, _BOUNDS, st.randoms(use_true_random=False))
def test_whoever_takes_a_seat_first_as_many_are_had(
    free: dict[Domain, int], has: dict[Domain, int], most: tuple[int | None, int | None], chance: Random
) -> None:
    every = list(free.items())
    chance.shuffle(every)
    assert _seated(free, has, most).total() == _seated(dict(every), has, most).total()


@given(DOMAINS, DOMAINS, _BOUNDS, st.integers(1, 10))
def test_bounds_of_racks_and_switches_hold_and_all_is_found_that_they_allow(
    free: dict[Domain, int], has: dict[Domain, int], most: tuple[int | None, int | None], missing: int
) -> None:
    """With what the gang has already, which may be beyond them: then nothing comes to that."""
    taken = complete_nested(free, has, missing, most)
    assert (taken is None) == (_seated(free, has, most).total() < missing)
    if taken is None:
        return
    assert sum(taken.values()) == missing
    assert all(0 < number <= free[domain] for domain, number in taken.items())
    for level, bound in enumerate(most, start=1):
        grown = {domain[:level] for domain in taken}
        under: Counter[Domain] = Counter()
        for domain, number in (*taken.items(), *has.items()):
            under[domain[:level]] += number
        assert bound is None or all(under[group] <= bound for group in grown)


@given(_FLAT, st.integers(1, 9), st.integers(1, 4))
def test_within_a_bound_no_choice_of_switches_is_less_spread(free: dict[str, int], gpus: int, most: int) -> None:
    nested, best = complete_nested(_in_one_rack(free), {}, gpus, (None, most)), allocate(free, gpus, most)
    if nested is None or best is None:
        assert nested is best
        return
    assert entropy(nested.values()) == pytest.approx(entropy(best.values()))


@given(DOMAINS, DOMAINS, st.integers(1, 14))
def test_without_bounds_nothing_changes(free: dict[Domain, int], has: dict[Domain, int], missing: int) -> None:
    assert complete_nested(free, has, missing, (None, None)) == complete_nested(free, has, missing)


def test_a_bound_of_racks_holds_under_one_switch_too() -> None:
    free: dict[Domain, int] = {("r1", "s1"): 9, ("r2", "s2"): 1}
    assert complete_nested(free, {}, 2, (1, None)) == {("r1", "s1"): 1, ("r2", "s2"): 1}
    assert complete_nested(free, {}, 3, (1, None)) is None


def test_bounds_among_twenty_thousand_switches_are_no_matter() -> None:
    free: dict[Domain, int] = {(f"r{number % 200}", f"s{number}"): 1 + number % 3 for number in range(20_000)}
    began_s = time.process_time()
    taken = complete_nested(free, {("r0", "s0"): 1}, 60, (2, 1))
    assert taken is not None and max(taken.values()) == 1
    assert time.process_time() - began_s < 2.5
