"""What a decision is told of jobs of the built-in recipe, and of all others nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpass.recipe.packing import SCRIPT_NAME
from allpass.recipe.settings import Recipe as Settings
from app.core.model.merge import Recipe
from app.core.model.snapshot import JobView
from app.db.checkpoints.manifests import learned_from
from app.db.decisions.snapshots import freeze, read_snapshot
from app.db.engine import Database
from app.db.merging.recipes import recipe_of, task_of
from app.db.tables import checkpoints, merges, metric_points, profiles
from tests.seeds import T0_MS, seed_app, seed_job, seed_node, seed_project, seed_run
from workers.trainer.agreement import differing

PLAIN = {"model": "tiny", "task": "classification", "sequence_length": 32}


class Row(NamedTuple):
    """The columns of a job and its version that say what it trains."""

    entrypoint: str
    bundle_sha256: str
    environment_sha256: str
    parameters: Any
    template: dict[str, Any]
    sharing: bool
    profile_tries: int
    from_checkpoint_id: str | None


def found(parameters: Any, **changes: Any) -> Recipe | None:
    row = Row(SCRIPT_NAME, "b" * 64, "e" * 64, parameters, {}, sharing=True, profile_tries=0, from_checkpoint_id=None)
    return recipe_of(row._replace(**changes))  # type: ignore[arg-type]  # as a row of the database is read


def recipe(parameters: Any, **changes: Any) -> Recipe:
    one = found(parameters, **changes)
    assert one is not None
    return one


@pytest.mark.parametrize(
    ("parameters", "changes"),
    [
        ({"model": "tiny", "colour": 1}, {}),
        ({"model": ""}, {}),
        (["--model", "tiny"], {}),
        (PLAIN, {"entrypoint": "train.py"}),
        (PLAIN, {"from_checkpoint_id": "ckpt_1"}),
        ({**PLAIN, "task": "dpo", "method": "lora"}, {}),
    ],
    ids=["unknown setting", "wrong value", "words", "code of its own", "a checkpoint that was chosen", "pairs"],
)
def test_a_job_without_the_recipe_has_none(parameters: Any, changes: dict[str, Any]) -> None:
    """Nor has one whose owner has named what it begins with: that is never replaced; nor one that learns from pairs,
    whose reference is its own."""
    assert found(parameters, **changes) is None


def test_a_recipe_says_with_whom_the_job_may_be_trained() -> None:
    """In words, as they are shown where two differ."""
    found = recipe({**PLAIN, "target": {"eval_loss": 1.5}}, sharing=False, profile_tries=2)
    assert found.base == "tiny (classification, lora of rank 16, alpha 32, all-linear)"
    assert (found.tokenizer, found.sequence, found.precision) == ("tiny", 32, "bf16")
    assert (found.shares, found.profile_tries, found.target_loss) == (False, 2, 1.5)
    assert found.ends_early
    assert recipe({**PLAIN, "patience": 3}).ends_early
    assert not recipe(PLAIN).ends_early
    assert recipe({**PLAIN, "method": "full"}).base == "tiny (classification, full)"


SETTINGS = st.fixed_dictionaries(
    {"model": st.sampled_from(["tiny", "small"])},
    optional={
        "method": st.sampled_from(["lora", "full"]),
        "batch_size": st.sampled_from([8, 16]),
        "warmup": st.sampled_from([0, 0.0, 0.03]),
        "learning_rate": st.sampled_from([2e-4, 1e-3]),
        "lora_targets": st.sampled_from(["all-linear", ["q_proj"]]),
        "seed": st.integers(0, 3),
        "epochs": st.sampled_from([1, 2.0]),
    },
)


@given(one=SETTINGS, other=SETTINGS)
def test_two_recipes_have_equal_settings_if_the_trainer_would_train_them_together(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    """What the policy compares is what the trainer asks for."""
    same = recipe(one).settings == recipe(other).settings
    assert same == (differing(Settings.of(one), Settings.of(other)) is None)
    if same:
        assert recipe(one).base == recipe(other).base


@pytest.mark.parametrize(
    "changes",
    [{"template": {"secrets": ["HF_TOKEN"]}}, {"environment_sha256": "f" * 64}],
    ids=["secrets", "packages"],
)
def test_one_process_is_not_shared_by_jobs_with_other_secrets_or_packages(changes: dict[str, Any]) -> None:
    """It has those of one of them. In turn each has its own: there nothing is asked but the same weights."""
    one, other = recipe(PLAIN), recipe(PLAIN, **changes)
    assert one.settings != other.settings
    assert replace(one, settings="") == replace(other, settings="")
    assert recipe(PLAIN, template={"secrets": ["B", "A"]}) == recipe(PLAIN, template={"secrets": ["A", "B"]})


async def _view(database: Database, job_id: str, *, merging: bool = True) -> JobView:
    async with database.transaction() as connection:
        await freeze(connection)
        snapshot = await read_snapshot(connection, T0_MS, (), 60_000, merging=merging)
    return {job.job_id: job for job in snapshot.jobs}[job_id]


async def test_a_snapshot_holds_profile_losses_and_step_time(database: Database) -> None:
    """Losses of jobs that train, at most 64 and the last among them; nothing at all while merging is off."""
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        app = await seed_app(connection, project_id, entrypoint=SCRIPT_NAME)
        job_id = await seed_job(
            connection, project_id, app, parameters=PLAIN, state="running", epoch=1, predicted_step_ms=250.0
        )
        node_id = await seed_node(connection, project_id)
        await seed_run(connection, project_id, job_id, node_id, running_ms=T0_MS)
        task = await task_of(connection, job_id)
        assert task is not None
        await connection.execute(
            profiles.insert().values(
                project_id=project_id, key=task[1], fisher=[1.0, 2.0], pull=[-1.0], rows=64, tokens=99, made_ms=T0_MS
            )
        )
        for step in range(1, 201):
            values = {"loss": 9.0} | ({"eval_loss": 5.0 / step} if step % 2 == 0 else {})
            await connection.execute(
                metric_points.insert().values(job_id=job_id, step=step, epoch=1, at_ms=T0_MS + step, values=values)
            )
    found = (await _view(database, job_id)).recipe
    assert found is not None
    assert (found.fisher, found.pull, found.step_ms) == ((1.0, 2.0), (-1.0,), ((1, 250.0),))
    assert len(found.losses) == 50
    assert found.losses[-1] == (200, 5.0 / 200)
    assert all(loss == 5.0 / step for step, loss in found.losses)
    assert (await _view(database, job_id, merging=False)).recipe is None


async def test_profiles_are_of_one_project_and_of_one_task(database: Database) -> None:
    """The same rows and model have one profile for all the jobs of a project; another project's is not seen."""
    async with database.transaction() as connection:
        jobs = []
        for parameters in (PLAIN, {**PLAIN, "seed": 5}, {**PLAIN, "sequence_length": 64}):
            project_id = await seed_project(connection)
            app = await seed_app(connection, project_id, entrypoint=SCRIPT_NAME)
            jobs.append((project_id, await seed_job(connection, project_id, app, parameters=parameters)))
        tasks = [await task_of(connection, job_id) for _, job_id in jobs]
        keys = [task[1] for task in tasks if task is not None]
        assert keys[0] == keys[1] != keys[2]
        await connection.execute(
            profiles.insert().values(
                project_id=jobs[0][0], key=keys[0], fisher=[1.0], pull=[1.0], rows=1, tokens=1, made_ms=T0_MS
            )
        )
    fishers = [(await _view(database, job_id)).recipe for _, job_id in jobs]
    assert [found.fisher for found in fishers if found is not None] == [(1.0,), (), ()]


async def test_a_job_whose_turn_has_come_begins_from_the_task_most_like_its_own(database: Database) -> None:
    """Not from whichever it waited for last. Where what was learned is not to be read, it waits for others again."""
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        app = await seed_app(connection, project_id, entrypoint=SCRIPT_NAME)
        companion = await seed_job(connection, project_id, app, parameters=PLAIN)
        for name, score in (("ckpt_like", 0.9), ("ckpt_less", 0.4)):
            lead = await seed_job(connection, project_id, app, parameters=PLAIN, state="succeeded", epoch=1)
            run_id = await seed_run(connection, project_id, lead, await seed_node(connection, project_id))
            await connection.execute(
                checkpoints.insert().values(
                    id=name, project_id=project_id, job_id=lead, run_id=run_id, epoch=1, step=40, state="committed",
                    manifest_sha256="a" * 64, size_bytes=0, opened_ms=T0_MS,
                )
            )  # fmt: skip
            await connection.execute(
                merges.insert().values(
                    id=f"merge_{name}", project_id=project_id, lead_job_id=lead, companion_job_id=companion,
                    mode="in-turn", gpus=1, state="ended", score=score, gain=0.3, begun_ms=T0_MS,
                    ended_ms=T0_MS + int(10 / score), reason="", checkpoint_id=name,
                )
            )  # fmt: skip
    assert (await _view(database, companion)).turn_has_come
    assert not (await _view(database, companion, merging=False)).turn_has_come
    async with database.transaction() as connection:
        learned = await learned_from(connection, companion)
        assert learned is not None
        assert learned.checkpoint_id == "ckpt_like"
        await connection.execute(checkpoints.update().values(state="aborted"))
    assert not (await _view(database, companion)).turn_has_come
