"""Cases of the recipe's benchmark, as it measures them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]


@pytest.mark.parametrize(
    ("model", "kind", "is_joined"),
    [
        ("google/gemma-2-2b", "chat", True),
        ("bigscience/bloom-560m", "tools", False),
        ("microsoft/phi-2", "pairs", True),
    ],
)
def test_a_model_trains_moves_and_exports_as_was_said(model: str, kind: str, is_joined: bool, tmp_path: Path) -> None:
    """Windows and caps are no hindrance to joined rows; a model whose attention counts tokens from the first one of a
    line does not get any."""
    from benchmarks.recipe import measure
    from benchmarks.recipe_cases import Case

    found = measure(Case(model, kind), tmp_path)
    assert found["counts"], found
    assert found["joined"] is is_joined
    assert found["computed"] <= (1.02 if is_joined else 1.3) * found["learned"]
