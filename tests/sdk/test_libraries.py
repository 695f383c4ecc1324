"""What a fine-tuning is computed by, and what its next machine is asked for."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from allpass.recipe.libraries import FEW_BITS, PACKAGES, installed, pins


def test_what_is_there_is_told_and_nothing_else() -> None:
    """By the names that requirements have; what is missing here is no error."""
    found = installed()
    assert found == {name: metadata.version(name) for name in found}
    known = {Requirement(text).name for text in (*PACKAGES, FEW_BITS)} | {"tokenizers"}
    assert set(found) <= known
    assert {"torch", "transformers"} <= set(found)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"torch": "2.6.0+cu124", "transformers": "4.57.1"}, ["torch==2.6.0", "transformers==4.57.1"]),
        ({"Torch": "2.6.0", "Transformers": "4.57.1"}, ["torch==2.6.0", "transformers==4.57.1"]),
        ({"tokenizers": "0.22.0", "numpy": "2.1.0"}, ["tokenizers==0.22.0"]),
        ({"bitsandbytes": "0.48.0"}, []),  # which this job does not ask for, though its first machine has it
        ({"torch": "2.8.0a0+git1234"}, ["torch==2.8.0a0"]),
        ({"torch": "1!2.0.post1.dev3"}, ["torch==1!2.0.post1.dev3"]),
        ({"torch": "2.10.0rc1.post2.dev3"}, ["torch==2.10.0rc1.post2.dev3"]),
        ({"torch": "+cu124"}, []),
        ({"torch": "newest"}, []),
        ({"torch": "2.6.0 --index-url http://evil"}, []),
        ({"torch": "2.6.0,>3"}, []),
        ({"torch": "9" * 100}, []),
        ({"torch": None, 3: "2.0"}, []),
        (None, []),
    ],
)
def test_pins_are_of_what_is_required_anyway(told: Any, expected: list[str]) -> None:
    """Without the part that names a build, which indexes do not have."""
    assert pins(told, PACKAGES) == expected


def test_nothing_is_pinned_where_nothing_is_required() -> None:
    """The machine's own Python is all there is."""
    assert pins({"torch": "2.6.0", "tokenizers": "0.22.0"}, []) == []


names = st.sampled_from(["torch", "Torch", "peft", "tokenizers", "numpy"]) | st.text()
versions = st.from_regex(r"[0-9]{1,3}([.!+_-]?(a|rc|post|dev|[0-9]{1,3}|[a-z])){0,5}", fullmatch=True) | st.text()


@given(st.dictionaries(names, versions | st.integers() | st.none()) | st.text() | st.lists(st.text()))
def test_whatever_was_told_pins_are_requirements(told: Any) -> None:
    """Of names that are required, of exactly one version."""
    for text in pins(told, PACKAGES):
        requirement = Requirement(text)
        (only,) = requirement.specifier
        assert only.operator == "=="
        assert requirement.url is None
        assert not requirement.extras
        assert requirement.marker is None


@given(
    st.dictionaries(
        st.sampled_from(["torch", "peft", "tokenizers"]),
        st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){0,3}", fullmatch=True),
    )
)
def test_versions_are_pinned_as_they_were(told: dict[str, str]) -> None:
    assert pins(told, PACKAGES) == [f"{name}=={told[name]}" for name in sorted(told)]
