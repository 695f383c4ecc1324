"""Fine-tunings of OpenAI's client: the same jobs as all others, in its words."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from fastapi import FastAPI
from openai import AsyncOpenAI
from sqlalchemy import select, update

from app.api.context import ApiContext
from app.core.model.job import JobState
from app.db.tables import checkpoints, jobs, tunings
from tests.api.builders import add_checkpoint, add_ended_run, add_metric
from tests.api.conftest import Tenant
from tests.api.openai.conftest import chats, preferences, sent, strictly
from tests.seeds import T0_MS

MODEL = "gpt-4o-mini-2024-07-18"


async def created(api: FastAPI, door: AsyncOpenAI, **options: Any) -> Any:
    """A job of OpenAI's that has become one of ours."""
    options.setdefault("training_file", None)
    if options["training_file"] is None:
        options["training_file"] = await sent(door)
    job = await door.fine_tuning.jobs.create(**{"model": MODEL, **options})
    strictly(job)
    await api.state.doors.settled()
    return job


async def row_of(context: ApiContext, tuning_id: str) -> Any:
    async with context.database.transaction() as connection:
        found = await connection.execute(
            select(jobs).join(tunings, tunings.c.job_id == jobs.c.id).where(tunings.c.id == tuning_id)
        )
        return found.one()


async def becomes(context: ApiContext, tuning_id: str, state: JobState, **columns: Any) -> str:
    """The id of its job, which is in this state now."""
    job_id: str = (await row_of(context, tuning_id)).id
    async with context.database.transaction() as connection:
        await connection.execute(update(jobs).where(jobs.c.id == job_id).values(state=state, **columns))
    return job_id


async def test_a_job_is_accepted_at_once_and_becomes_one_of_ours(
    api: FastAPI, door: AsyncOpenAI, context: ApiContext, tenant: Tenant
) -> None:
    file_id = await sent(door)
    job = await door.fine_tuning.jobs.create(model=MODEL, training_file=file_id, seed=7, suffix="sums")
    strictly(job)
    assert (job.status, job.model, job.training_file, job.seed) == ("validating_files", MODEL, file_id, 7)
    assert (job.fine_tuned_model, job.finished_at, job.result_files) == (None, None, [])
    await api.state.doors.settled()
    again = await door.fine_tuning.jobs.retrieve(job.id)
    strictly(again)
    assert again.status == "queued"

    row = await row_of(context, job.id)
    assert row.name == "sums"
    assert row.parameters["model"] == "Qwen/Qwen2.5-7B-Instruct"
    assert (row.parameters["epochs"], row.parameters["batch_size"], row.parameters["seed"]) == (3.0, 1, 7)
    assert row.template["dataset"]["examples"] == 12, "all rows are trained on: none was said to be held out"
    shown = (await tenant.http.get(f"/v1/jobs/{row.id}")).json()
    assert shown["labels"] == {"openai": job.id}


async def test_numbers_and_what_is_ours_reach_the_recipe(api: FastAPI, door: AsyncOpenAI, context: ApiContext) -> None:
    job = await created(
        api,
        door,
        model="Qwen/Qwen2.5-0.5B",
        validation_file=await sent(door, chats(10), "valid.jsonl"),
        method={
            "type": "supervised",
            "supervised": {"hyperparameters": {"n_epochs": 2, "batch_size": 4, "learning_rate_multiplier": 0.5}},
        },
        metadata={"team": "nlp", "allpass_deadline": "6h", "allpass_max_cost": "25"},
        extra_body={"allpass": {"gpu": "L4", "settings": {"lora_rank": 8, "sequence_length": 256}}},
    )
    assert job.hyperparameters.to_dict() == {"n_epochs": 2, "batch_size": 4, "learning_rate_multiplier": 0.5}
    row = await row_of(context, job.id)
    told = row.parameters
    assert (told["epochs"], told["batch_size"], told["learning_rate"]) == (2.0, 4, 1e-4)
    assert (told["lora_rank"], told["sequence_length"]) == (8, 256)
    assert row.template["gpu"]["type"] == "L4"
    assert row.max_cost_micros == 25_000_000
    assert row.deadline_ms - row.submitted_ms == 6 * 3_600_000


async def test_preferences_are_learned_by_dpo(api: FastAPI, door: AsyncOpenAI, context: ApiContext) -> None:
    file_id = await sent(door, preferences())
    job = await created(
        api, door, training_file=file_id, method={"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.2}}}
    )
    assert job.method.type == "dpo"
    assert job.method.dpo.hyperparameters.beta == 0.2
    told = (await row_of(context, job.id)).parameters
    assert (told["task"], told["beta"], told["learning_rate"]) == ("dpo", 0.2, 5e-6)


async def test_states_are_told_in_the_words_of_the_other_side(
    api: FastAPI, door: AsyncOpenAI, context: ApiContext
) -> None:
    job = await created(api, door)
    expected = {
        JobState.QUEUED: "queued",
        JobState.STARTING: "queued",
        JobState.RUNNING: "running",
        JobState.CHECKPOINTING: "running",
        JobState.WAITING: "running",
        JobState.PAUSED: "queued",
        JobState.SUCCEEDED: "succeeded",
        JobState.FAILED: "failed",
        JobState.CANCELLED: "cancelled",
    }
    assert set(expected) == set(JobState)
    for state, status in expected.items():
        await becomes(context, job.id, state)
        told = await door.fine_tuning.jobs.retrieve(job.id)
        strictly(told)
        assert told.status == status
        assert (told.fine_tuned_model is not None) == (state is JobState.SUCCEEDED)
        assert (told.error is not None) == (state is JobState.FAILED)


async def test_a_job_that_has_succeeded_has_a_model_and_a_file_of_metrics(
    api: FastAPI, door: AsyncOpenAI, context: ApiContext, tenant: Tenant
) -> None:
    job = await created(api, door, suffix="my sums")
    job_id = await becomes(context, job.id, JobState.SUCCEEDED, ended_ms=T0_MS + 60_000)
    await add_metric(context, job_id, 1, loss=2.5, tokens=100)
    await add_metric(context, job_id, 2, loss=1.5, eval_loss=1.25, tokens=200)
    done = await door.fine_tuning.jobs.retrieve(job.id)
    strictly(done)
    assert done.trained_tokens == 200
    assert done.finished_at == (T0_MS + 60_000) // 1000
    assert done.fine_tuned_model is not None
    assert done.fine_tuned_model.startswith(f"ft:{MODEL}:")
    assert ":my-sums:" in done.fine_tuned_model
    (results,) = done.result_files
    strictly(file := await door.files.retrieve(results))
    assert file.bytes == len((await door.files.content(results)).content)
    lines = (await door.files.content(results)).text.splitlines()
    assert lines[0] == "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy"
    assert lines[1:] == ["1,2.5,,,", "2,1.5,,1.25,"]
    assert results in [one.id async for one in door.files.list()]
    assert [one.id async for one in door.files.list(purpose="fine-tune-results")] == [results]

    strictly(model := await door.models.retrieve(done.fine_tuned_model))
    assert model.owned_by == tenant.project_id
    names = [one.id async for one in door.models.list()]
    assert names[0] == done.fine_tuned_model
    assert MODEL in names
    strictly(await door.models.delete(done.fine_tuned_model))
    with pytest.raises(openai.NotFoundError) as refused:
        await door.models.retrieve(done.fine_tuned_model)
    assert refused.value.code == "model_not_found"


async def test_a_fine_tuned_model_can_be_tuned_again(
    api: FastAPI, door: AsyncOpenAI, context: ApiContext, tenant: Tenant
) -> None:
    import hashlib
    import json

    from safetensors.numpy import save

    from app.ports.objects import content_key
    from tests.api.builders import add_artifact

    job = await created(api, door)
    name = (await row_of(context, job.id)).name
    assert name == job.id
    with pytest.raises(openai.NotFoundError):
        await created(api, door, model="ft:nothing")
    async with context.database.transaction() as connection:
        model = (
            await connection.execute(select(tunings.c.fine_tuned_model).where(tunings.c.id == job.id))
        ).scalar_one()
    with pytest.raises(openai.BadRequestError) as early:
        await created(api, door, model=model)
    assert early.value.code == "model_not_ready"
    job_id = await becomes(context, job.id, JobState.SUCCEEDED, ended_ms=T0_MS)
    run_id = await add_ended_run(context, tenant, job_id)
    config = json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}).encode()
    for path, content in (("adapter_config.json", config), ("adapter_model.safetensors", save({}))):
        digest = hashlib.sha256(content).hexdigest()
        await add_artifact(context, job_id, run_id, path, digest)
        await context.objects.put(content_key(tenant.project_id, digest), content, sha256=digest)
    second = await created(api, door, model=model)
    told = (await row_of(context, second.id)).parameters
    assert told["adapter"] == "adapter"
    assert told["lora_rank"] == 4
    assert told["model"] == "Qwen/Qwen2.5-7B-Instruct"


async def test_events_are_told_newest_first_page_by_page_without_a_gap(
    api: FastAPI, door: AsyncOpenAI, context: ApiContext, tenant: Tenant
) -> None:
    job = await created(api, door)
    job_id = await becomes(context, job.id, JobState.RUNNING, total_steps=40)
    for step in range(1, 41):
        await add_metric(context, job_id, step, loss=1 / step)
    whole = await door.fine_tuning.jobs.list_events(job.id, limit=100)
    for one in whole.data:
        strictly(one)
    assert whole.has_more is False
    steps = [one.data["step"] for one in whole.data if one.type == "metrics"]  # type: ignore[index]  # typed as object
    assert steps == list(range(40, 0, -1))
    assert whole.data[-1].message == f"Created fine-tuning job: {job.id}"
    assert f"{MODEL} means Qwen/Qwen2.5-7B-Instruct" in whole.data[-2].message
    for size in (1, 3, 7):
        told = [one async for one in door.fine_tuning.jobs.list_events(job.id, limit=size)]
        assert [one.id for one in told] == [one.id for one in whole.data]
        assert told == whole.data


async def test_checkpoints_are_told_with_their_metrics(
    api: FastAPI, door: AsyncOpenAI, context: ApiContext, tenant: Tenant
) -> None:
    job = await created(api, door)
    job_id = await becomes(context, job.id, JobState.RUNNING)
    run_id = await add_ended_run(context, tenant, job_id)
    for step in (10, 20, 30):
        await add_checkpoint(context, tenant, job_id, run_id, step=step)
        async with context.database.transaction() as connection:
            await connection.execute(
                update(checkpoints).where(checkpoints.c.step == step).values(metrics={"loss": 1 / step})
            )
    told = [one async for one in door.fine_tuning.jobs.checkpoints.list(job.id, limit=1)]
    for one in told:
        strictly(one)
    assert [one.step_number for one in told] == [30, 20, 10]
    assert told[0].metrics.train_loss == pytest.approx(1 / 30)
    assert told[0].fine_tuned_model_checkpoint.endswith(":ckpt-step-30")


async def test_more_jobs_than_a_page_are_listed_each_once(api: FastAPI, door: AsyncOpenAI, context: ApiContext) -> None:
    file_id = await sent(door)
    made = []
    for number in range(5):
        team = {"team": "nlp" if number % 2 else "vision"} if number else None
        job = await door.fine_tuning.jobs.create(model=MODEL, training_file=file_id, metadata=team)
        made.insert(0, job.id)
    await api.state.doors.settled()
    assert [one.id async for one in door.fine_tuning.jobs.list(limit=2)] == made
    nlp = [one.id async for one in door.fine_tuning.jobs.list(metadata={"team": "nlp"}, limit=1)]
    assert nlp == [made[1], made[3]]
    without = await door.fine_tuning.jobs.list(extra_query={"metadata": "null"})
    assert [one.id for one in without.data] == [made[4]]


async def test_250_jobs_are_paged_through(door: AsyncOpenAI, context: ApiContext, api: FastAPI) -> None:
    file_id = await sent(door)
    job = await door.fine_tuning.jobs.create(model=MODEL, training_file=file_id)
    await api.state.doors.settled()
    async with context.database.transaction() as connection:
        row = (await connection.execute(select(tunings).where(tunings.c.id == job.id))).mappings().one()
        copies = [{**row, "id": f"ftjob-0{n:04}", "fine_tuned_model": f"ft:x:{n}"} for n in range(249)]
        await connection.execute(tunings.insert(), copies)
    ids = [one.id async for one in door.fine_tuning.jobs.list(limit=20)]
    assert len(set(ids)) == len(ids) == 250


async def test_a_job_can_be_paused_resumed_and_cancelled(api: FastAPI, door: AsyncOpenAI, context: ApiContext) -> None:
    job = await created(api, door)
    strictly(paused := await door.fine_tuning.jobs.pause(job.id))
    assert paused.status == "queued"
    assert (await row_of(context, job.id)).state == JobState.PAUSED
    strictly(await door.fine_tuning.jobs.resume(job.id))
    assert (await row_of(context, job.id)).state == JobState.QUEUED
    strictly(cancelled := await door.fine_tuning.jobs.cancel(job.id))
    assert cancelled.status == "cancelled"
    assert cancelled.finished_at is not None
    assert (await door.fine_tuning.jobs.cancel(job.id)).status == "cancelled"
    for late in (door.fine_tuning.jobs.pause, door.fine_tuning.jobs.resume):
        with pytest.raises(openai.ConflictError):
            await late(job.id)


async def test_a_job_that_is_cancelled_before_it_is_one_never_becomes_one(
    api: FastAPI, door: AsyncOpenAI, context: ApiContext
) -> None:
    file_id = await sent(door)
    job = await door.fine_tuning.jobs.create(model=MODEL, training_file=file_id)
    cancelled = await door.fine_tuning.jobs.cancel(job.id)
    assert cancelled.status == "cancelled"
    await api.state.doors.settled()
    assert (await door.fine_tuning.jobs.retrieve(job.id)).status == "cancelled"
    async with context.database.transaction() as connection:
        states = list((await connection.execute(select(jobs.c.state))).scalars())
    assert states in ([], [JobState.CANCELLED]), "what was submitted meanwhile is cancelled, too"


async def test_the_same_key_makes_one_job(api: FastAPI, door: AsyncOpenAI) -> None:
    file_id = await sent(door)
    told = {"Idempotency-Key": "once"}
    first, second = await asyncio.gather(
        *(
            door.fine_tuning.jobs.create(model=MODEL, training_file=file_id, seed=1, extra_headers=told)
            for _ in range(2)
        )
    )
    assert first.id == second.id
    await api.state.doors.settled()
    assert len([one async for one in door.fine_tuning.jobs.list()]) == 1
    with pytest.raises(openai.ConflictError):
        await door.fine_tuning.jobs.create(model=MODEL, training_file=file_id, seed=2, extra_headers=told)


def of_ours(**told: Any) -> dict[str, Any]:
    return {"extra_body": {"allpass": told}}


REFUSED: list[tuple[dict[str, Any], type[openai.APIStatusError], str, str | None]] = [
    ({"model": "gpt-9"}, openai.NotFoundError, "model", "model_not_found"),
    ({"model": "ft:gpt-4o-mini:x::abc"}, openai.NotFoundError, "model", "model_not_found"),
    ({"training_file": "file-nothing"}, openai.BadRequestError, "training_file", "invalid_file_id"),
    ({"validation_file": "file-nothing"}, openai.BadRequestError, "validation_file", "invalid_file_id"),
    ({"seed": -1}, openai.BadRequestError, "seed", None),
    ({"suffix": "x" * 65}, openai.BadRequestError, "suffix", None),
    ({"metadata": {"k" * 65: "v"}}, openai.BadRequestError, "metadata." + "k" * 65, None),
    ({"metadata": {"allpass_max_cost": "much"}}, openai.BadRequestError, "metadata.allpass_max_cost", None),
    ({"metadata": {"allpass_deadline": "soon"}}, openai.BadRequestError, "metadata.allpass_deadline", None),
    ({"hyperparameters": {"n_epochs": 0}}, openai.BadRequestError, "hyperparameters.n_epochs", None),
    ({"hyperparameters": {"n_epochs": "many"}}, openai.BadRequestError, "hyperparameters.n_epochs", None),
    ({"hyperparameters": {"batch_size": 257}}, openai.BadRequestError, "hyperparameters.batch_size", None),
    ({"hyperparameters": {"beta": 1.0}}, openai.BadRequestError, "hyperparameters.beta", None),
    (
        {"method": {"type": "reinforcement", "reinforcement": {"grader": {}}}},
        openai.BadRequestError, "method", "unsupported_method",
    ),
    (
        {"method": {"type": "supervised", "dpo": {"hyperparameters": {}}}},
        openai.BadRequestError, "method.dpo", "invalid_hyperparameters",
    ),
    ({"method": {"type": "dpo"}}, openai.BadRequestError, "training_file", "invalid_training_file"),
    (
        {"integrations": [{"type": "mlflow", "mlflow": {"project": "p"}}]},
        openai.BadRequestError, "integrations", "unsupported_integration",
    ),
    ({"integrations": [{"type": "wandb"}]}, openai.BadRequestError, "integrations", None),
    (
        {"integrations": [{"type": "wandb", "wandb": {"project": "p"}}]},
        openai.BadRequestError, "integrations", "missing_secret",
    ),
    ({"integrations": [{"type": "wandb", "wandb": {"project": "a/b"}}]}, openai.BadRequestError, "integrations", None),
    (
        {"integrations": [{"type": "wandb", "wandb": {"project": "p"}}] * 2},
        openai.BadRequestError, "integrations", None,
    ),
    ({"extra_body": {"learning_rate": 1}}, openai.BadRequestError, "learning_rate", None),
    (of_ours(settings={"adapter": "/etc"}), openai.BadRequestError, "allpass.settings.adapter", None),
    (of_ours(settings={"lora_rank": 0}), openai.BadRequestError, "lora_rank", "invalid_hyperparameters"),
    (of_ours(template={"gpus": 1}), openai.BadRequestError, "allpass.template.gpus", None),
]  # fmt: skip


@pytest.mark.parametrize(("options", "error", "param", "code"), REFUSED)
async def test_what_cannot_be_is_refused_by_name(
    door: AsyncOpenAI, options: dict[str, Any], error: type[openai.APIStatusError], param: str, code: str | None
) -> None:
    file_id = options.get("training_file") or await sent(door)
    with pytest.raises(error) as refused:
        await door.fine_tuning.jobs.create(**{"model": MODEL, **options, "training_file": file_id})
    assert (refused.value.param, refused.value.code) == (param, code)
    assert refused.value.type == "invalid_request_error"
    assert [one async for one in door.fine_tuning.jobs.list()] == []


async def test_files_that_cannot_be_trained_on_are_refused(door: AsyncOpenAI, other_door: AsyncOpenAI) -> None:
    bad = await sent(door, chats(9))
    plain = (await door.files.create(file=("a.jsonl", chats()), purpose="user_data")).id
    deleted = await sent(door)
    await door.files.delete(deleted)
    foreign = await sent(other_door)
    pairs = await sent(door, preferences())
    for file_id, code, told in (
        (bad, "invalid_training_file", "at least 10 examples"),
        (plain, "invalid_file_purpose", "upload it with 'fine-tune'"),
        (deleted, "invalid_file_id", "was deleted"),
        (foreign, "invalid_file_id", "does not exist"),
        (pairs, "invalid_training_file", "method dpo"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await door.fine_tuning.jobs.create(model=MODEL, training_file=file_id)
        assert (refused.value.param, refused.value.code) == ("training_file", code)
        assert told in refused.value.message


async def test_a_file_that_is_deleted_before_it_is_read_fails_the_job(
    api: FastAPI, door: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.state.doors, "advance", lambda tuning: None)  # the process dies here
    file_id = await sent(door)
    job = await door.fine_tuning.jobs.create(model=MODEL, training_file=file_id)
    await door.files.delete(file_id)
    from app.db.doors.tunings import find_tuning

    async with api.state.context.database.transaction() as connection:
        tuning = await find_tuning(connection, job.organization_id, job.id)
    assert tuning is not None
    await api.state.doors.tunings.advance(tuning)
    told = await door.fine_tuning.jobs.retrieve(job.id)
    strictly(told)
    assert told.status == "failed"
    assert told.error is not None
    assert told.error.param == "training_file"
    assert "was deleted" in told.error.message
    events = [one.message async for one in door.fine_tuning.jobs.list_events(job.id)]
    assert "was deleted" in events[0]


async def test_jobs_of_another_project_are_not_there(
    api: FastAPI, door: AsyncOpenAI, other_door: AsyncOpenAI, context: ApiContext
) -> None:
    job = await created(api, door)
    of = other_door.fine_tuning.jobs
    for ask in (of.retrieve, of.cancel, of.pause, of.resume, of.list_events, of.checkpoints.list):
        with pytest.raises(openai.NotFoundError) as refused:
            await ask(job.id)
        assert refused.value.code == "fine_tune_not_found"
    assert [one async for one in of.list()] == []
    assert (await row_of(context, job.id)).state == JobState.QUEUED


async def test_what_the_door_has_not_is_said(door: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await door.fine_tuning.alpha.graders.validate(grader={"type": "string_check"})  # type: ignore[arg-type]  # any
    assert refused.value.code == "unsupported"
    with pytest.raises(openai.BadRequestError):
        await door.fine_tuning.checkpoints.permissions.list("ft:x:ckpt")
    with pytest.raises(openai.NotFoundError) as unknown:
        await door.embeddings.create(model="x", input="y")
    assert unknown.value.code == "unknown_url"


async def test_what_it_will_take_is_said_before_it_starts(api: FastAPI, door: AsyncOpenAI, context: ApiContext) -> None:
    """Where something is offered; where nobody knows, nothing is said, and the job goes on."""
    from app.core.model.node import Tier
    from app.db.offers.listed import replace_offers
    from tests.control.fake_provider import make_offer

    def estimates(events: list[Any]) -> list[str]:
        return [one.message for one in events if one.message.startswith("Estimate")]

    unknown = await created(api, door)
    assert estimates([one async for one in door.fine_tuning.jobs.list_events(unknown.id)]) == []
    async with context.database.transaction() as connection:
        offers = [
            make_offer("cloud", "fast", Tier.SERVERLESS, "4.00", startup_ms=3000),
            make_offer("cloud", "cheap", Tier.MARKETPLACE, "0.80", startup_ms=60_000),
        ]
        await replace_offers(connection, "cloud", offers, now_ms=context.clock.now_ms())
    job = await created(api, door, hyperparameters={"n_epochs": 50})
    events = [one async for one in door.fine_tuning.jobs.list_events(job.id)]
    (told,) = estimates(events)
    assert "600 steps" in told
    assert "(marketplace), or about" in told
    assert "(serverless)" in told
    assert [one.message for one in events[-3:]] == [told, events[-2].message, f"Created fine-tuning job: {job.id}"]
