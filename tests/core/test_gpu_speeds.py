"""How long a job trains on other types of GPU: by what it states, by what its app's jobs took, by what GPUs can do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core import codec
from app.core.gpu_speeds import (
    SAME,
    UNKNOWN_SPEEDS,
    GpuSpeeds,
    TimesOnType,
    stated_speeds,
    time_on,
    time_permille,
    usual_speeds,
    usual_type,
)
from app.core.roofline import GPUS

names = st.sampled_from([*GPUS, "CPU", "nobody knows it"])
speeds_of_any = st.builds(
    GpuSpeeds,
    gpu_type=st.sampled_from(["", *GPUS, "mystery9"]),
    times=st.dictionaries(st.sampled_from(sorted(GPUS)), st.integers(-7, 10**12), max_size=5).map(
        lambda known: tuple(sorted(known.items()))
    ),
    trains_there=st.booleans(),
    linked=st.booleans(),
)
histories = st.lists(
    st.builds(
        TimesOnType,
        gpu_type=st.sampled_from(["A100", "H100", "T4", "RTX 4090", "mystery"]),
        samples=st.integers(-1, 1_000),
        run_ms=st.floats(),
        step_ms=st.none() | st.floats(0.001, 1e9) | st.sampled_from([0.0, -1.0, float("inf"), float("nan")]),
    ),
    max_size=5,
    unique_by=lambda seen: seen.gpu_type,
).map(tuple)


def test_of_an_unknown_script_half_of_what_gpus_can_do_is_believed() -> None:
    """An H100 has 2.6 times the rates of an A100 and is taken to need half the time; a T4 needs three times as much."""
    assert time_permille(UNKNOWN_SPEEDS, "A100-SXM4-80GB") == SAME
    assert time_permille(UNKNOWN_SPEEDS, "NVIDIA H100 PCIe") == pytest.approx(510, abs=10)
    assert time_permille(UNKNOWN_SPEEDS, "T4") == pytest.approx(3_000, abs=100)


def test_whoever_trains_somewhere_believes_less_good_and_more_bad_of_other_places() -> None:
    """It would leave what it has for what is only believed."""
    waits, trains = GpuSpeeds("a100"), GpuSpeeds("a100", trains_there=True)
    assert SAME > time_permille(trains, "H100") > time_permille(waits, "H100")
    assert time_permille(trains, "T4") > time_permille(waits, "T4") > SAME


def test_gpus_that_wait_for_each_other_need_their_links() -> None:
    """An RTX 4090 is a good deal for one GPU's work, and a bad one for eight that exchange all they have."""
    assert time_permille(GpuSpeeds("a100", linked=True), "RTX 4090") > time_permille(GpuSpeeds("a100"), "RTX 4090")


def test_what_is_stated_counts_as_it_is() -> None:
    """Steps of 100 ms on an A100, 40 ms on an H100, 250 ms on an A10."""
    speeds = stated_speeds("A100", {"A100": 100.0, "h100": 40.0, "a10": 250.0})
    assert (speeds.gpu_type, speeds.times) == ("a100", (("a10", 2_500), ("h100", 400)))
    assert time_on(speeds, "H100", 60_000) == 24_000
    assert time_on(None, "H100", 60_000) == 60_000


def test_seen_from_another_type_the_same_is_told() -> None:
    """What takes 40 % of the time on an H100 takes 2.5 times as long on an A100."""
    there = stated_speeds("A100", {"A100": 100.0, "h100": 40.0, "a10": 250.0}).seen_from("H100", trains_there=True)
    assert (there.gpu_type, there.times, there.trains_there) == ("h100", (("a10", 6_250), ("a100", 2_500)), True)
    assert there.seen_from("h100") == replace(there, trains_there=False)


def test_what_a_job_measured_itself_counts_before_all_else() -> None:
    """It took 100 ms a step on an A100, and takes 800 ms on an L4, where 400 were predicted."""
    there = stated_speeds("A100", {"A100": 100.0, "h100": 40.0, "l4": 400.0}).seen_from("L4", trains_there=True)
    seen = there.measured(800.0, {"A100": 100.0, "L4": 1.0, "T4": float("nan"), "B200": 0.0})
    assert seen == replace(there, times=(("a100", 120), ("h100", 100)))
    assert there.measured(float("inf"), {"A100": 100.0}) == there


def test_of_a_type_that_nobody_knows_nothing_is_believed() -> None:
    """Neither of what is asked about, nor of where the job's times are from."""
    assert time_permille(UNKNOWN_SPEEDS, "GPU 9000") == SAME
    assert time_permille(GpuSpeeds("gpu9000", trains_there=True), "H100") == SAME


def test_an_app_is_told_by_where_most_of_its_jobs_ran() -> None:
    """With steps if any job told them: of the others nobody knows whether they did the same work."""
    many, few = TimesOnType("T4", 9, 90_000.0), TimesOnType("A100", 2, 30_000.0, 20.0)
    assert usual_type((many, replace(few, step_ms=None))) == replace(many)
    assert usual_type((many, few)) == few
    assert usual_type(()) is None
    assert usual_speeds(()) == UNKNOWN_SPEEDS


def test_what_an_apps_jobs_took_counts_more_the_more_there_are() -> None:
    """Between the rates (0.51) and what was measured (0.9): a script that hardly gains by a faster GPU."""
    usual = TimesOnType("A100", 100, 1.0, 100.0)
    found = [dict(usual_speeds((usual, TimesOnType("H100", many, 1.0, 90.0))).times)["h100"] for many in (1, 3, 50)]
    assert found == sorted(found)
    assert 510 < found[0] < found[-1] == pytest.approx(890, abs=10)


def test_a_minute_of_debugging_is_no_measure_of_a_night() -> None:
    """Jobs of one app took a second on T4s and an hour on A100s: T4s are not believed to be 3,600 times as fast."""
    speeds = usual_speeds((TimesOnType("A100", 50, 3_600_000.0), TimesOnType("T4", 500, 1_000.0)))
    assert speeds.gpu_type == "t4"
    assert time_permille(speeds, "A100") <= 1_500


@given(speeds=speeds_of_any, name=names)
def test_every_time_is_a_sane_number(speeds: GpuSpeeds, name: str) -> None:
    assert 10 <= time_permille(speeds, name) <= 100_000


@given(speeds=speeds_of_any, name=names)
def test_on_the_type_that_times_speak_of_they_are_as_they_are(speeds: GpuSpeeds, name: str) -> None:
    """Also after one has moved there."""
    seen = speeds.seen_from(name, trains_there=True)
    assert time_permille(seen, name) == SAME
    assert time_permille(speeds, speeds.gpu_type or "A100") == SAME or ("a100" in dict(speeds.times))


@given(speeds=speeds_of_any)
def test_they_are_kept_as_they_are(speeds: GpuSpeeds) -> None:
    assert codec.loads(GpuSpeeds, codec.dumps(speeds)) == speeds


@given(seen=histories)
def test_no_history_makes_a_slower_gpu_much_faster(seen: tuple[TimesOnType, ...]) -> None:
    """Whatever an app's jobs took, the figures stay within half again of what the types could explain."""
    speeds, usual = usual_speeds(seen), usual_type(seen)
    for name, time in speeds.times:
        assert usual is not None
        by_rates = time_permille(GpuSpeeds(speeds.gpu_type), name) / SAME
        low, high = min(1.0, by_rates ** (1 / 0.7)) / 1.5, max(1.0, by_rates ** (1 / 0.7)) * 1.5
        assert low * 0.9 <= time / SAME <= high * 1.1
