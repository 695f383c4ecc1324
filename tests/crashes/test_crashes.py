"""Kill the server at any step of any story, build it anew from the database, and the story still ends well.

By default each story is crashed at one of its steps, always the same one, and each call at every 31st. With `--sweep`
it is crashed at every step. A failure names story and step: `CRASH_AT=137 pytest tests/crashes -k moved` tells that one
again.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from app.db.engine import Database
from tests.crashes.stage import MOST_ROUNDS, Stage, empty, lines_to
from tests.crashes.stories import STORIES, Story

CRASH_AT = [int(step) for step in os.environ.get("CRASH_AT", "").split(",") if step]
BOUNDARIES_TRIED = 1
STEPS_BETWEEN_DEATHS = 31
pytestmark = pytest.mark.timeout(300)
Summary = dict[str, Any]
Tell = Callable[..., Awaitable[tuple[Summary, Stage]]]


@pytest.fixture
async def tell(database: Database, database_url: str, tmp_path: Path) -> AsyncIterator[Tell]:
    """Tells a story from its beginning, in an empty database."""
    async with lines_to(database_url) as lines:

        async def tell_once(story: Story, prepare: Callable[[Stage], None] = lambda _: None) -> tuple[Summary, Stage]:
            await empty(database)
            return await _tell(Stage(database_url, database, lines, tmp_path), story, prepare)

        yield tell_once


async def _tell(stage: Stage, story: Story, prepare: Callable[[Stage], None]) -> tuple[Summary, Stage]:
    prepare(stage)
    user = story.begin(stage)
    try:
        await stage.open()
        for _ in range(MOST_ROUNDS):
            await stage.round(user.turn)
            await stage.check_at_any_time()
            if await stage.is_over():
                await stage.check_the_end()
                return await stage.summary(), stage
        pytest.fail(f"it does not end: {await stage.summary()}")
    except BaseException as error:
        error.add_note(f"the story '{story.name}', killed {'; '.join(stage.deaths) or 'never'}")
        raise
    finally:
        await stage.close()


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
async def test_a_server_that_dies_once_changes_nothing(story: Story, tell: Tell, sweep: bool) -> None:
    """Around each moment at which something becomes visible outside: the story goes as it does without a crash."""
    seen: list[tuple[int, tuple[int, int, int]]] = []

    def watch(stage: Stage) -> None:
        async def witness(step: int) -> None:
            seen.append((step, await stage.horizon()))

        stage.witness = witness

    reference, told = await tell(story, watch)
    assert (reference["state"], reference["end_reason"]) == story.ends
    assert tuple(reference["stays"]) == story.stays
    assert reference["prepared_moves"] == story.prepared_moves
    assert story.sizes is None or reference["sizes"] == list(story.sizes)
    moved = [step for (_, before), (step, after) in itertools.pairwise(seen) if before != after]
    assert len(moved) > 10
    for step in _steps_to_try(story, moved, told.process.steps, sweep):
        summary, crashed = await tell(story, lambda stage, step=step: stage.lifetimes.append(step))
        otherwise = story.differences(reference, summary)
        assert not otherwise, f"'{story.name}' killed {crashed.deaths}; again: CRASH_AT={step}"
        assert len(crashed.deaths) == 1, f"'{story.name}' has no step {step}"


def _steps_to_try(story: Story, moved: list[int], last: int, sweep: bool) -> list[int]:
    if CRASH_AT:
        return CRASH_AT
    if sweep:
        return list(range(1, last + 1))
    around = sorted({near for step in moved for near in (step - 1, step, step + 1) if 0 < near <= last})
    return sorted(random.Random(story.name).sample(around, BOUNDARIES_TRIED))


@pytest.mark.skipif(bool(CRASH_AT), reason="CRASH_AT replays one crash")
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
async def test_a_server_that_dies_in_every_call_changes_nothing(story: Story, tell: Tell, sweep: bool) -> None:
    """Each call is killed, made again of the next server, killed some steps later, and so on until it gets through."""
    reference, _ = await tell(story)

    def be_impatient(stage: Stage) -> None:
        stage.impatience = 1 if sweep else STEPS_BETWEEN_DEATHS
        stage.first_death = 1 if sweep else random.Random(story.name).randint(1, STEPS_BETWEEN_DEATHS)

    summary, stage = await tell(story, be_impatient)
    print(f"{story.name}: {len(stage.deaths)} deaths")
    otherwise = story.differences(reference, summary)
    assert not otherwise, f"'{story.name}' killed {stage.deaths}"
    assert len(stage.deaths) > 20
