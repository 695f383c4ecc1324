"""What symbolic runs are believed, beside the tables and without them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.memory import MODELS, Training, architecture_of, estimate, model_named, verdict
from app.core.memory.architecture import config_of
from app.core.memory.exact import EXACT_UNCERTAINTY, Exact, ExactPeak, decide, is_near, layouts_alone
from app.core.memory.need import Stated, StatedAlone, least_need, least_need_alone
from app.core.memory.semantics import DEFAULT

MODEL = model_named("llama-3.2-1b")
LAYOUT = Training(method="lora", batch=2, sequence=1024, accumulation=4, checkpointing=True)
TABLES = estimate(MODEL, LAYOUT)


def said(allocated: int) -> Exact:
    """A run of that very layout, with its peak on the way back."""
    backward = allocated - DEFAULT.workspace_bytes
    return Exact(1_200_000_000, (ExactPeak(2, True, True, backward // 2, backward, backward // 3),))


@given(st.floats(0.96, 3.0))
def test_a_run_decides_its_own_layout(share: float) -> None:
    """What it says replaces what the tables expect, with less doubt; the tables' word is kept beside it."""
    told = round(TABLES.allocated.expected * share)
    decided = decide(said(told), LAYOUT, TABLES)
    assert decided is not None
    assert decided.estimated.allocated.expected == told
    assert decided.estimated.allocated.high <= round(told * (1 + EXACT_UNCERTAINTY))
    assert (decided.tables, decided.raised) == (TABLES.allocated, False)


@given(st.floats(0.001, 0.94))
def test_the_tables_hold_it_from_below(share: float) -> None:
    """A run that says less than they expect at least is not believed, and that is told."""
    decided = decide(said(round(TABLES.allocated.expected * share)), LAYOUT, TABLES)
    assert decided is not None
    assert decided.raised
    assert decided.estimated.allocated.expected == TABLES.allocated.low


@pytest.mark.parametrize(
    "other",
    [
        replace(LAYOUT, batch=4, accumulation=2),
        replace(LAYOUT, accumulation=1),
        replace(LAYOUT, checkpointing=False),
        replace(LAYOUT, gpus=2, sharding="ddp"),
    ],
    ids=["micro-batch", "accumulation", "checkpointing", "several"],
)
def test_a_run_says_nothing_of_other_layouts(other: Training) -> None:
    """There the tables stand alone."""
    assert decide(said(10**10), other, estimate(MODEL, other)) is None


@given(st.integers(2_000_000_000, 40_000_000_000))
def test_near_is_where_a_run_could_change_the_verdict(capacity: int) -> None:
    """Wherever it is not near, both ends of the tables' uncertainty come to their verdict."""
    if is_near(TABLES, capacity):
        return
    for end in (TABLES.allocated.low, TABLES.allocated.high):
        decided = decide(said(end), LAYOUT, TABLES)
        assert decided is not None
        assert verdict(decided.estimated, capacity) == verdict(TABLES, capacity)


def test_there_is_an_edge_to_be_near_to() -> None:
    """Right above what is needed to be sure, right below, and far away from both."""
    sure = TABLES.needed
    assert is_near(TABLES, sure - 1)
    assert not is_near(TABLES, 2 * sure)
    assert not is_near(TABLES, sure // 2)


def test_an_unknown_model_lies_on_a_line_between_its_runs() -> None:
    """Micro-batches that were run are as they were run, others on the line through two; no layout comes of nothing."""
    runs = tuple(ExactPeak(size, False, True, 10**9 * size, 2 * 10**9 * size, 10**9) for size in (1, 2))
    found = {layout.batch: decided for layout, decided in layouts_alone(Exact(1, runs), replace(LAYOUT, batch=1,
             accumulation=1, checkpointing=False), 8)}  # fmt: skip
    assert sorted(found) == [1, 2, 4]  # eight at once do not accumulate, and nothing like that was run
    assert found[4].estimated.allocated.expected == 8 * 10**9 + DEFAULT.workspace_bytes
    assert found[4].estimated.allocated.high > round(found[4].estimated.allocated.expected * (1 + EXACT_UNCERTAINTY))
    assert found[2].tables is None


def test_a_stated_run_moves_what_a_job_needs() -> None:
    """More memory where it says so; and never less than the tables expect at least."""
    plain = replace(LAYOUT, batch=1, accumulation=1, checkpointing=False)
    stated = Stated("llama-3.2-1b", MODEL, plain, 8, 1, micro_batch=2, checkpointing=True)
    usual = least_need(stated)
    more = least_need(replace(stated, exact=said(2 * TABLES.allocated.expected)))
    less = least_need(replace(stated, exact=said(1_000_000_000)))
    assert less.capacity_bytes < usual.capacity_bytes < more.capacity_bytes
    assert less.decided is not None
    assert less.decided.raised
    assert less.capacity_bytes >= TABLES.allocated.low


def test_a_stated_unknown_model_needs_what_its_runs_say() -> None:
    """The most sparing layout that it states; nothing where no run was of such a layout."""
    exact = said(20_000_000_000)
    stated = StatedAlone("mine", exact, replace(LAYOUT, batch=1, accumulation=1), 8)
    found = least_need_alone(stated)
    assert found is not None
    assert 20_000_000_000 < found.capacity_bytes < 24_000_000_000
    assert least_need_alone(replace(stated, micro_batch=4)) is None


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_config_is_read_back_as_it_was(name: str) -> None:
    """What is told of a model, to run it symbolically, has its whole shape."""
    assert architecture_of(json.loads(json.dumps(config_of(MODELS[name])))) == MODELS[name]
