"""Rules of image builds: what is expected, when a failed one is tried again, and what helps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.image_builds import USUAL_BUILD_MS, expected_ms, fix_for, last_lines, next_try_ms, told_why

NOW_MS = 1_000_000


def test_a_build_is_expected_to_take_what_builds_have_taken() -> None:
    """The median of those that were done, so that one that hung for an hour is no rule; before the first, a guess."""
    assert expected_ms(()) == USUAL_BUILD_MS
    assert expected_ms([70_000, 3_600_000, 90_000]) == 90_000


def test_an_image_that_is_refused_is_tried_twice_more_and_then_only_when_asked() -> None:
    """The registry may lag behind a push; a wrong name stays wrong."""
    waits = [next_try_ms(failures, NOW_MS, cut_off=False) for failures in (1, 2, 3, 4)]
    assert waits == [NOW_MS + 300_000, NOW_MS + 1_800_000, None, None]


@given(failures=st.integers(1, 10_000), cut_off=st.booleans())
def test_no_build_is_tried_for_ever(failures: int, cut_off: bool) -> None:
    """Each next try is later than the one before, half an hour at most, and one day there is none."""
    this, following = (next_try_ms(count, NOW_MS, cut_off=cut_off) for count in (failures, failures + 1))
    assert this is None or NOW_MS < this <= NOW_MS + 1_800_000
    assert following is None or (this is not None and following >= this)
    assert next_try_ms(11, NOW_MS, cut_off=cut_off) is None


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("manifest for nobody/nothing:1 not found: manifest unknown", "no such image"),
        ("GET https://registry/v2/x/manifests/1: 404 Not Found", "no such image"),
        ("pull access denied for lab/secret, repository does not exist or may require 'docker login'", "login"),
        ("unauthorized: authentication required", "login"),
        ("/bin/sh: 1: python: not found", "no python"),
        ("/usr/bin/python3: No module named pip", "no pip"),
        ("disk on fire", "take another one"),
    ],
)
def test_the_fix_follows_from_what_the_builder_says(said: str, fix: str) -> None:
    """A wrong name, a missing login and an image without Python are told apart; of all else, nothing is guessed."""
    assert fix in fix_for(said)


def test_the_reason_has_the_last_line_once_and_the_fix() -> None:
    """A log may be empty; a line as long as a book is cut."""
    assert (
        told_why("it failed", "Step 1\nmanifest unknown")
        == f"it failed: manifest unknown; {fix_for('manifest unknown')}"
    )
    assert told_why("boom", "") == f"boom; {fix_for('')}"
    assert told_why("boom: e", "e") == f"boom: e; {fix_for('')}"
    assert len(told_why("boom", "x" * 9_999)) < 300


def test_the_last_lines_of_a_log_are_kept_and_no_more() -> None:
    """Progress bars are lines too; a log of megabytes becomes a screen."""
    assert last_lines("a\n\n  b \rc\n") == "a\n  b\nc"
    long = last_lines("\n".join(f"{n} {'x' * 1000}" for n in range(10_000)))
    assert len(long) == 1_500
    assert last_lines("\n".join(map(str, range(100)))).splitlines() == [str(n) for n in range(88, 100)]
