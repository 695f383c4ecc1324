"""What an agent hears, and says, of a run that looks at its task before it trains."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from allpass.recipe.packing import SCRIPT_NAME
from app.db.tables import app_versions, jobs, profiles
from tests.services.agents.conftest import Stage

FOUND = {"fisher": [0.5, 0.25], "pull": [0.1, -0.2], "rows": 64, "tokens": 4096}


@pytest.mark.parametrize(("modes", "looks"), [("in-turn", True), ("", False)])
async def test_a_run_looks_at_a_task_that_nobody_knows(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, modes: str, looks: bool
) -> None:
    """If jobs are merged at all. It says what it found beside any report, and is not asked again."""
    monkeypatch.setattr(stage.context.settings, "merge_modes", modes)
    place = await stage.place(parameters={"model": "tiny"})
    async with stage.database.transaction() as connection:
        await connection.execute(update(app_versions).values(entrypoint=SCRIPT_NAME))
    (run,) = (await stage.sync(place)).json()["runs"]
    assert (run["spec"]["profiles"], run["spec"]["purpose"]) == (looks, "train")
    if looks:
        answer = await stage.sync(place, place.report("running", step=1, profile=FOUND))
        (run,) = answer.json()["runs"]
        assert not run["spec"]["profiles"]
        (row,) = await stage.rows(profiles)
        assert (row.project_id, row.pull, row.tokens) == (place.project_id, FOUND["pull"], 4096)
        assert (await stage.row(jobs, place.job_id)).step == 1
        many = place.report("running", step=1, profile=FOUND | {"rows": 2**53})
        assert (await stage.sync(place, many)).status_code == 200
        wrong = place.report("running", step=2, profile=FOUND | {"pull": [0.0]})
        assert (await stage.sync(place, wrong)).status_code == 200
        assert len(await stage.rows(profiles)) == 1
        assert (await stage.row(jobs, place.job_id)).step == 2
