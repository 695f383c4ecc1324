"""The benchmark of transfer runs whole on the smallest family, and counts what it says it counts."""

from __future__ import annotations

import json
import sys

import pytest

from tests.training.pairs import exactly

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]


def test_it_ends_with_one_json_object(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Two tasks, two steps each: everything is trained, and every figure has its place."""
    from benchmarks import transfer

    words = "transfer --tasks 2 --seeds 1 --steps 2 --rows 16 --pretraining 2"
    monkeypatch.setattr(sys, "argv", words.split())
    with exactly():
        transfer.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"name", "value", "goal", "unit", "detail"} == set(result)
    detail = result["detail"]
    expected = {"pearson_r", "sign_accuracy", "iteration_ape_mean", "iteration_ape_max", "steps_ratio", "worse_final"}
    assert expected <= set(detail)
    assert {name: len(rows) for name, rows in detail["gains"].items()} == {"in_turn": 2, "together": 1}
    assert detail["steps_alone"] == [2.0, 2.0]
    members = sorted(name for _, *names in detail["groups"] for name in names)
    assert members == sorted({name for row in detail["gains"]["in_turn"] for name in row[:2]})


def test_a_sign_is_predicted_from_other_pairs_and_counted_outside_noise() -> None:
    """Where gains follow scores every clear sign is right; noisy ones are not counted; a pair never predicts itself."""
    from app.core.merging.problem import Mode
    from benchmarks.transfer import Merge, _predicted, _signs

    names = [(one, other) for one in "abcdef" for other in "abcdef" if one < other]
    merges = [
        Merge(Mode.TOGETHER, *pair, score=number / 14, fisher=0.0, gains=(number / 7 - 1.05, number / 7 - 0.95))
        for number, pair in enumerate(names)
    ]
    noisy = Merge(Mode.TOGETHER, "a", "g", score=1.0, fisher=0.0, gains=(-3.0, 2.0))
    assert _signs([*merges, noisy]) == (12, 12)  # the middle three are within the mean noise
    liar = Merge(Mode.TOGETHER, "a", "b", score=0.5, fisher=0.0, gains=(9.0, 9.0))
    assert _predicted(liar, [liar, *merges]) == _predicted(liar, merges)
