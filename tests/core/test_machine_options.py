"""What a job could be on several machines: where they reach each other, whether all are to be had, and what steps wait
for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.exchange import Exchange, Network, bytes_between
from app.core.layout import GpuSet, lay_out_alone
from app.core.machine_options import MachineOption, Sites, options_over
from app.core.memory import Training, model_named
from app.core.memory.calibration import Calibrations
from app.core.memory.plans import Device, feasible_plans
from app.core.model.job import MostUnderOne
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.options import AskedJob, OwnLayout, stated_alone
from app.core.throughput import Throughput
from tests.core.samples import GIB, offer

LAB = ("joined", Tier.OWN, "lab", "A100")
EAST = ("cloud", Tier.CONVENTIONAL, "east", "A100")
NETWORKED = frozenset({("joined", Tier.OWN), ("cloud", Tier.CONVENTIONAL)})
SITES = Sites(NETWORKED)
MODEL = model_named("llama-3.1-8b")
LORA = Training("lora", 1, 1024)
RECIPE = AskedJob("llama-3.1-8b", MODEL, LORA, 16, 1000, own=OwnLayout(2))
SCRIPT = AskedJob("llama-3.1-8b", MODEL, replace(LORA, method="full"), 16, 1000)


def of_host(host: str, gpus: int = 2, usd: str = "1", pool: str = "lab", **changes: Any) -> Offer:
    kind = {"gpu_type": "A100", "gpu_count": gpus, "gpu_memory_bytes": 80 * GIB, "shared_gpus": gpus}
    made = offer(f"{host}-{gpus}", Tier.OWN, usd, host=f"{host}/A100", region=pool, **(kind | changes))
    return replace(made, provider="joined")


def in_cloud(gpus: int = 2, usd: str = "4", region: str = "east", **changes: Any) -> Offer:
    kind = {"gpu_type": "A100", "gpu_count": gpus, "gpu_memory_bytes": 80 * GIB}
    made = offer(f"vm-{region}-{gpus}", Tier.CONVENTIONAL, usd, region=region, **(kind | changes))
    return replace(made, provider="cloud")


def over(wish: AskedJob, nodes: int, *offers: Offer, sites: Sites = SITES, **more: Any) -> tuple[MachineOption, ...]:
    return options_over(wish, nodes, offers, sites, Throughput(), Calibrations(), **more)


def test_the_price_is_of_all_machines_and_each_host_is_one() -> None:
    """The two cheapest hosts of three; of a cloud as many as are asked for."""
    hosts = (of_host("a", usd="1"), of_host("a", 4, "2"), of_host("b", usd="3"), of_host("c", usd="2"))
    here, cloud = over(RECIPE, 2, *hosts, in_cloud())
    assert (here.site, here.machines, here.hourly) == (LAB, 3, Money.usd("3"))
    assert (cloud.site, cloud.machines, cloud.hourly) == (EAST, None, Money.usd("8"))


def test_what_would_be_taken_is_under_few_switches_or_apart_as_it_is_asked_for() -> None:
    domains = {"a": ("r1", "s1"), "b": ("r2", "s2"), "c": ("r2", "s2")}
    sites = replace(SITES, domains=domains)
    hosts = tuple(of_host(host, usd=price) for host, price in (("a", "1"), ("b", "2"), ("c", "3")))
    (close,) = over(RECIPE, 2, *hosts, sites=sites)
    assert (close.under, close.hourly) == ({("r2", "s2"): 2}, Money.usd("5"))
    (apart,) = over(RECIPE, 2, *hosts, sites=sites, most=MostUnderOne(switch=1, rack=1))
    assert (apart.under, apart.hourly) == ({("r1", "s1"): 1, ("r2", "s2"): 1}, Money.usd("3"))
    cloud, here = over(RECIPE, 3, *hosts, in_cloud(), sites=sites, most=MostUnderOne(switch=1))
    assert here.why_not == "3 such machines are free now, and a job may have 2 of them together, of 3"
    assert cloud.why_not is not None and cloud.why_not.endswith("nobody says which switches these are under, of 3")
    assert over(RECIPE, 2, *hosts)[0].under == {}, "nobody says which switch"


def test_the_recipe_is_laid_out_as_it_runs_there() -> None:
    """A whole copy on each GPU of all machines, and no less memory for it: what one machine needs, two need."""
    (two,) = over(RECIPE, 2, of_host("a"), of_host("b"))
    runs = lay_out_alone(stated_alone(RECIPE, OwnLayout(4)), GpuSet("A100", 80 * GIB, 4))
    assert (two.training, two.estimated, two.runner) == (runs.training, runs.estimated, "recipe")
    assert (two.training.gpus, two.training.sharding) == (4, "ddp")
    cut = replace(RECIPE, own=OwnLayout(2, micro_batch=1, checkpointing=True))
    needs = [over(cut, nodes, *(of_host(name) for name in "abcdefgh"))[0].estimated.needed for nodes in (2, 4, 8)]
    assert max(needs) < 1.05 * min(needs)


def test_a_step_waits_for_the_network_and_time_and_cost_have_it() -> None:
    """Worked out by hand: of 2 others a quarter of each round and of the sums, adapters in float32, two processes."""
    (found,) = over(RECIPE, 2, of_host("a", usd="1.50"), of_host("b", usd="1.50"))
    rounds = found.training.accumulation
    told = (rounds + 1) * 2 * 41_943_040 * 4 * 2 // 4
    assert (found.exchange.bytes_per_step, found.exchange.network.source) == (told, "assumed")
    assert found.computing is not None
    assert found.step_ms == pytest.approx(found.computing.ms + told * 8 / 1e7)
    assert found.duration_ms == found.offers[0].startup_ms + round(1000 * found.step_ms)
    assert found.cost == Money(3_000_000 * found.duration_ms // 3_600_000)


def test_a_slow_network_is_told_and_a_measured_one_is_believed() -> None:
    def at(bits_per_s: int) -> MachineOption:
        sites = Sites(NETWORKED, {LAB: Network(bits_per_s, "measured", 3)})
        return over(RECIPE, 2, of_host("a"), of_host("b"), sites=sites)[0]

    slow, quick = at(100_000_000), at(100_000_000_000)
    assert (slow.is_slow, quick.is_slow) == (True, False)
    assert (slow.duration_ms or 0) > 10 * (quick.duration_ms or 0)


def test_what_only_fits_when_it_is_spread_fits_on_more_machines_by_code_of_ones_own() -> None:
    """A whole fine-tuning of 8B on 24 GB: not on two machines with two, spread over four of them; never as a recipe."""
    hosts = [of_host(name, gpu_memory_bytes=24 * GIB) for name in "abcdefgh"]
    assert [one.verdict for one in over(SCRIPT, 2, *hosts)] == ["tight"]
    (found,) = over(SCRIPT, 4, *hosts)
    assert (found.verdict, found.runner, found.training.gpus) == ("fits", "script", 8)
    assert found.training.sharding in {"zero2", "fsdp"} and found.training.tensor_parallel == 1
    whole = replace(SCRIPT, own=OwnLayout(2))
    assert [one.verdict for one in over(whole, 8, *hosts)] == ["no"]


def test_only_layouts_are_chosen_that_fit_and_the_network_has_a_part_in_which() -> None:
    """Over a slow network what is told least in a step is quicker; never one that splits matrices."""
    hosts = [of_host(name) for name in "abcd"]
    device = Device("", 80 * GIB, 8)
    plans = feasible_plans(MODEL, SCRIPT.training, (device,), global_batch=16, plain=True)
    for bits_per_s in (100_000_000, 400_000_000_000):
        sites = Sites(NETWORKED, {LAB: Network(bits_per_s, "measured", 1)})
        (found,) = over(SCRIPT, 4, *hosts, sites=sites)
        assert found.training in [plan.training for plan in plans]
        table = Throughput()
        for plan in plans:
            step = table.step(MODEL, plan.training, "A100", name=SCRIPT.name)
            assert step is not None and found.step_ms is not None
            exchange = Exchange(bytes_between(MODEL, plan.training, 4, "script"), sites.network(LAB))
            assert found.step_ms <= step.ms + exchange.ms + 1e-6


def test_machines_that_are_not_there_have_no_price_and_say_why() -> None:
    """Too few hosts, and a pool whose limit is nearly reached. What can be had comes first, whatever it costs."""
    few = over(RECIPE, 2, of_host("a"), of_host("a", 4))
    assert [(one.hourly, one.cost, one.why_not) for one in few] == [(None, None, "1 such machine is free now, of 2")]
    limited = replace(SITES, left_gpus={("joined", "lab"): 3})
    cloud, pool = over(RECIPE, 2, of_host("a"), of_host("b"), in_cloud(usd="99"), sites=limited)
    assert (cloud.site, cloud.is_to_be_had) == (EAST, True)
    assert (pool.hourly, pool.why_not) == (None, "the limit of the pool lets 3 more GPUs be used, of 4")


def test_machines_that_do_not_reach_each_other_are_none() -> None:
    """A marketplace's, those of two pools, those that are kept for spot jobs, and whatever nobody has said."""
    ask = replace(in_cloud(), provider="market", tier=Tier.MARKETPLACE)
    assert over(RECIPE, 2, ask) == ()
    assert [one.machines for one in over(RECIPE, 2, of_host("a"), of_host("b", pool="other"))] == [1, 1]
    assert over(RECIPE, 2, of_host("a", spot_only=True), of_host("b", spot_only=True)) == ()
    assert over(RECIPE, 2, of_host("a"), of_host("b"), sites=Sites(None)) == ()
    assert over(RECIPE, 2, in_cloud(gpu_type="GH200"), in_cloud(gpu_type="GH200")) == ()


def test_a_step_of_a_script_is_shared_evenly_or_not_at_all() -> None:
    """16 sequences: by four of the six GPUs of two machines; by none of three machines."""
    hosts = [of_host(name, 3) for name in "abc"]
    (found,) = over(SCRIPT, 2, *hosts)
    assert found.training.gpus == 4
    assert over(SCRIPT, 3, *hosts) == ()


def test_a_deadline_decides_what_comes_first() -> None:
    """The pool costs nothing and its network is slow: once it is late, the cloud is chosen."""
    sites = Sites(NETWORKED, {LAB: Network(1_000_000_000, "measured", 1)}, Network(100_000_000_000, "stated"))
    offers = (of_host("a", usd="0"), of_host("b", usd="0"), in_cloud(startup_ms=1_000))
    assert [one.site for one in over(RECIPE, 2, *offers, sites=sites)] == [LAB, EAST]
    quick = over(RECIPE, 2, *offers, sites=sites)[1].duration_ms
    assert quick is not None
    hurried = replace(RECIPE, time_left_ms=quick)
    found = over(hurried, 2, *offers, sites=sites)
    assert [(one.site, one.in_time) for one in found] == [(EAST, True), (LAB, False)]
    assert found[0].steps_in_time is not None and found[0].steps_in_time >= 1000


def test_however_many_kinds_of_gpus_there_are_some_are_looked_at() -> None:
    """Of 2,000 that a hostile listing has at 40 regions, a hundred; each region of one kind of these is told."""
    wish = replace(SCRIPT, training=LORA)
    strange = [in_cloud(1, region=f"r{number % 40}", gpu_memory_bytes=(80 * GIB) + number) for number in range(2_000)]
    assert len(over(wish, 2, *strange)) == 100
    same = [in_cloud(1, region=f"r{number}") for number in range(60)]
    assert len({one.site for one in over(wish, 2, *same)}) == 60


_GPUS = st.sampled_from([1, 2, 4, 8])
_OFFERS = st.lists(
    st.builds(
        lambda host, gpus, usd, pool, size: of_host(
            f"{pool}{host}", gpus, str(usd), pool=pool, gpu_memory_bytes=size * GIB
        ),
        st.integers(0, 5),
        _GPUS,
        st.integers(0, 9),
        st.sampled_from(["lab", "annex"]),
        st.sampled_from([24, 80]),
    ),
    max_size=12,
    unique_by=lambda one: one.key,
)


@settings(max_examples=40)
@given(_OFFERS, st.integers(2, 6), _GPUS)
def test_what_is_to_be_had_is_so_many_hosts_of_one_pool(offers: list[Offer], nodes: int, gpus: int) -> None:
    """Each with enough GPUs and memory, each once, none cheaper left out; and what is not says so."""
    found = over(replace(RECIPE, own=OwnLayout(gpus)), nodes, *offers)
    for one in found:
        there = [
            each
            for each in offers
            if each.region == one.site[2] and each.gpu_count >= gpus and each.gpu_memory_bytes >= one.gpu_memory_bytes
        ]
        cheapest: dict[str, int] = {}
        for each in there:
            cheapest[each.host] = min(each.price_per_hour.micros, cheapest.get(each.host, each.price_per_hour.micros))
        assert one.machines == len(cheapest)
        assert one.is_to_be_had == (len(cheapest) >= nodes)
        if one.hourly is not None:
            assert one.hourly.micros == sum(sorted(cheapest.values())[:nodes])
            assert len({each.host for each in one.offers}) == nodes
    assert [one.rank for one in found] == sorted(one.rank for one in found)
