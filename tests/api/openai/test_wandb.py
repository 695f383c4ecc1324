"""Weights & Biases as an integration of a fine-tuning: accepted as OpenAI's client sends it, with the project's key."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from fastapi import FastAPI
from openai import AsyncOpenAI
from sqlalchemy import update

from app.api.context import ApiContext
from app.db.tables import tunings
from tests.api.conftest import Tenant
from tests.api.openai.conftest import sent, strictly
from tests.api.openai.test_tunings import MODEL, created, row_of

KEY = "a-key-of-weights-and-biases-0000000000000"


def wandb(**told: Any) -> dict[str, Any]:
    return {"type": "wandb", "wandb": {"project": "sums", **told}}


async def has_key(tenant: Tenant) -> None:
    answer = await tenant.http.put("/v1/secrets/WANDB_API_KEY", json={"value": KEY})
    assert answer.status_code < 300, answer.text


async def test_it_is_accepted_and_told_as_openai_tells_it(
    api: FastAPI, door: AsyncOpenAI, context: ApiContext, tenant: Tenant
) -> None:
    """The job has the secret by its name, a run with the fine-tuning's id, and trains alone: its steps are its own."""
    await has_key(tenant)
    job = await created(api, door, integrations=[wandb(name="first", entity="team", tags=["a"])])
    (told,) = job.integrations
    assert told.to_dict() == {
        "type": "wandb",
        "wandb": {"project": "sums", "name": "first", "entity": "team", "tags": ["a"]},
    }
    again = await door.fine_tuning.jobs.retrieve(job.id)
    strictly(again)
    assert again.integrations == job.integrations
    row = await row_of(context, job.id)
    assert row.template["secrets"] == ["WANDB_API_KEY"]
    assert row.template["sharing"] is False
    assert row.parameters["wandb"] == {
        "project": "sums", "name": "first", "entity": "team", "run": job.id,
        "tags": ["a", "allpass/finetune", "allpass/Qwen-Qwen2.5-7B-Instruct", f"allpass/{job.id}"],
    }  # fmt: skip
    assert KEY not in str(row)


async def test_what_is_left_out_has_openais_defaults(
    api: FastAPI, door: AsyncOpenAI, context: ApiContext, tenant: Tenant
) -> None:
    """The run's name is the job's id; an own secret in the template stays beside the key."""
    await has_key(tenant)
    await tenant.http.put("/v1/secrets/HF_TOKEN", json={"value": "hf_of-ones-own"})
    ours = {"allpass": {"template": {"secrets": ["HF_TOKEN"]}}}
    job = await created(api, door, integrations=[wandb(name=None, entity=None)], extra_body=ours)
    row = await row_of(context, job.id)
    assert row.parameters["wandb"]["name"] == job.id
    assert row.template["secrets"] == ["HF_TOKEN", "WANDB_API_KEY"]
    plain = await created(api, door)
    assert plain.integrations == []
    assert "wandb" not in (await row_of(context, plain.id)).parameters


async def test_without_the_secret_it_is_refused_by_its_name(door: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await door.fine_tuning.jobs.create(model=MODEL, training_file=await sent(door), integrations=[wandb()])  # type: ignore[list-item]
    assert refused.value.code == "missing_secret"
    assert "allpass secret set WANDB_API_KEY" in refused.value.message


@pytest.mark.parametrize(
    "told",
    [
        {"project": ""},
        {"project": "p" * 129},
        {"tags": ["t" * 65]},
        {"tags": ["t"] * 11},
        {"colour": "red"},
        {"entity": "a/b"},
    ],
)
async def test_names_that_wandb_does_not_take_are_refused(
    door: AsyncOpenAI, tenant: Tenant, told: dict[str, Any]
) -> None:
    await has_key(tenant)
    with pytest.raises(openai.BadRequestError) as refused:
        await door.fine_tuning.jobs.create(
            model=MODEL,
            training_file=await sent(door),
            integrations=[wandb(**told)],  # type: ignore[list-item]
        )
    assert "integrations" in str(refused.value.param)


async def test_an_integration_that_cannot_be_read_hides_no_job(
    api: FastAPI, door: AsyncOpenAI, context: ApiContext
) -> None:
    job = await created(api, door)
    async with context.database.transaction() as connection:
        broken = tunings.c.request.concat({"integrations": [{"type": "wandb", "wandb": 7}, 8]})
        await connection.execute(update(tunings).values(request=broken))
    (found,) = (await door.fine_tuning.jobs.list()).data
    assert (found.id, found.integrations) == (job.id, [])
