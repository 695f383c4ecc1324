"""What a job would need, asked over HTTP: predicted, priced and chosen from the offers that are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from sqlalchemy import func, select

from allpass.wire import plan as wire
from allpass.wire.plan import Plan
from app.api.context import ApiContext
from app.core.memory import training
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.model.pool import Pool
from app.db.offers.listed import replace_offers
from app.db.pools.pools import PoolRow, add_pool
from app.db.tables import jobs, nodes
from tests.api.conftest import Tenant, error_of
from tests.conftest import ManualClock
from tests.core.samples import GIB, offer
from tests.seeds import T0_MS

SMALL = {"model": "llama-3.2-1b", "method": "lora", "batch": 8, "sequence": 512}
HOUR_MS = 3_600_000


def gpu(name: str, memory_gib: int, usd: str, tier: Tier = Tier.MARKETPLACE, **changes: Any) -> Offer:
    kind = {"gpu_type": name, "gpu_memory_bytes": memory_gib * GIB, "price_per_hour": Money.usd(usd)}
    return replace(offer(f"{name}-{tier}".lower()), tier=tier, **(kind | changes))


T4, A100 = gpu("T4", 16, "0.14"), gpu("A100", 40, "1.08")
A100_NOW = gpu("A100", 40, "2.10", Tier.SERVERLESS, startup_ms=0)


async def offered(context: ApiContext, *offers: Offer) -> None:
    async with context.database.transaction() as connection:
        for provider in {one.provider for one in offers}:
            mine = [one for one in offers if one.provider == provider]
            await replace_offers(connection, provider, mine, now_ms=context.clock.now_ms())


async def planned(tenant: Tenant, **changes: Any) -> Plan:
    response = await tenant.http.post("/v1/jobs/plan", json=SMALL | changes)
    assert response.status_code == 200, response.text
    return Plan.model_validate(response.json())


async def test_memory_time_and_cost_of_every_offer(tenant: Tenant, context: ApiContext) -> None:
    """Each kind of GPU once, with its sellers; time is start-up and steps, cost its price; nothing is rented."""
    await offered(context, T4, A100, A100_NOW)
    told = await planned(tenant, steps=500)
    assert {(option.gpu_type, len(option.offers)) for option in told.options} == {("T4", 1), ("A100", 2)}
    for option in told.options:
        assert option.allocated.low <= option.allocated.expected <= option.allocated.high
        assert option.allocated.expected < option.reserved.expected < option.process.expected
        layout = option.layout
        assert layout.replicas * layout.micro_batch * layout.accumulation == 8
        assert option.step_ms is not None
        for one in option.offers:
            assert one.duration_ms == one.startup_ms + round(500 * option.step_ms)
            assert one.cost == one.price_per_hour * one.duration_ms // HOUR_MS
    assert told.chosen == 0
    best = told.options[0].offers[0]
    assert best.cost == min(one.cost or 0 for option in told.options for one in option.offers)
    async with context.database.transaction() as connection:
        for table in (jobs, nodes):
            assert (await connection.execute(select(func.count()).select_from(table))).scalar_one() == 0


async def test_a_deadline_decides_between_cheap_and_quick(tenant: Tenant, context: ApiContext) -> None:
    """The T4 costs less and takes longer: once it is late, what ends in time is chosen; then what ends soonest."""
    cheap = replace(T4, price_per_hour=Money.usd("0.001"))
    await offered(context, cheap, A100, A100_NOW)
    free = await planned(tenant, steps=1000)
    assert free.options[0].gpu_type == "T4"
    slow_ms = free.options[0].offers[0].duration_ms
    quick_ms = free.options[1].offers[0].duration_ms
    assert slow_ms is not None
    assert quick_ms is not None
    between = (slow_ms + quick_ms) // 2_000
    hurried = await planned(tenant, steps=1000, soft_deadline=f"{between}s")
    assert (hurried.options[0].gpu_type, hurried.options[0].offers[0].in_time) == ("A100", True)
    assert [option.offers[0].in_time for option in hurried.options] == [True, False]
    assert "end by the deadline" in hurried.reason
    late = await planned(tenant, steps=1000, soft_deadline="1s")
    assert (late.options[0].offers[0].tier, late.chosen) == ("serverless", 0)
    assert "ends soonest" in late.reason
    open_end = await planned(tenant, soft_deadline="1h")
    first = open_end.options[0].offers[0]
    assert first.in_time is None
    assert first.steps_in_time == int((HOUR_MS - first.startup_ms) / (open_end.options[0].step_ms or 1))


async def test_where_nothing_fits_it_says_what_would(tenant: Tenant, context: ApiContext) -> None:
    """Full training of 8B on a T4: no choice, and every remedy asked again with its changes is chosen there."""
    await offered(context, T4, replace(A100, gpu_memory_bytes=24 * GIB))
    told = await planned(tenant, model="llama-3-8b", method="full", sequence=1024)
    assert (told.chosen, {option.verdict for option in told.options}) == (None, {"no"})
    assert "one GPU alone is enough from" in told.reason
    assert told.remedies
    remedy = told.remedies[0]
    changed = dict(change.split("=") for change in remedy.changes)
    again = await planned(tenant, **({"model": "llama-3-8b", "method": "full", "sequence": 1024} | changed))
    fits = {option.gpu_type for option in again.options if option.verdict == "fits"}
    assert remedy.gpu_type in fits
    one = await offered_alone(tenant, context, told.one_gpu_bytes)
    assert one.chosen == 0
    assert (await offered_alone(tenant, context, told.one_gpu_bytes - 1)).chosen is None


async def offered_alone(tenant: Tenant, context: ApiContext, memory_bytes: int) -> Plan:
    await offered(context, replace(A100, gpu_memory_bytes=memory_bytes))
    return await planned(tenant, model="llama-3-8b", method="full", sequence=1024)


async def test_a_spot_job_is_promised_what_only_spot_jobs_may_have(tenant: Tenant, context: ApiContext) -> None:
    """Bids, and what is lent or kept for others, at what spot jobs pay. Any other job is promised none of it, however
    cheap it is."""
    bid = replace(A100, offer_id="bid", price_per_hour=Money.usd("0.30"), spot_only=True)
    own = replace(A100, provider="slurm", offer_id="own", tier=Tier.OWN, region="lab", price_per_hour=Money.usd("0.80"))
    lent = replace(own, offer_id="lent", price_per_hour=Money.usd("0.70"), spot_only=True)
    await offered(context, A100, bid, own, lent)
    async with context.database.transaction() as connection:
        pool = Pool("lab", launcher="slurm", price=Money.usd("0.80"), spot_parts=250_000)
        await add_pool(connection, PoolRow(pool, "", {}, T0_MS))

    def told(plan: Plan) -> dict[str, tuple[int, int | None, bool]]:
        (option,) = plan.options
        return {one.provider: (one.price_per_hour, one.spot_price_per_hour, one.interruptible) for one in option.offers}

    usual, spot = told(await planned(tenant)), told(await planned(tenant, spot=True))
    share, whole = Money.usd("0.20").micros, Money.usd("0.80").micros
    assert usual == {A100.provider: (A100.price_per_hour.micros, None, False), "slurm": (whole, share, False)}
    assert spot == {A100.provider: (bid.price_per_hour.micros, None, True), "slurm": (share, None, False)}


async def test_machines_that_fail_are_compared_by_what_work_costs_there(tenant: Tenant, context: ApiContext) -> None:
    """A bid a little below the price on demand is no bargain; a cheap one is, and what it is likely to cost is told."""
    dear = replace(
        A100,
        offer_id="bid",
        price_per_hour=Money(A100.price_per_hour.micros - 1),
        spot_only=True,
        mean_life_ms=3_600_000,
    )
    await offered(context, A100, dear)
    (option,) = (await planned(tenant, spot=True)).options
    (best,) = option.offers
    assert (best.offer_id, best.interruptible, best.likely_cost) == (A100.offer_id, False, None)
    cheap = replace(dear, price_per_hour=Money(A100.price_per_hour.micros // 3))
    await offered(context, A100, cheap)
    (option,) = (await planned(tenant, spot=True)).options
    (best,) = option.offers
    assert best.interruptible and best.cost is not None and best.likely_cost is not None
    assert best.cost < best.likely_cost < 2 * best.cost
    other = replace(
        A100, provider="other", price_per_hour=Money(best.likely_cost * 3_600_000 // (best.duration_ms or 1))
    )
    await offered(context, cheap, replace(other, price_per_hour=Money(other.price_per_hour.micros - 10_000)))
    (option,) = (await planned(tenant, spot=True)).options
    assert [one.provider for one in option.offers] == ["other", A100.provider], "it costs less in the end"


async def test_nothing_is_offered_now(tenant: Tenant, context: ApiContext, clock: ManualClock) -> None:
    """It says so, and how large a GPU would have to be; so do offers that were not seen again."""
    empty = await planned(tenant)
    assert (empty.options, empty.chosen, empty.remedies) == ([], None, [])
    assert empty.reason.startswith("no provider offers a GPU now; one GPU alone is enough from ")
    await offered(context, A100)
    clock.advance(s=context.settings.prices_s * 5 + 1)
    assert (await planned(tenant)).options == []


async def test_a_gpu_without_figures_is_priced_by_the_hour(tenant: Tenant, context: ApiContext) -> None:
    """Its memory is judged, its time is not told, and known ones come first."""
    await offered(context, replace(A100, gpu_type="Unheard-of 9000", price_per_hour=Money.usd("0.01")), T4)
    told = await planned(tenant)
    assert [option.gpu_type for option in told.options] == ["T4", "Unheard-of 9000"]
    strange = told.options[1]
    assert (strange.verdict, strange.step_ms, strange.offers[0].cost) == ("fits", None, None)
    await offered(context, replace(A100, gpu_type="Unheard-of 9000"))
    assert "the time of a step is not known" in (await planned(tenant)).reason


async def test_a_config_of_ones_own(tenant: Tenant, context: ApiContext) -> None:
    """The sizes in a config.json give what the model's name gives."""
    config = {
        "model_type": "llama",
        "_name_or_path": "mine",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    }
    await offered(context, A100)
    body = {name: value for name, value in SMALL.items() if name != "model"}
    response = await tenant.http.post("/v1/jobs/plan", json=body | {"config": config})
    mine, named = Plan.model_validate(response.json()), await planned(tenant)
    assert (mine.model, mine.parameters, mine.one_gpu_bytes) == ("mine", named.parameters, named.one_gpu_bytes)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": "llama-99"}, "model"),
        ({"model": None}, "model"),
        ({"config": {"model_type": "llama"}}, "config"),
        ({"model": None, "config": {"model_type": "mamba"}}, "config.model_type"),
        ({"model": None, "config": {"model_type": "llama", "hidden_size": 64}}, "config.num_attention_heads"),
        ({"method": "magic"}, "method"),
        ({"batch": 0}, "batch"),
        ({"sequence": "512"}, "sequence"),
        ({"method": "full", "rank": 8}, "rank"),
        ({"quantisation": "nf4"}, "quantisation"),
        ({"method": "qlora", "precision": "amp_bf16"}, "precision"),
        ({"targets": ["no_such"]}, "targets"),
        ({"precision": "amp_bf16", "autocast": True}, "autocast"),
        ({"model": "bert-base", "sequence": 4096}, "sequence"),
        ({"steps": 0}, "steps"),
        ({"soft_deadline": "tomorrow"}, "soft_deadline"),
        ({"soft_deadline": "2001-01-01T00:00:00Z"}, "soft_deadline"),
        ({"sequense": 1}, "sequense"),
    ],
)
async def test_what_cannot_be_names_its_field(tenant: Tenant, changes: dict[str, Any], field: str) -> None:
    """Impossible and contradictory configurations are refused, the field by its name."""
    response = await tenant.http.post("/v1/jobs/plan", json=SMALL | changes)
    assert error_of(response, 422, "invalid_input")["param"] == field


async def test_its_path_is_no_jobs_id(tenant: Tenant) -> None:
    """Other methods are refused, naming the one there is: nobody looks for a job called plan."""
    for method in ("GET", "PATCH", "DELETE", "OPTIONS"):
        answer = await tenant.http.request(method, "/v1/jobs/plan")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("name", ["Precision", "Optimizer", "Attention", "Loss", "Quantisation", "Sharding"])
def test_callers_and_the_predictor_use_the_same_words(name: str) -> None:
    """The client cannot see the core, nor the core the client: so each states them, and neither may change alone."""
    assert get_args(getattr(wire, name)) == get_args(getattr(training, name))


def test_methods_differ_by_a_dash_only() -> None:
    """Words on the wire have dashes."""
    assert [word.replace("-", "_") for word in get_args(wire.Method)] == list(get_args(training.Method))


def _runs(*peaks: tuple[int, bool, int]) -> dict[str, Any]:
    """Symbolic runs: micro-batch, whether it accumulates, bytes on the way back."""
    told = [
        {
            "micro_batch": micro,
            "checkpointing": False,
            "accumulates": accumulates,
            "forward_bytes": peak // 2,
            "backward_bytes": peak,
            "optimizer_bytes": peak // 4,
        }
        for micro, accumulates, peak in peaks
    ]
    return {"parameters": 1_000_000, "peaks": told, "versions": {"torch": "2.13.0"}}


async def test_symbolic_runs_decide_and_are_told_beside_the_tables(tenant: Tenant, context: ApiContext) -> None:
    """A layout that was run has its own number; one that then does not fit gives way to the next; less than the tables
    expect at least is not believed."""
    await offered(context, A100)
    (plain,) = (await planned(tenant)).options
    assert (plain.layout.micro_batch, plain.exact, plain.tables) == (8, False, None)
    told = await planned(tenant, exact=_runs((8, False, plain.allocated.expected)))
    (option,) = told.options
    assert option.exact
    assert option.tables == plain.allocated
    assert option.allocated.high < plain.allocated.high
    assert told.exact is not None
    assert told.config["model_type"] == "llama"
    (other,) = (await planned(tenant, exact=_runs((8, False, 60_000_000_000)))).options
    assert (other.layout.micro_batch, other.layout.checkpointing, other.verdict) == (8, True, "fits")
    (held,) = (await planned(tenant, exact=_runs((8, False, 1_000_000)))).options
    assert held.raised
    assert held.allocated.expected == plain.allocated.low


async def test_a_model_of_no_known_family_is_planned_by_its_runs(tenant: Tenant, context: ApiContext) -> None:
    """Refused without them, naming what would help; with them it is placed where they fit, by the price per hour."""
    await offered(context, T4, A100)
    unknown: dict[str, Any] = {"model": None, "config": {"model_type": "olmo2"}}
    refused = await tenant.http.post("/v1/jobs/plan", json=SMALL | unknown)
    error = error_of(refused, 422, "invalid_input")
    assert error["param"] == "config.model_type"
    assert "--exact" in error["message"]
    told = await planned(tenant, **unknown, exact=_runs((1, True, 8_000_000_000), (2, True, 15_500_000_000)))
    assert [(one.gpu_type, one.verdict, one.layout.micro_batch) for one in told.options] == [
        ("T4", "fits", 1),
        ("A100", "fits", 4),
    ]
    assert (told.chosen, told.parameters, told.options[0].step_ms) == (0, 1_000_000, None)
    useless = await tenant.http.post("/v1/jobs/plan", json=SMALL | unknown | {"exact": _runs((3, True, 10**9))})
    assert error_of(useless, 422, "invalid_input")["param"] == "exact.peaks"
