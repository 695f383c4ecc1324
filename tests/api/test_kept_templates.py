"""Templates in rows of other releases are shown as far as this one can say them."""

from __future__ import annotations

from typing import Any

import pytest

from allpass.wire.template import Template
from app.api.kept_templates import kept_template

MODEL = {"name": "llama", "parameters": 7}


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ({}, {}),
        ({"labels": {"a": "b"}, "colour": {"deep": [1]}}, {"labels": {"a": "b"}}),
        (
            {"model": MODEL | {"licence": "x"}, "gpu": {"count": 2, "vendor": "v"}},
            {"model": MODEL, "gpu": {"count": 2}},
        ),
        ({"training": {"method": "newer-method", "steps": 9}}, {"training": {"steps": 9}}),
        ({"gpu": {"count": 65}, "cpus": 4}, {"cpus": 4}),  # a limit was lowered since
        ({"model": {"parameters": 7}, "cpus": 2}, {"cpus": 2}),  # what makes it whole is missing
        ({"secrets": ["HF_TOKEN", "not a name", "W_TOKEN"]}, {"secrets": ["HF_TOKEN", "W_TOKEN"]}),
        ({"gpu": {"count": 4, "max_count": 2}, "cpus": 2}, {"cpus": 2}),  # a rule about several fields
        ({"labels": {"a": 1, "b": "c"}}, {"labels": {"b": "c"}}),
        ({"gpu": "all", "cpus": 2}, {"cpus": 2}),
        ({"training": {"exact": {"none": "of", "this": 1}, "steps": 3}}, {"training": {"steps": 3}}),
    ],
)
def test_what_cannot_be_said_is_left_out(stored: dict[str, Any], shown: dict[str, Any]) -> None:
    """Unknown fields and words, broken limits and parts that lack something are left out, and nothing else; the row's
    own value is not touched."""
    before = repr(stored)
    assert kept_template(stored) == Template.model_validate(shown)
    assert repr(stored) == before


@pytest.mark.parametrize("stored", ["text", None, 7, []])
def test_what_is_no_template_at_all_is_an_empty_one(stored: Any) -> None:
    """Nothing can be said of it, and the job is shown all the same."""
    assert kept_template(stored) == Template()
