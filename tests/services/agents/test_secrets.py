"""Secrets reach the agent of a live run, while it needs them, and nobody else."""

from __future__ import annotations

import pytest
from sqlalchemy import select, update

from app.core.model.run import RunState
from app.db.tables import job_events, jobs, metadata, runs, secrets
from app.services.access.keep_secret import drop_secret, set_secret
from app.services.kit.seal import Sealer
from tests.services.agents.conftest import Place, Stage

TOKEN = "hf_0123456789abcdef"
NAMED = {"secrets": ["HF_TOKEN", "WANDB_KEY"]}


async def keep(stage: Stage, project_id: str, **values: str) -> None:
    sealer = Sealer(stage.context.settings.secret_key.get_secret_value())
    async with stage.database.transaction() as connection:
        for name, value in values.items():
            await set_secret(connection, sealer, project_id, name, value, now_ms=stage.clock.now_ms())


async def given(stage: Stage, place: Place, *reports: dict[str, object]) -> dict[str, str]:
    answer = await stage.sync(place, *reports)
    assert answer.status_code == 200, answer.text
    (run,) = answer.json()["runs"]
    found: dict[str, str] = run["spec"]["secrets"]
    return found


async def test_a_run_gets_what_its_job_names(stage: Stage) -> None:
    """By name, and nothing that it does not name; other projects' values never."""
    place = await stage.place(template=NAMED)
    other = await stage.place(template=NAMED)
    await keep(stage, place.project_id, HF_TOKEN=TOKEN, WANDB_KEY="wandb-123", UNNAMED="unnamed-123")
    await keep(stage, other.project_id, HF_TOKEN="another-token")
    assert await given(stage, place) == {"HF_TOKEN": TOKEN, "WANDB_KEY": "wandb-123"}
    assert await given(stage, other) == {"HF_TOKEN": "another-token"}
    assert await given(stage, await stage.place()) == {}


async def test_they_are_told_until_the_code_runs(stage: Stage) -> None:
    """Again and again while it is prepared (a reply may be lost), then no more."""
    place = await stage.place(template=NAMED)
    await keep(stage, place.project_id, HF_TOKEN=TOKEN)
    assert await given(stage, place, place.report("preparing")) == {"HF_TOKEN": TOKEN}
    assert await given(stage, place, place.report("preparing")) == {"HF_TOKEN": TOKEN}
    assert await given(stage, place, place.report("running")) == {}
    later = await stage.next_run(place)
    answer = await stage.sync(later)
    specs = {run["run_id"]: run["spec"]["secrets"] for run in answer.json()["runs"]}
    assert specs == {later.run_id: {"HF_TOKEN": TOKEN}}


@pytest.mark.parametrize("mode", ["checkpoint", "kill"])
async def test_a_run_that_is_to_stop_gets_none(stage: Stage, mode: str) -> None:
    """It will not start any more."""
    place = await stage.place(template=NAMED)
    await keep(stage, place.project_id, HF_TOKEN=TOKEN)
    async with stage.database.transaction() as connection:
        await connection.execute(update(runs).values(state=RunState.STOPPING, stop_mode=mode))
    assert await given(stage, place) == {}


async def test_one_that_was_deleted_or_cannot_be_opened_is_absent(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are still told; the operator reads why in the server's log, without the value."""
    place = await stage.place(template=NAMED)
    await keep(stage, place.project_id, HF_TOKEN=TOKEN, WANDB_KEY="wandb-123")
    async with stage.database.transaction() as connection:
        await connection.execute(update(secrets).where(secrets.c.name == "HF_TOKEN").values(seal_key_id="s1-old"))
    assert await given(stage, place) == {"WANDB_KEY": "wandb-123"}
    assert "HF_TOKEN" in caplog.text
    assert "ALLPASS_SECRET_KEY" in caplog.text
    assert TOKEN not in caplog.text
    async with stage.database.transaction() as connection:
        await drop_secret(connection, place.project_id, "WANDB_KEY")
    assert await given(stage, place) == {}


async def test_nothing_that_is_stored_holds_a_value(stage: Stage) -> None:
    """After a whole run no table does: not the job, its events, the heartbeats."""
    place = await stage.place(template=NAMED)
    await keep(stage, place.project_id, HF_TOKEN=TOKEN, WANDB_KEY="wandb-123")
    for report in (place.report("preparing"), place.report("running"), place.report("exited", exit={"exit_code": 0})):
        await stage.sync(place, report)
    async with stage.database.transaction() as connection:
        assert (await connection.execute(select(job_events.c.kind).where(job_events.c.job_id == place.job_id))).all()
        assert (await connection.execute(select(jobs.c.state))).all()
        for table in metadata.sorted_tables:
            assert TOKEN not in repr((await connection.execute(select(table))).all()), table.name
