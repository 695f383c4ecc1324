"""Price curves: what a GPU-hour costs when, and exact sums; the calm market has the figures that it says."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidInput
from app.simulator.prices import CALM_STEP_S, DAY_S, PriceCurve, calm, flat, from_file, providers_of

STEPS = PriceCurve((0.0, 3600.0, 5400.0), (1.0, 0.4, 2.0))

steps = st.lists(
    st.tuples(st.integers(1, 10_000), st.integers(0, 500)), min_size=1, max_size=20
)  # gap to the next price, cents
instants = st.integers(-10_000, 250_000)


def curve_of(pieces: list[tuple[int, int]]) -> PriceCurve:
    times = np.cumsum([0, *[gap for gap, _ in pieces[:-1]]]).tolist()
    return PriceCurve(tuple(float(one) for one in times), tuple(cents / 100 for _, cents in pieces))


@pytest.mark.parametrize(("t_s", "usd"), [(-5, 1.0), (0, 1.0), (3599.9, 1.0), (3600, 0.4), (5400, 2.0), (1e9, 2.0)])
def test_the_price_at_an_instant(t_s: float, usd: float) -> None:
    """A price holds from its instant until the next; the first also before, the last for ever."""
    assert STEPS.at(t_s) == usd


def test_the_next_change() -> None:
    """It is later than the instant that is asked about; after the last one there is none."""
    assert [STEPS.next_change_after(at) for at in (-1, 0, 3599, 3600, 5399.5)] == [3600, 3600, 3600, 5400, 5400]
    assert STEPS.next_change_after(5400) is None
    assert flat(2.1).next_change_after(0) is None


def test_a_price_that_is_told_again_is_no_change() -> None:
    """Only another price counts."""
    curve = PriceCurve((0, 10, 20, 30), (1.0, 1.0, 1.5, 1.5))
    assert curve.next_change_after(0) == 20
    assert curve.next_change_after(20) is None


def test_costs_by_hand() -> None:
    """An hour at 1.00, half an hour at 0.40, a quarter at 2.00, and the ends reach beyond the curve."""
    assert STEPS.cost_usd(0, 6300) == pytest.approx(1.0 + 0.2 + 0.5)
    assert STEPS.cost_usd(1800, 4500) == pytest.approx(0.5 + 0.1)
    assert STEPS.cost_usd(-3600, 0) == 1.0
    assert STEPS.cost_usd(9000, 9000 + 7200) == 4.0
    assert flat(1.29).cost_usd(100, 3700) == 1.29


@given(pieces=steps, at=instants, length=st.integers(0, 100_000))
def test_costs_are_the_sum_of_seconds(pieces: list[tuple[int, int]], at: int, length: int) -> None:
    """For whole seconds, the integral is the sum of the prices of all seconds, to rounding."""
    curve = curve_of(pieces)
    places = np.searchsorted(curve.times_s, np.arange(at, at + length), side="right") - 1
    second_by_second = np.asarray(curve.usd_per_gpu_hour)[np.maximum(places, 0)].sum() / 3600
    assert curve.cost_usd(at, at + length) == pytest.approx(second_by_second, rel=1e-9, abs=1e-9)


@given(pieces=steps, cuts=st.lists(instants, min_size=3, max_size=3).map(sorted))
def test_costs_add_up(pieces: list[tuple[int, int]], cuts: list[int]) -> None:
    """What is paid until an instant and from it on is what is paid; nothing costs less than nothing."""
    curve = curve_of(pieces)
    first, middle, last = cuts
    whole = curve.cost_usd(first, last)
    assert whole == pytest.approx(curve.cost_usd(first, middle) + curve.cost_usd(middle, last), rel=1e-9, abs=1e-9)
    assert whole >= 0


@given(pieces=steps, at=instants)
def test_the_price_holds_until_the_next_change(pieces: list[tuple[int, int]], at: int) -> None:
    """Until then the cost is price times time; then there is another price."""
    curve = curve_of(pieces)
    change = curve.next_change_after(at)
    until = at + 5000 if change is None else change
    assert until > at
    assert curve.cost_usd(at, until) == pytest.approx(curve.at(at) * (until - at) / 3600, rel=1e-9, abs=1e-12)
    assert change is None or curve.at(change) != curve.at(at)


def test_a_short_time_late_on_a_long_curve_keeps_its_digits() -> None:
    """A second is not lost beside the sum of ten years."""
    curve = PriceCurve(tuple(float(3600 * hour) for hour in range(87_600)), (1.0, 2.0) * 43_800)
    assert curve.cost_usd(87_599 * 3600 + 1, 87_599 * 3600 + 2) == 2.0 / 3600


@pytest.mark.parametrize(
    ("times", "prices", "told"),
    [
        ((), (), "times_s: has 0 instants for 0 prices"),
        ((0.0, 1.0), (1.0,), "has 2 instants for 1 prices"),
        ((0.0, 0.0), (1.0, 2.0), "times_s: does not rise"),
        ((5.0, 1.0), (1.0, 2.0), "does not rise"),
        ((0.0, math.nan), (1.0, 2.0), "does not rise"),
        ((0.0,), (-0.1,), "usd_per_gpu_hour: -0.1 is no price"),
        ((0.0,), (math.inf,), "usd_per_gpu_hour: inf is no price"),
    ],
)
def test_broken_curves_are_refused(times: tuple[float, ...], prices: tuple[float, ...], told: str) -> None:
    """The field and its value are named."""
    with pytest.raises(InvalidInput, match=told):
        PriceCurve(times, prices)


def test_costs_backwards_are_refused() -> None:
    """Swapped instants are a mistake, not a negative cost."""
    with pytest.raises(InvalidInput, match="to_s: 1 is before from_s, 2"):
        STEPS.cost_usd(2, 1)


def test_the_calm_market_has_its_figures() -> None:
    """Ten months: the median is 0.67 $, a day's standard deviation 24 %, and the limits are kept and reached."""
    days = np.concatenate([np.asarray(calm(seed, 30 * DAY_S).usd_per_gpu_hour[:-1]) for seed in range(10)])
    days = days.reshape(-1, DAY_S // CALM_STEP_S)
    assert np.median(days) == pytest.approx(0.67, rel=0.03)
    assert (days.std(axis=1) / days.mean(axis=1)).mean() == pytest.approx(0.24, abs=0.015)
    assert (days.min(), days.max()) == (0.32, 1.13)
    assert (days == 1.13).mean() < 0.06


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_month_of_the_calm_market_is_typical(seed: int) -> None:
    """Each seed's month is near the figures, and different from the others."""
    days = np.asarray(calm(seed, 30 * DAY_S).usd_per_gpu_hour[:-1]).reshape(30, -1)
    assert np.median(days) == pytest.approx(0.67, rel=0.1)
    assert (days.std(axis=1) / days.mean(axis=1)).mean() == pytest.approx(0.24, abs=0.04)
    assert calm(seed, DAY_S) != calm(seed + 1, DAY_S)


def test_the_calm_market_forgets() -> None:
    """Prices 10 minutes apart are alike, prices 12 hours apart are not."""
    prices = np.log(np.concatenate([calm(seed, 30 * DAY_S).usd_per_gpu_hour for seed in range(5)]))
    soon = np.corrcoef(prices[:-1], prices[1:])[0, 1]
    late = np.corrcoef(prices[:-72], prices[72:])[0, 1]
    assert soon > 0.9
    assert abs(late) < 0.1


def test_the_calm_market_changes_every_ten_minutes() -> None:
    """From the start to the horizon; from there the last price holds."""
    curve = calm(3, 3601)
    assert curve.times_s == tuple(float(600 * step) for step in range(8))
    assert curve.at(1e9) == curve.usd_per_gpu_hour[-1]
    assert calm(3, 0).times_s == (0.0,)


def test_the_same_seed_gives_the_same_prices() -> None:
    """Also under a longer horizon, which only goes on."""
    short, long = calm(5, DAY_S), calm(5, 10 * DAY_S)
    assert calm(5, DAY_S) == short
    assert long.usd_per_gpu_hour[: len(short.times_s)] == short.usd_per_gpu_hour


@pytest.mark.parametrize("horizon_s", [-1, math.nan, math.inf])
def test_a_horizon_is_a_length_of_time(horizon_s: float) -> None:
    """Anything else is refused."""
    with pytest.raises(InvalidInput, match="horizon_s"):
        calm(0, horizon_s)


def written(folder: Path, text: str, name: str = "prices.csv") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["prices.csv", "prices.csv.gz"])
def test_prices_from_a_file(tmp_path: Path, name: str) -> None:
    """Rows may come in any order; of rows of the same instant the cheapest holds."""
    path = written(tmp_path, "time_s,usd_per_gpu_hour\n600,0.7\n0,0.5\n600,0.6\n", name)
    assert from_file(path) == PriceCurve((0.0, 600.0), (0.5, 0.6))


def test_a_provider_of_a_file(tmp_path: Path) -> None:
    """A file about several providers needs a choice; one about one does not."""
    path = written(tmp_path, "time_s,usd_per_gpu_hour,provider\n0,0.5,vast\n0,1.3,lambda\n60,0.6,vast\n")
    assert providers_of(path) == ("lambda", "vast")
    assert from_file(path, provider="vast") == PriceCurve((0.0, 60.0), (0.5, 0.6))
    with pytest.raises(InvalidInput, match=r"column provider: holds lambda, vast; choose one"):
        from_file(path)
    with pytest.raises(InvalidInput, match=r"column provider: 'modal' is not there; it has lambda, vast"):
        from_file(path, provider="modal")
    one = written(tmp_path, "time_s,usd_per_gpu_hour,provider\n0,0.5,vast\n", "one.csv")
    assert from_file(one) == flat(0.5)


def test_the_columns_of_price_trackers(tmp_path: Path) -> None:
    """Median or average prices by GPU type and provider; rows for sockets of one type are one price, the cheapest."""
    market = written(
        tmp_path,
        "time_s,gpu_type,socket,min_usd_per_gpu_h,median_usd_per_gpu_h\n"
        "0,A100_80GB,PCIe,0.98,1.64\n0,A100_80GB,SXM4,0.89,1.75\n0,H100_80GB,SXM5,1.5,2.2\n",
    )
    assert from_file(market, gpu_type="A100_80GB") == flat(1.64)
    providers = written(
        tmp_path,
        "time_s,gpu_type,provider,avg_usd_per_gpu_h\n0,A100_80GB,runpod,1.6\n0,A100_80GB,nebius,1.5\n",
        "providers.csv",
    )
    assert from_file(providers, provider="runpod") == flat(1.6)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "prices.csv: is empty"),
        ("time_s,usd\n0,1\n", "line 1: there is no column usd_per_gpu_hour; it has time_s, usd"),
        ("time_s,usd_per_gpu_hour\n", "prices.csv: holds no price"),
        ("time_s,usd_per_gpu_hour\n0,1\n5,\n", "line 3, column usd_per_gpu_hour: '' is not a number"),
        ("time_s,usd_per_gpu_hour\n0,-1\n", "line 2, column usd_per_gpu_hour: '-1' is below 0"),
        ("time_s,usd_per_gpu_hour\nnan,1\n", "line 2, column time_s: 'nan' is not a number"),
    ],
)
def test_faults_of_a_file_are_told(tmp_path: Path, text: str, told: str) -> None:
    """File, line, column and value are named."""
    with pytest.raises(InvalidInput, match=told):
        from_file(written(tmp_path, text))
