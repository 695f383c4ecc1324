"""What decisions know of moves: what one costs, who has the job meanwhile, and who is left alone."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from app.core.board import Board
from app.core.lifecycle import MOVE_TRANSITIONS, RUN_TRANSITIONS
from app.core.model.move import MOST_BACK_OFF_MS, OPEN_MOVE_STATES, back_off_ms
from app.core.model.node import Tier
from app.core.model.run import RunState
from app.core.model.snapshot import RunView
from app.core.policies.weighing import break_even_ms, move_cost
from app.core.policy import MoveCost, PolicyConfig

SOURCE = RunView("run_a", ("job_a",), "node_a", Tier.SERVERLESS, RunState.RUNNING, 1, 0, running_since_ms=0)
TARGET = RunView("run_b", ("job_a",), "node_b", Tier.MARKETPLACE, RunState.STANDBY, 1, 0)


def config(prepare_ms: int) -> PolicyConfig:
    moves = MoveCost(save_ms=1_000, load_ms=2_000, prepare_ms=prepare_ms)
    return PolicyConfig(frozenset(), 300_000, 10, 10, 0, moves=moves)


def test_the_target_is_paid_while_it_prepares_and_that_is_part_of_the_cost() -> None:
    """Saving: both machines; loading and preparing: the target. A move then pays later."""
    assert move_cost(config(0), 10, 4) == 1_000 * 14 + 2_000 * 4
    assert move_cost(config(30_000), 10, 4) == 1_000 * 14 + 32_000 * 4
    assert (break_even_ms(config(30_000), 10, 4) or 0) > (break_even_ms(config(0), 10, 4) or 0)


def test_the_job_is_the_sources_until_code_of_the_target_runs() -> None:
    """Through all states of a move; from its beginning to the end of the source, the job moves."""
    board = Board()
    board.put_run(SOURCE)
    assert not board.is_moving("job_a")
    for source, target, holder in (
        (RunState.RUNNING, RunState.STANDBY, "run_a"),
        (RunState.STOPPING, RunState.STANDBY, "run_a"),
        (RunState.STOPPING, RunState.PROMOTING, "run_a"),
        (RunState.STOPPING, RunState.RUNNING, "run_b"),
    ):
        board.put_run(replace(SOURCE, state=source))
        board.put_run(replace(TARGET, state=target))
        run = board.run_of("job_a")
        assert run is not None
        assert (run.run_id, board.is_moving("job_a")) == (holder, True)
    board.drop_run("run_a")
    assert not board.is_moving("job_a")


def test_every_open_move_can_be_abandoned_and_none_that_is_over_goes_on() -> None:
    """And a run that stands by runs no code but by being promoted."""
    over = MOVE_TRANSITIONS.keys() - OPEN_MOVE_STATES
    assert all("abandoned" in MOVE_TRANSITIONS[state] for state in OPEN_MOVE_STATES)
    assert not any(MOVE_TRANSITIONS[state] for state in over)
    assert RUN_TRANSITIONS[RunState.STANDBY] == {RunState.PROMOTING, RunState.ENDED}
    into = [state for state, targets in RUN_TRANSITIONS.items() if RunState.PROMOTING in targets]
    assert into == [RunState.STANDBY]


@given(st.integers(0, 10_000))
def test_the_back_off_grows_and_has_an_end(failed: int) -> None:
    """Half a minute after the first failed target, an hour at most."""
    assert 30_000 <= back_off_ms(failed) <= back_off_ms(failed + 1) <= MOST_BACK_OFF_MS
