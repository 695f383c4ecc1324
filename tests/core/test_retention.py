"""Which checkpoints stay."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.core.retention import BestByMetric, Retention, Saved, to_prune


def saved(*steps: int, losses: dict[int, float] | None = None, wanted: int | None = None) -> list[Saved]:
    """Checkpoints of one epoch, named by their steps."""
    known = losses or {}
    return [
        Saved(f"c{step}", 1, step, {"loss": known[step]} if step in known else {}, is_wanted=step == wanted)
        for step in steps
    ]


def test_the_last_stay() -> None:
    """So many of the newest; older ones go, the oldest first."""
    assert to_prune(saved(30, 10, 20, 40), Retention(last=2)) == ["c10", "c20"]


def test_a_newer_epoch_is_newer_whatever_its_step() -> None:
    """A run that had to begin earlier again has the newest checkpoint."""
    again = Saved("again", 2, 5, {})
    assert to_prune([*saved(10, 20), again], Retention(last=1)) == ["c10", "c20"]


def test_the_first_of_each_stretch_stays() -> None:
    """With every_steps=100: the first at or after 0, 100, 200 ..., and it stays the first whatever comes."""
    rule = Retention(last=1, every_steps=100)
    assert to_prune(saved(40, 90, 130, 190, 260, 290), rule) == ["c90", "c190"]
    assert to_prune(saved(40, 130, 260, 290, 310), rule) == ["c290"]


def test_the_best_stays() -> None:
    """By the metric, lowest or highest; those without it are never the best; of equals, the newest."""
    losses = {10: 0.5, 20: 0.2, 30: 0.2, 40: 0.9}
    known = saved(10, 20, 30, 40, 50, losses=losses)
    assert to_prune(known, Retention(1, best=BestByMetric("loss", "min"))) == ["c10", "c20", "c40"]
    assert to_prune(known, Retention(1, best=BestByMetric("loss", "max"))) == ["c10", "c20", "c30"]
    assert to_prune(known, Retention(1, best=BestByMetric("accuracy", "max"))) == ["c10", "c20", "c30", "c40"]


def test_what_another_job_begins_with_stays() -> None:
    """However old it is."""
    assert to_prune(saved(10, 20, 30, wanted=10), Retention(last=1)) == ["c20"]


_saved = st.lists(
    st.builds(
        Saved,
        checkpoint_id=st.uuids().map(str),
        epoch=st.integers(1, 3),
        step=st.integers(0, 500),
        metrics=st.dictionaries(st.sampled_from(["loss", "f1"]), st.floats(0, 1), max_size=2),
        is_wanted=st.booleans(),
    ),
    max_size=12,
    unique_by=lambda one: one.checkpoint_id,
)
_rules = st.builds(
    Retention,
    last=st.integers(0, 5),
    every_steps=st.none() | st.integers(1, 200),
    best=st.none() | st.builds(BestByMetric, st.sampled_from(["loss", "f1"]), st.sampled_from(["min", "max"])),
)


@given(_saved, _rules)
def test_the_newest_is_never_let_go_of_and_the_rule_settles(known: list[Saved], rule: Retention) -> None:
    """Whatever the rule: the newest and the wanted stay, and asking again about what is left lets nothing more go."""
    gone = set(to_prune(known, rule))
    left = [one for one in known if one.checkpoint_id not in gone]
    if known:
        newest = max(known, key=lambda one: (one.epoch, one.step, one.checkpoint_id))
        assert newest in left
    assert all(one in left for one in known if one.is_wanted)
    assert to_prune(left, rule) == []
