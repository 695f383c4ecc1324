"""Facts as short text."""

from __future__ import annotations

from datetime import timedelta
from decimal import ROUND_HALF_UP, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpass.cli import words


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "$0.00"), (1_020_000, "$1.02"), (3_200, "$0.0032"), (9_999, "$0.0100"), (10_000, "$0.01"),
        (1_234_567_890_000, "$1,234,567.89"), (-1_500_000, "-$1.50"), (40, "<$0.0001"),
    ],
)  # fmt: skip
def test_money(micros: int, text: str) -> None:
    """Cents from one cent up, finer below."""
    assert words.money(micros) == text


@given(st.integers(0, 10**15))
def test_money_is_rounded_once(micros: int) -> None:
    """What is shown is the exact amount, rounded half up to what is shown; what would look like nothing, and is
    something, is told to be less than the least."""
    if 0 < micros < 50:
        assert words.money(micros) == "<$0.0001"
        return
    shown = words.money(micros).replace("$", "").replace(",", "")
    places = Decimal("0.0001") if 0 < micros < 10_000 else Decimal("0.01")
    assert Decimal(shown) == (Decimal(micros) / 1_000_000).quantize(places, ROUND_HALF_UP)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"), (59.9, "59s"), (60, "1m 00s"), (200, "3m 20s"), (600, "10m"), (3599, "59m"), (3600, "1h 00m"),
        (17_490, "4h 51m"), (86_400, "1d 0h"), (200_000, "2d 7h"), (-61, "-1m 01s"),
    ],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    """The two largest units, for seconds and for timedeltas."""
    assert words.duration(seconds) == words.duration(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (18_000, "18.0 kB"), (999_600, "1.0 MB"), (10**14, "100 TB")],
)
def test_sizes(size_bytes: int, text: str) -> None:
    """Decimal units."""
    assert words.size(size_bytes) == text


def test_last_words_are_the_last_traceback() -> None:
    """The last traceback if there is one, cut in the middle when it is long; else the last lines."""
    trace = "Traceback (most recent call last):\n" + "".join(f"  frame {n}\n" for n in range(60)) + "ValueError: boom"
    found = words.last_words(f"old\n{trace.replace('boom', 'first')}\nnoise\n{trace}\n").split("\n")
    assert (found[0], found[1], found[-1], len(found)) == (
        "Traceback (most recent call last):", "  ...", "ValueError: boom", 20,
    )  # fmt: skip
    assert words.last_words("\n".join(map(str, range(50)))).split("\n") == [str(n) for n in range(30, 50)]


def test_paths_of_the_jobs_code_are_the_owners() -> None:
    """A traceback names the files as they were sent, and not where a machine kept them."""
    root = "/tmp/data/.allpass/cloud/machines/m-000004-28464534/root/runs/run_01M82243HC0JT2Y0GM9R"
    told = f'Traceback (most recent call last):\n  File "{root}/code/src/train.py", line 3, in <module>\nValueError: no'
    assert '  File "src/train.py", line 3, in <module>' in words.last_words(told)
    plain = "python: can't open file 'train.py'"
    assert words.without_places(f"python: can't open file '{root}/code/train.py'") == plain
    assert words.without_places("/home/ada/code/train.py") == "/home/ada/code/train.py"
