"""Jobs that state their training: what they need is predicted, and what fits nowhere is refused at submission."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest
from sqlalchemy import select, update

from allpass.recipe.packing import SCRIPT_NAME
from app.api.context import ApiContext
from app.core import codec
from app.core.gpu_speeds import GpuSpeeds
from app.core.model.node import Tier
from app.core.model.pool import Pool
from app.db.pools.pools import PoolRow, add_pool
from app.db.tables import app_versions, jobs
from tests.api.conftest import Tenant, error_of
from tests.api.test_plan import A100, T4, gpu, offered
from tests.conftest import ManualClock
from tests.seeds import T0_MS, seed_node

GB = 1_000_000_000
FULL = {"method": "full", "batch_size": 8, "sequence_length": 1024, "precision": "bf16"}
LLAMA = {"model": {"name": "meta-llama/Meta-Llama-3-8B"}, "training": FULL}


async def submit(tenant: Tenant, template: dict[str, Any]) -> httpx.Response:
    return await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id, "template": template})


async def needs(context: ApiContext, response: httpx.Response) -> int:
    """The memory that the accepted job asks of each GPU."""
    assert response.status_code == 201, response.text
    async with context.database.transaction() as connection:
        row = await connection.execute(select(jobs.c.resources).where(jobs.c.id == response.json()["id"]))
        return int(row.scalar_one()["gpu_memory_bytes_min"])


async def test_a_stated_training_gets_its_memory_need(tenant: Tenant, context: ApiContext) -> None:
    """More for full training than for adapters, less on each of several GPUs; placement looks at it as at any need."""
    full = await needs(context, await submit(tenant, LLAMA))
    adapters = await needs(context, await submit(tenant, {**LLAMA, "training": FULL | {"method": "lora"}}))
    spread = await needs(context, await submit(tenant, LLAMA | {"gpu": {"count": 4}}))
    fixed = await needs(
        context, await submit(tenant, {**LLAMA, "training": FULL | {"method": "lora", "micro_batch": 8}})
    )
    assert adapters < fixed
    assert 15 * GB < adapters < 40 * GB < full
    assert adapters < spread < full


async def test_how_the_loss_is_computed_decides_the_need(tenant: Tenant, context: ApiContext) -> None:
    """By chunks a step of a small model with a large vocabulary needs less than half; a template that says nothing of
    it is one whose logits are all there at once."""
    small = {"model": {"name": "meta-llama/Llama-3.2-1B"}}
    training = {**FULL, "method": "lora", "micro_batch": 8, "checkpointing": True}
    found = {
        loss: await needs(context, await submit(tenant, {**small, "training": {**training, **told}}))
        for loss, told in {"": {}, **{loss: {"loss": loss} for loss in ("full", "chunked", "recomputed")}}.items()
    }
    assert found[""] == found["full"] > 2 * found["recomputed"]
    assert found["full"] > found["chunked"]


@pytest.mark.parametrize(
    "template",
    [
        {},
        {"model": {"name": "my-own-model"}, "training": FULL},
        {"model": LLAMA["model"], "training": {"method": "full"}},
        {"training": FULL},
        {**LLAMA, "gpu": {"memory_gb": 0.5}},
    ],
)
async def test_without_a_statement_nothing_is_predicted(
    tenant: Tenant, context: ApiContext, template: dict[str, Any]
) -> None:
    """A template that says too little, an unknown model, or its own say on memory: as before, whatever is offered."""
    await offered(context, T4)
    given = template.get("gpu", {}).get("memory_gb", 0)
    assert await needs(context, await submit(tenant, template)) == int(given * GB)


async def test_over_machines_a_script_may_be_spread(tenant: Tenant, context: ApiContext, clock: ManualClock) -> None:
    """As the plan says it: it needs less on each of more GPUs, and is let in where that is on offer."""
    whole = {**LLAMA, "training": FULL, "gpu": {"count": 2}}
    alone = await needs(context, await submit(tenant, whole))
    spread = await needs(context, await submit(tenant, whole | {"nodes": 4}))
    assert spread < 0.6 * alone
    await offered(context, replace(A100, gpu_count=2, gpu_memory_bytes=24 * GB))
    clock.advance(s=6)
    assert (await submit(tenant, whole | {"nodes": 4})).status_code == 201
    assert (await submit(tenant, whole)).status_code == 422


async def test_over_machines_the_recipe_needs_as_much_on_each_gpu(tenant: Tenant, context: ApiContext) -> None:
    """It is refused where that is not on offer, and told that more machines do not help."""
    whole = {**LLAMA, "training": FULL, "gpu": {"count": 2}}
    await offered(context, replace(A100, gpu_count=2, gpu_memory_bytes=24 * GB))
    async with context.database.transaction() as connection:
        await connection.execute(update(app_versions).values(entrypoint=SCRIPT_NAME))
    error = error_of(await submit(tenant, whole | {"nodes": 4}), 422, "invalid_input")
    assert "GB on each of its GPUs (8 of 4 machines); the largest offered is A100 with 24.0 GB" in error["message"]
    assert "more machines do not help: each GPU holds all of the training" in error["message"]
    split = whole | {"nodes": 4, "training": FULL | {"method": "lora", "sharded": True, "sequence_length": 8192}}
    error = error_of(await submit(tenant, split), 422, "invalid_input")
    assert "more machines do not help: each machine holds all of the training" in error["message"]
    many = error_of(await submit(tenant, whole | {"nodes": 4, "gpu": {"count": 4}}), 422, "invalid_input")
    assert "no offer has 4 x GPU" in many["message"]


async def test_a_base_that_is_split_is_let_in_where_no_copy_fits(
    tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """The refusal of a whole copy says so."""
    adapters = {**LLAMA, "training": FULL | {"method": "lora"}}
    await offered(context, replace(A100, gpu_count=4, gpu_memory_bytes=20 * GB))
    async with context.database.transaction() as connection:
        await connection.execute(update(app_versions).values(entrypoint=SCRIPT_NAME))
    told = error_of(await submit(tenant, adapters), 422, "invalid_input")["message"]
    assert "split over 2 A100 it fits, with " in told
    assert "(finetune --gpu A100:2 --sharded)" in told
    clock.advance(s=6)
    split = adapters | {"training": adapters["training"] | {"sharded": True}, "gpu": {"count": 2}}
    assert await needs(context, await submit(tenant, split)) < 20 * GB
    clock.advance(s=6)
    wrong = split | {"training": FULL | {"method": "qlora", "sharded": True}}
    assert error_of(await submit(tenant, wrong), 422, "invalid_input")["param"] == "template.training.sharded"


@pytest.mark.parametrize("by", ["offer", "pool"])
async def test_what_is_others_alone_is_neither_counted_on_nor_named(
    tenant: Tenant, stranger: Tenant, context: ApiContext, by: str
) -> None:
    """A job that would fit there only is refused, rather than wait for ever; they themselves are let in. A pool that
    its launcher lists without its projects is theirs as well."""
    theirs = replace(A100, gpu_type="Hidden-99", provider="slurm", offer_id="theirs", tier=Tier.OWN, region="theirs")
    whose = (stranger.project_id,)
    await offered(context, T4, replace(theirs, projects=whose) if by == "offer" else theirs)
    if by == "pool":
        async with context.database.transaction() as connection:
            await add_pool(connection, PoolRow(Pool("theirs", launcher="slurm", projects=whose), "", {}, T0_MS))
    adapters = {**LLAMA, "training": FULL | {"method": "lora"}}
    refused = await submit(tenant, adapters)
    assert error_of(refused, 422, "invalid_input")["param"] == "template.training"
    named = await submit(tenant, {"gpu": {"type": "Hidden-99"}})
    assert error_of(named, 422, "invalid_input")["param"] == "template.gpu.type"
    assert "on offer are T4" in named.text
    assert "Hidden" not in refused.text
    assert (await submit(stranger, adapters)).status_code == 201
    assert (await submit(stranger, {"gpu": {"type": "Hidden-99"}})).status_code == 201


async def test_what_fits_nowhere_is_refused_with_what_would_help(tenant: Tenant, context: ApiContext) -> None:
    """The largest on offer, the smallest that would do, and changes that make it fit; nothing is written."""
    await offered(context, T4, A100)
    error = error_of(await submit(tenant, LLAMA), 422, "invalid_input")
    assert "--sharded" not in error["message"], "what a script can do nobody knows"
    assert error["param"] == "template.training"
    assert "the largest offered is A100 with 42.9 GB" in error["message"]
    assert "method=lora" in error["message"]
    assert "the smallest GPU that would do is H200" in error["message"]
    helped = {**LLAMA, "training": FULL | {"method": "lora"}}
    assert (await submit(tenant, helped)).status_code == 201
    overruled = LLAMA | {"gpu": {"memory_gb": 20}}
    assert (await submit(tenant, overruled)).status_code == 201


TINY = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": True,
}  # fmt: skip
LORA = FULL | {"method": "lora"}


async def test_a_model_that_no_table_knows_is_as_large_as_its_configuration_says(
    tenant: Tenant, context: ApiContext
) -> None:
    """Which counts before a name that is a folder's; a kind that nobody knows says nothing."""
    own = {"name": "/models/mine", "config": TINY}
    known = await needs(context, await submit(tenant, {"model": {"name": "meta-llama/Llama-3.2-1B"}, "training": LORA}))
    assert await needs(context, await submit(tenant, {"model": own, "training": LORA})) == known > GB
    deeper = {"name": "/models/llama-3.2-1b", "config": TINY | {"num_hidden_layers": 64}}
    assert await needs(context, await submit(tenant, {"model": deeper, "training": LORA})) > 1.5 * known
    strange = {"name": "/models/mine", "config": TINY | {"model_type": "of-tomorrow"}}
    assert await needs(context, await submit(tenant, {"model": strange, "training": LORA})) == 0


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"model_type": "llama"}, "template.model.config: hidden_size is missing from the configuration, or zero"),
        (TINY | {"hidden_size": -1}, "template.model.config: hidden_size is -1"),
        (TINY | {"num_key_value_heads": 7}, "template.model.config: num_key_value_heads is 7: it must divide heads"),
        (TINY | {"num_hidden_layers": 2**53}, "template.model.config: num_hidden_layers is"),
    ],
)
async def test_a_configuration_that_cannot_be_is_refused(tenant: Tenant, config: dict[str, Any], told: str) -> None:
    template = {"model": {"name": "mine", "config": config}, "training": LORA}
    error = error_of(await submit(tenant, template), 422, "invalid_input")
    assert error["message"].startswith(told)
    assert error["param"] == "template.model.config"


async def test_the_recipe_is_not_put_on_the_smallest_gpu_for_want_of_knowledge(
    tenant: Tenant, context: ApiContext
) -> None:
    """Of its model everybody knows that it fills the GPU. A script of one's own may hold a small one."""
    strange = {"model": {"name": "somebody/secret-7b"}, "training": LORA}
    async with context.database.transaction() as connection:
        await connection.execute(update(app_versions).values(entrypoint=SCRIPT_NAME))
    error = error_of(await submit(tenant, strange), 422, "invalid_input")
    assert error["message"].startswith("template.model.name: nobody can say how large 'somebody/secret-7b' is")
    assert error["param"] == "template.model.name"
    for gpu_told in ({"type": "A100"}, {"memory_gb": 20}):
        assert (await submit(tenant, strange | {"gpu": gpu_told})).status_code == 201
    known = {"model": {"name": "somebody/secret-1b", "config": TINY}, "training": LORA}
    assert await needs(context, await submit(tenant, known)) > GB


async def test_the_plan_is_kept_in_words(tenant: Tenant, context: ApiContext) -> None:
    """For the events of its starts: what it needs, and how it would be laid out for that."""
    job_id = (await submit(tenant, {**LLAMA, "training": FULL | {"method": "lora"}, "gpu": {"count": 2}})).json()["id"]
    async with context.database.transaction() as connection:
        told = (await connection.execute(select(jobs.c.plan).where(jobs.c.id == job_id))).scalar_one()
    assert told.startswith("llama-3-8b by lora needs at least ")
    assert told.endswith(" GB on each of its GPUs (1 x 4 sequences on a GPU, fsdp, activations recomputed)")


async def test_a_stated_training_predicts_its_steps(tenant: Tenant, context: ApiContext) -> None:
    """From the roofline at first, from what the project measured later; nothing for a job that states nothing."""
    await offered(context, A100)
    lora = {"model": LLAMA["model"], "training": FULL | {"method": "lora", "steps": 100}}

    async def step_ms(template: dict[str, Any]) -> float | None:
        response = await submit(tenant, template)
        assert response.status_code == 201, response.text
        async with context.database.transaction() as connection:
            asked = select(jobs.c.predicted_step_ms).where(jobs.c.id == response.json()["id"])
            found: float | None = (await connection.execute(asked)).scalar_one()
            return found

    estimated = await step_ms(lora)
    assert estimated is not None
    assert 1_000 < estimated < 20_000
    assert await step_ms({"training": {"steps": 100}}) is None
    assert await step_ms(lora | {"gpu": {"type": "H100", "memory_gb": 1}}) == pytest.approx(estimated / 3, rel=0.5)


async def test_a_stated_training_is_known_on_other_gpus(tenant: Tenant, context: ApiContext) -> None:
    """On which type its steps are predicted, and how long they take on others; not where it takes one type alone."""
    await offered(context, A100)
    lora = {"model": LLAMA["model"], "training": FULL | {"method": "lora", "steps": 100}}
    found = {}
    for name, template in {"any": lora, "a100": lora | {"gpu": {"type": "A100"}}, "nothing": {}}.items():
        response = await submit(tenant, template)
        assert response.status_code == 201, response.text
        async with context.database.transaction() as connection:
            asked = select(jobs.c.gpu_speeds).where(jobs.c.id == response.json()["id"])
            found[name] = (await connection.execute(asked)).scalar_one()
    assert (found["a100"], found["nothing"]) == (None, None)
    speeds = codec.decode_row(GpuSpeeds, found["any"])
    assert speeds.gpu_type == "a100"
    times = dict(speeds.times)
    assert 250 < times["h100"] < 600
    assert 2_000 < times["l4"] < times["t4"]


@pytest.mark.parametrize("precision", [{}, {"precision": "bf16"}, {"precision": "fp16"}, {"precision": "fp32"}])
async def test_whatever_it_computes_in_it_is_let_in(
    tenant: Tenant, context: ApiContext, precision: dict[str, str]
) -> None:
    """Where the cheapest GPU has no units for bf16, a training that leaves that to the GPU computes in fp16 there, and
    not on others: that much is known of its speed, and nothing of it is refused."""
    await offered(context, T4, A100)
    small = {"model": {"name": "HuggingFaceTB/SmolLM2-135M"}}
    template = {**small, "training": {"method": "lora", "batch_size": 8, "sequence_length": 512} | precision}
    response = await submit(tenant, template)
    assert response.status_code == 201, response.text
    async with context.database.transaction() as connection:
        asked = select(jobs.c.gpu_speeds).where(jobs.c.id == response.json()["id"])
        speeds = codec.decode_row(GpuSpeeds, (await connection.execute(asked)).scalar_one())
    assert speeds.gpu_type == "t4"
    assert dict(speeds.times)["a100"] < 600


async def test_a_type_that_is_too_small_names_one_that_is_not(tenant: Tenant, context: ApiContext) -> None:
    """The job insists on a T4; the H200 beside it is the smallest GPU that would do."""
    await offered(context, T4, replace(A100, gpu_memory_bytes=24 * GB), gpu("H200", 139, "3.00"))
    error = error_of(await submit(tenant, LLAMA | {"gpu": {"type": "T4"}}), 422, "invalid_input")
    assert "the largest T4 offered is T4 with 17.2 GB" in error["message"]
    assert "the smallest GPU that would do is H200 with 149.3 GB" in error["message"]
    assert (await submit(tenant, LLAMA)).status_code == 201


async def test_a_node_that_is_rented_already_counts(tenant: Tenant, context: ApiContext) -> None:
    """Nothing on offer would do, and the project's own node does: the job may wait for it."""
    await offered(context, T4)
    async with context.database.transaction() as connection:
        await seed_node(connection, tenant.project_id, gpu_type="H200", gpu_memory_bytes=150 * GB)
    assert (await submit(tenant, LLAMA)).status_code == 201


async def test_while_nothing_is_offered_everything_may_wait(
    tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """A large GPU may come: only what is known is judged, and what is known is looked at again after a while."""
    assert (await submit(tenant, LLAMA)).status_code == 201
    await offered(context, T4)
    clock.advance(s=6)
    error_of(await submit(tenant, LLAMA), 422, "invalid_input")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"lora_rank": 8}, "template.training.lora_rank"),
        ({"method": "qlora", "precision": "fp32", "micro_batch": 0}, "template.training.micro_batch"),
        ({"optimizer": "adam"}, "template.training.optimizer"),
        ({"loss": "liger"}, "template.training.loss"),
    ],
)
async def test_contradictions_name_the_templates_field(tenant: Tenant, change: dict[str, Any], field: str) -> None:
    """What cannot be is refused in the words of the template."""
    error = error_of(await submit(tenant, {**LLAMA, "training": FULL | change}), 422, "invalid_input")
    assert error["param"] == field


async def test_a_sequence_beyond_the_models_positions(tenant: Tenant) -> None:
    """BERT has 512 of them: the job could never take its first step."""
    template = {"model": {"name": "bert-base-uncased"}, "training": FULL | {"sequence_length": 4096}}
    error = error_of(await submit(tenant, template), 422, "invalid_input")
    assert error["param"] == "template.training.sequence_length"


def _exact(bytes_at_one: int) -> dict[str, Any]:
    peak = {"micro_batch": 1, "checkpointing": True, "accumulates": True, "optimizer_bytes": bytes_at_one // 2}
    return {"parameters": 10**9, "peaks": [peak | dict.fromkeys(("forward_bytes", "backward_bytes"), bytes_at_one)]}


async def test_symbolic_runs_are_used_at_submission(tenant: Tenant, context: ApiContext) -> None:
    """More than the tables say is believed; less than they expect at least is not, and the plan says so; a model that
    they do not know needs what its runs say."""
    lora = FULL | {"method": "lora", "micro_batch": 1, "checkpointing": True}
    usual = await needs(context, await submit(tenant, {**LLAMA, "training": lora}))
    more = await needs(context, await submit(tenant, {**LLAMA, "training": lora | {"exact": _exact(40 * GB)}}))
    assert usual < 40 * GB < more
    little = await submit(tenant, {**LLAMA, "training": lora | {"exact": _exact(GB)}})
    assert 15 * GB < await needs(context, little) < usual
    async with context.database.transaction() as connection:
        told = (await connection.execute(select(jobs.c.plan).where(jobs.c.id == little.json()["id"]))).scalar_one()
    assert "less than the tables expect" in told
    mine = {"model": {"name": "my-own-model"}, "training": lora | {"exact": _exact(20 * GB)}}
    assert 20 * GB < await needs(context, await submit(tenant, mine)) < 24 * GB


async def test_an_unknown_model_that_fits_nowhere_is_refused(tenant: Tenant, context: ApiContext) -> None:
    """By what its symbolic runs say."""
    await offered(context, T4)
    training = FULL | {"method": "lora", "micro_batch": 1, "checkpointing": True, "exact": _exact(20 * GB)}
    mine = {"model": {"name": "my-own-model"}, "training": training}
    error = error_of(await submit(tenant, mine), 422, "invalid_input")
    assert "by its symbolic runs" in error["message"]


@pytest.mark.parametrize(
    ("asked", "param", "says"),
    [
        ({"type": "A1000"}, "template.gpu.type", "no provider offers a GPU called 'A1000'; did you mean A100?"),
        ({"type": "cpu"}, "template.gpu.type", "on offer are A100, T4"),
        ({"type": "T4", "count": 16}, "template.gpu.count", "the most is 8"),
        ({"count": 9}, "template.gpu.count", "9 GPUs are more than any machine on offer has"),
    ],
)
async def test_gpus_that_do_not_exist_are_refused(
    tenant: Tenant, context: ApiContext, asked: dict[str, Any], param: str, says: str
) -> None:
    """A name that nobody offers or knows, and more than a machine has: such a job would wait for ever."""
    await offered(context, T4, A100)
    error = error_of(await submit(tenant, {"gpu": asked}), 422, "invalid_input")
    assert error["param"] == param
    assert says in error["message"]


async def test_where_no_offer_is_known_every_gpu_is_waited_for(tenant: Tenant) -> None:
    """Providers have not answered yet: one may come."""
    assert (await submit(tenant, {"gpu": {"type": "A1000", "count": 16}})).status_code == 201


async def test_gpus_that_may_come_are_waited_for(tenant: Tenant, context: ApiContext) -> None:
    """A known type that nobody offers just now, and other ways to write one that is offered."""
    await offered(context, T4, A100)
    for asked in ("H100", "a100", "A100-80GB", "NVIDIA A100-SXM4-40GB", "RTX 4090"):
        assert (await submit(tenant, {"gpu": {"type": asked}})).status_code == 201, asked


async def test_what_its_machine_needs_beside_the_gpu_is_asked_for(
    tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """Of the built-in recipe, by what it exports; what the template says itself comes first, and offers that all have
    less are told."""

    async def host(**more: Any) -> int:
        body = {"app_id": tenant.app_id, "template": {**LLAMA, "training": LORA}} | more
        response = await tenant.http.post("/v1/jobs", json=body)
        assert response.status_code == 201, response.text
        async with context.database.transaction() as connection:
            row = await connection.execute(select(jobs.c.resources).where(jobs.c.id == response.json()["id"]))
            return int(row.scalar_one()["memory_bytes_min"])

    await offered(context, A100)
    async with context.database.transaction() as connection:
        await connection.execute(update(app_versions).values(entrypoint=SCRIPT_NAME))
    adapter, merged = await host(), await host(parameters={"export": "merged"})
    assert 4 * GB < adapter < 10 * GB < 25 * GB < merged < 40 * GB
    stated = {**LLAMA, "training": LORA, "memory_gb": 12}
    assert await host(parameters={"export": "both"}, template=stated) == 12 * GB
    await offered(context, replace(A100, memory_bytes=16 * GB))
    clock.advance(s=6)
    assert await host() == adapter
    body = {"app_id": tenant.app_id, "template": {**LLAMA, "training": LORA}, "parameters": {"export": "merged"}}
    error = error_of(await tenant.http.post("/v1/jobs", json=body), 422, "invalid_input")
    assert error["param"] == "template.memory_gb"
    assert f"needs {merged / GB:.1f} GB of a machine's memory beside the GPU" in error["message"]
    assert "the largest has 16.0 GB; memory_gb overrules the prediction" in error["message"]
    assert await host(parameters={"export": "merged"}, template=stated) == 12 * GB


async def test_a_script_of_one_s_own_needs_what_its_template_says(tenant: Tenant, context: ApiContext) -> None:
    """Nobody knows what it keeps."""
    await offered(context, replace(A100, memory_bytes=4 * GB))
    response = await submit(tenant, {**LLAMA, "training": LORA})
    assert response.status_code == 201, response.text
    async with context.database.transaction() as connection:
        row = await connection.execute(select(jobs.c.resources).where(jobs.c.id == response.json()["id"]))
        assert row.scalar_one()["memory_bytes_min"] == GB
