"""How close to each other the machines of a job are is told with the numbers it was made of."""

from __future__ import annotations

import math

import pytest

from app.core.explaining.facts import Remark
from app.core.explaining.spread import SeenSeat, bound_of, chosen_by, met, spread_of
from app.core.model.job import ANY_NUMBER, MostUnderOne


def told(*switches: str | None, ways: tuple[int | None, ...] = ()) -> list[Remark]:
    speeds = [*ways, *[None] * (len(switches) - len(ways))]
    return list(spread_of([SeenSeat(rank, one, speeds[rank]) for rank, one in enumerate(switches)]))


def test_machines_under_several_switches_are_counted_the_most_first() -> None:
    (said,) = told("leaf-2", "leaf-1", "leaf-1", "leaf-1")
    assert said.text == "its 4 machines are spread: 3 under leaf-1, 1 under leaf-2 (entropy 0.56)"
    expected = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert said.data["entropy"] == pytest.approx(expected, abs=1e-4)
    assert (said.data["switches"], said.data["without_switch"]) == ({"leaf-1": 3, "leaf-2": 1}, 0)


def test_racks_are_told_where_somebody_says_them() -> None:
    seats = [SeenSeat(rank, f"leaf-{rank}", None, rack) for rank, rack in enumerate(("r2", "r1", "r1", ""))]
    _, said = spread_of(seats)
    assert said.text == "they are in several racks: 2 in r1, 1 in r2, 1 in one that nobody says (entropy 1.04)"
    assert said.data == {"racks": {"r1": 2, "r2": 1}, "without_rack": 1, "entropy": 1.0397}
    _, alike = spread_of([SeenSeat(rank, "leaf-1", None, "r1") for rank in range(3)])
    assert alike.text == "all 3 machines are in rack r1"


def test_one_switch_is_no_spread_and_one_machine_is_no_question() -> None:
    assert [one.text for one in told("leaf-1", "leaf-1")] == ["all 2 machines are under switch leaf-1"]
    assert told("leaf-1") == told() == []


def test_what_nobody_says_is_said_so() -> None:
    assert told("", "")[0].text == "nobody says which switch its 2 machines are under (allpass pool label)"
    partly = told("leaf-1", "", "leaf-1")[0]
    assert "2 under leaf-1, 1 under one that nobody says" in partly.text
    assert partly.data["without_switch"] == 1
    assert told(None, None) == [], "machines of a cloud have no switch that anybody could name"


def test_sixty_four_switches_make_no_endless_sentence() -> None:
    said = told(*[f"leaf-{number:02}" for number in range(64)])[0]
    assert "56 under 56 others" in said.text
    assert len(said.data["switches"]) == 64


def test_the_slowest_and_the_fastest_way_are_named() -> None:
    said = told(None, None, None, None, ways=(None, 9_400_000_000, 100_000, 23_100_000_000))
    assert [one.text for one in said] == [
        "before its code ran, the others reached machine 0 at 0.1 Mbit/s (machine 2) to 23.1 Gbit/s (machine 3)"
    ]
    assert said[0].data == {"network_bits_per_s": {"1": 9_400_000_000, "2": 100_000, "3": 23_100_000_000}}
    assert met({2: 10**9}) == ", machine 2 reached machine 0 at 1.0 Gbit/s"
    assert met({}) == ""


def test_what_it_asks_for_is_told_and_whether_labels_have_changed_since() -> None:
    seats = [SeenSeat(rank, f"leaf-{rank // 2}", None, "r1") for rank in range(4)]
    assert list(bound_of(seats, ANY_NUMBER)) == list(bound_of(seats[:1], MostUnderOne(1, 1))) == []
    (kept,) = bound_of(seats, MostUnderOne(switch=2))
    assert kept.text == "it asks for at most 2 under one switch"
    assert kept.data == {"most_per_rack": None, "most_per_switch": 2, "is_within": True}
    (broken,) = bound_of(seats, MostUnderOne(3, 1))
    assert broken.text == (
        "it asks for at most 1 under one switch and 3 in one rack, and now 2 are under leaf-0 and 4 are in r1: labels "
        "have changed since it began"
    )
    (cloud,) = bound_of([SeenSeat(rank, None, None) for rank in range(2)], MostUnderOne(switch=1))
    assert "2 are under one that nobody says" in cloud.text


def test_the_rule_by_which_switches_were_chosen_is_named() -> None:
    """Also one of another release."""
    assert chosen_by("literal").text == (
        "its switches were chosen by the rule literal (ALLPASS_GANG_SWITCHES): Algorithm 2 of the SpotGPU paper: again "
        "and again the one that adds the least entropy"
    )
    assert "one that holds all" in chosen_by("fewest").text
    assert chosen_by("newer").text == "its switches were chosen by the rule newer (ALLPASS_GANG_SWITCHES)"
    assert chosen_by("newer").data == {"chosen_by": "newer"}
