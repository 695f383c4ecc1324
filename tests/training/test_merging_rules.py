"""When two jobs are split, whose turn it is, and what must agree: rules without a model."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpass.recipe.settings import Recipe
from workers.trainer.agreement import differing
from workers.trainer.monitor import LossMonitor
from workers.trainer.turns import first_share, takes_first

LOSSES = st.lists(st.floats(0.1, 10), min_size=1, max_size=12)


@given(losses=LOSSES)
def test_a_side_is_split_only_when_two_epochs_brought_nothing(losses: list[float]) -> None:
    """With half an epoch between looks: split at the first look from two epochs on, if none was below the first."""
    monitor = LossMonitor()
    verdicts = [monitor.add("one", number / 2, loss) for number, loss in enumerate(losses)]
    expected = [
        number >= 4 and all(one >= losses[0] for one in losses[1 : number + 1]) for number in range(len(losses))
    ]
    assert [verdict is not None for verdict in verdicts] == expected


@given(losses=LOSSES, cut=st.integers(0, 12))
def test_a_monitor_goes_on_where_it_was(losses: list[float], cut: int) -> None:
    """Saved and restored anywhere, it comes to the same verdicts."""
    whole, before, after = LossMonitor(), LossMonitor(), LossMonitor()
    told = [whole.add("one", number, loss) for number, loss in enumerate(losses)]
    parts = [before.add("one", number, loss) for number, loss in enumerate(losses[:cut])]
    after.restore(before.state())
    parts += [after.add("one", number, loss) for number, loss in enumerate(losses[cut:], min(cut, len(losses)))]
    assert parts == told


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_splits_at_once(loss: float) -> None:
    """However well it went before."""
    monitor = LossMonitor()
    assert monitor.add("one", 0, 2.0) is None
    assert monitor.add("one", 1, 1.0) is None
    assert monitor.add("one", 1.5, loss) == f"the held-out loss of one is {loss}"


@given(seed=st.integers(0, 10**6), first=st.integers(0, 500), count=st.integers(1, 300), share=st.floats(0.05, 0.95))
def test_any_stretch_of_steps_keeps_the_share(seed: int, first: int, count: int, share: float) -> None:
    """Whose step it is follows from (seed, step) alone, and no stretch is unfair by more than a few steps."""
    turns = [takes_first(seed, step, share) for step in range(first, first + count)]
    assert turns == [takes_first(seed, step, share) for step in range(first, first + count)]
    assert abs(sum(turns) - share * count) <= 2 + math.log(count)


def test_shares_go_from_sizes_towards_equal() -> None:
    """Of 300 and 100 rows the first has three quarters at the beginning, and near to half at the end."""
    shares = [first_share(step, 100, 300, 100) for step in range(101)]
    assert shares[0] == pytest.approx(0.75)
    assert shares == sorted(shares, reverse=True)
    assert 0.5 < shares[-1] < 0.56
    assert first_share(70, 100, 100, 300) == pytest.approx(1 - shares[70])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": "other"}, "model is 'base' for one and 'other' for the other"),
        ({"sequence_length": 8}, "sequence_length is 1024 for one and 8 for the other"),
        ({"precision": "fp32"}, "numbers is 'bf16' for one and 'fp32' for the other"),
        ({"target": {"eval_loss": 1.0}, "seed": 4, "steps": 3, "patience": 1, "evaluate_every": 2}, None),
    ],
    ids=["model", "length", "precision", "own"],
)
def test_what_must_agree(changes: dict[str, object], why: str | None) -> None:
    """What is computed with is shared; how long, how well and from which seed is each job's own."""
    assert differing(Recipe.of({"model": "base"}), Recipe.of({"model": "base", **changes})) == why


def test_pairs_are_learned_alone() -> None:
    """The reference of one job is not the other's."""
    recipe = Recipe.of({"model": "base", "task": "dpo"})
    assert differing(recipe, recipe) == "task is 'dpo', whose reference is that of one job alone"
