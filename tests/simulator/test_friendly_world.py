"""The world that is played by default stays as it was: no figure of an earlier simulation changes."""

from __future__ import annotations

import json

import pytest

from tests.simulator.friendly import CASES, FRIENDLY, POLICIES, played

RECORDED = json.loads(FRIENDLY.read_text())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("policy", POLICIES)
def test_plans_and_bills_are_those_that_were_recorded(case: str, policy: str) -> None:
    """Every plan to the byte, when jobs ended, where they ran, each company's bill, and the names of the figures."""
    assert played(policy, CASES[case]) == RECORDED[case][policy]
