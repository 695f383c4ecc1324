"""What is made of a machine's first calculation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.gpu_checks import IMAGES_FAULT, Checked, GpuCheck, gpu_check_of, is_the_images

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
R, F, U = Checked.RIGHT, Checked.FAILED, Checked.UNCHECKED


def test_the_result_is_read() -> None:
    """With its reason, on one line of printable letters and of a length that an event takes."""
    told = {"gpu_check": {"state": "failed", "message": "GPU 1:\nwrong" + "x" * 999}}
    check = gpu_check_of(told)
    assert check is not None
    assert (check.result, check.why[:12], len(check.why)) == (Checked.FAILED, "GPU 1: wrong", 300)
    assert gpu_check_of({"gpu_check": {"state": "right"}}) == GpuCheck(Checked.RIGHT)


@pytest.mark.parametrize("told", [{}, {"gpu_check": {"state": "sideways"}}, {"gpu_check": "failed"}])
def test_what_is_not_told_is_no_result(told: dict[str, Any]) -> None:
    """An agent of the release before, or of the one after."""
    assert gpu_check_of(told) is None


@given(ANY_JSON, ANY_JSON)
def test_any_report_is_read(state: Any, message: Any) -> None:
    """It is data from outside."""
    check = gpu_check_of({"gpu_check": {"state": state, "message": message}})
    assert check is None or check.why.isprintable()
    assert gpu_check_of({"gpu_check": state}) is None or isinstance(state, dict)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ((), False),  # the first machine of all
        ((F,), False),
        ((F, F), True),
        ((F, U, U, F), True),  # one that was not checked says nothing
        ((F, F, R), False),  # it does compute somewhere
        ((R, F, F, F, F), False),
        ((U, U, U), False),
    ],
)
def test_an_image_that_computes_nowhere_is_to_blame(others: tuple[Checked, ...], expected: bool) -> None:
    """From the third machine on; before that, and where it does compute, the machine is."""
    assert is_the_images(others) is expected


@given(st.lists(st.sampled_from(Checked)))
def test_an_image_is_only_blamed_on_evidence(others: list[Checked]) -> None:
    """Never where one machine has computed, and never before enough have failed."""
    if is_the_images(others):
        assert R not in others
        assert others.count(F) >= IMAGES_FAULT - 1
