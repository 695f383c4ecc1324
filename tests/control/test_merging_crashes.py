"""Whatever writes a merge may die after any of its statements: nothing of it is left then, and the next try does it
whole. By default it dies after every second statement, with `--sweep` after each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from app.db.engine import make_engine
from tests.control.dying import DyingDatabase, KilledError
from tests.control.merging import Merging
from tests.control.world import World


async def _merge(merging: Merging) -> None:
    await merging.merge()


async def _split(merging: Merging) -> None:
    await merging.split()


async def _lead_ends(merging: Merging) -> None:
    await merging.lead.says(merging.lead.source, "exited", exit_code=0)


async def _companion_is_cancelled(merging: Merging) -> None:
    await merging.companion.cancel()


Act = Callable[[Merging], Awaitable[None]]


@pytest.mark.parametrize(
    ("act", "state", "told"),
    [
        (_merge, "open", "merged"),
        (_split, "split", "merge_split"),
        (_lead_ends, "ended", "merge_ended"),
        (_companion_is_cancelled, "void", "merge_ended"),
    ],
    ids=["merge", "split", "lead ends", "companion cancelled"],
)
async def test_a_death_after_any_statement_leaves_all_or_nothing(
    world: World, database_url: str, tmp_path: Path, act: Act, state: str, told: str, sweep: bool
) -> None:
    """The lead is told once, whenever the process died before."""
    merging, database = Merging(world, tmp_path), world.database
    if act is _merge:
        merging.lead.job_id, merging.companion.job_id = await world.submit(), await world.submit()
    else:
        await merging.begin()
        await merging.lead.saves(merging.lead.source, 40)
    engine = make_engine(database_url, pool_size=2, timeout_s=60)
    try:
        for lifetime in range(1, 400, 1 if sweep else 2):
            world.database = DyingDatabase(engine, lifetime)
            try:
                await act(merging)
                break
            except KilledError:
                world.database = database
                assert await merging.said(merging.lead, told) == []
                await world.check_invariants()
    finally:
        world.database = database
        await engine.dispose()
    assert lifetime > 5
    assert (await merging.row()).state == state
    assert len(await merging.said(merging.lead, told)) == 1
    await world.check_invariants()
