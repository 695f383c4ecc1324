"""The benchmark of transfer runs whole on the smallest family, and counts what it says it counts."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.training.pairs import exactly

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]


def test_it_ends_with_one_json_object(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Two tasks of two families, two steps each: everything is trained, and every figure has its place."""
    from benchmarks import transfer

    words = "transfer --tasks 2 --seeds 1 --steps 2 --rows 16 --pretraining 2 --kinds paired,unseen"
    monkeypatch.setattr(sys, "argv", words.split())
    with exactly():
        transfer.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"name", "value", "goal", "unit", "holds", "detail"} == set(result)
    assert result["holds"] is False, "two steps foretell nothing"
    detail = result["detail"]
    assert {"majority_guess", "signs", "worse_final", "processor_seconds"} <= set(detail)
    assert list(detail["families"]) == ["paired", "unseen"]
    expected = {"pearson_r", "sign_accuracy", "majority_guess", "iteration_ape_mean", "bounds_held", "steps_ratio"}
    for kind, row in detail["families"].items():
        assert expected | {"worse_final", "iteration_ape_max"} <= set(row)
        assert detail["worse_final"][kind] == row["worse_final"]
        assert {name: len(rows) for name, rows in row["gains"].items()} == {"in_turn": 2, "together": 1}
        assert row["steps_alone"] == [2.0, 2.0]
        assert {name: of for name, (_, of) in row["worse_of_all"].items()} == {"in_turn": 2, "together": 2}
        members = sorted(name for _, *names in row["groups"] for name in names)
        assert members == sorted({name for gain in row["gains"]["in_turn"] for name in gain[:2]})


def test_families_share_a_base_and_differ_in_what_it_has_seen() -> None:
    """The same seed draws the same; a sister has three of four ways; what is unseen is written in other ways."""
    from benchmarks.transfer_family import GROUPS, families

    base, found = families(6, 4)
    assert (base, found) == families(6, 4)
    assert found["paired"].ways == found["unpaired"].ways == base.ways
    assert not set(base.names) & {name for own in found.values() for name in own.tasks}
    for kind in ("paired", "unseen"):
        tasks = list(found[kind].tasks.values())
        assert all(
            sum(a == b for a, b in zip(one, other, strict=True)) == GROUPS - 1
            for one, other in zip(tasks[::2], tasks[1::2], strict=True)
        )
    known = {pair for way in base.ways for pair in way.items()}
    new = {pair for way in found["unseen"].ways for pair in way.items()}
    assert len(new - known) > len(new) / 2


def test_a_sign_is_predicted_from_other_pairs_and_counted_outside_noise() -> None:
    """Where gains follow scores every clear sign is right; noisy ones are not counted; a pair never predicts itself."""
    from app.core.merging.problem import Mode
    from benchmarks.transfer_figures import Merge, Signs, _predicted, _signs

    names = [(one, other) for one in "abcdef" for other in "abcdef" if one < other]
    merges = [
        Merge(Mode.TOGETHER, *pair, score=number / 14, fisher=0.0, gains=(number / 7 - 1.05, number / 7 - 0.95))
        for number, pair in enumerate(names)
    ]
    noisy = Merge(Mode.TOGETHER, "a", "g", score=1.0, fisher=0.0, gains=(-3.0, 2.0))
    all_ = [*merges, noisy]
    assert _signs(all_, all_) == Signs(12, 6, 12)  # the middle three are within the mean noise
    liar = Merge(Mode.TOGETHER, "a", "b", score=0.5, fisher=0.0, gains=(9.0, 9.0))
    assert _predicted(liar, [liar, *merges]) == _predicted(liar, merges)


def test_a_task_that_ends_worse_takes_the_claim_back() -> None:
    """As do signs below the goal, and signs that guessing would have got as well; without any nothing is claimed."""
    from benchmarks.transfer import holds
    from benchmarks.transfer_figures import Signs, added

    fine: dict[str, dict[str, Any]] = {"paired": {"worse_final": []}, "unseen": {"worse_final": []}}
    assert holds(Signs(100, 60, 98), fine)
    assert not holds(Signs(100, 60, 98), fine | {"unseen": {"worse_final": ["AB"]}})
    assert not holds(Signs(100, 60, 96), fine)
    assert not holds(Signs(100, 99, 98), fine)
    assert not holds(Signs(0, 0, 0), fine)
    assert added([Signs(3, 1, 2), Signs(5, 4, 5)]) == Signs(8, 5, 7)
    assert (Signs(8, 3, 6).accuracy, Signs(8, 3, 6).majority) == (75.0, 62.5)


def test_worse_is_a_drop_beyond_what_seeds_differ_or_a_target_that_is_missed() -> None:
    """A hundredth of accuracy or what two seeds of the same task differ, whichever is more."""
    from benchmarks.transfer_figures import _is_worse
    from benchmarks.transfer_runs import Course

    def course(accuracy: float, reached: bool = True) -> Course:
        return Course((0.1,), ((2, 0.1, accuracy),), 2.0, reached)

    alone = [course(0.95), course(0.95)]
    assert not _is_worse(alone, [course(0.945), course(0.945)])
    assert _is_worse(alone, [course(0.93), course(0.93)])
    assert not _is_worse([course(0.97), course(0.93)], [course(0.93), course(0.93)])
    assert _is_worse(alone, [course(0.95), course(0.95, reached=False)])
    assert not _is_worse([course(0.95), course(0.95, reached=False)], [course(0.95), course(0.95, reached=False)])
