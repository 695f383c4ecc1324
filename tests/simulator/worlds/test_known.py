"""The three worlds: what their figures keep to."""

from __future__ import annotations

from dataclasses import fields

import pytest

from app.core.model.node import Tier
from app.simulator.scenario import START_UPS, StartUp
from app.simulator.worlds.known import FRIENDLY, HARSH, MEASURED, WORLDS
from app.simulator.worlds.world import TierWorld, World

# More of these is better; of all others, less.
BETTER = frozenset({"link_least_mbps", "link_most_mbps", "notice_s", "known_share", "mean_life_s", "bid_taken_s"})
NEITHER = frozenset({"hosts", "dearer_most", "give_up_s", "models", "own_saves_every_s"})


def test_they_are_found_by_their_names() -> None:
    assert list(WORLDS) == ["friendly", "measured", "harsh"]
    assert [one.name for one in WORLDS.values()] == list(WORLDS)
    assert [one.breach() for one in WORLDS.values()] == [None, None, None]


def test_the_friendly_one_is_the_paper_s() -> None:
    """Table 3's starts and the prices of its evaluation; nothing else costs anything, fails or is scarce."""
    assert {
        Tier.SERVERLESS: StartUp(3.88, 1.84),
        Tier.MARKETPLACE: StartUp(36.04, 7.35),
        Tier.CONVENTIONAL: StartUp(255.59, 26.26),
    } == START_UPS
    assert [FRIENDLY.of(tier).usd for tier in (Tier.SERVERLESS, Tier.MARKETPLACE, Tier.CONVENTIONAL)] == [
        2.1,
        0.74,
        1.29,
    ]
    told = {name.rpartition(".")[2] for name, value in FRIENDLY.figures() if value}
    usual = {one.name for one in fields(TierWorld) if one.default and one.name != "mean_life_s"}
    usual |= {one.name for one in fields(World) if isinstance(one.default, int | float) and one.default}
    assert told == usual | {"usd", "startup_mean_s", "startup_sd_s"}


@pytest.mark.parametrize(("milder", "rougher"), [(FRIENDLY, MEASURED), (MEASURED, HARSH)])
def test_none_of_the_figures_gets_better(milder: World, rougher: World) -> None:
    """From one world to the next; where a figure is not used in the milder one, it says nothing there."""
    before, after = dict(milder.figures()), dict(rougher.figures())
    for name, value in after.items():
        last, was = name.rpartition(".")[2], before[name]
        if last in NEITHER or (milder is FRIENDLY and (last in BETTER or last == "checkpoint_every_s")):
            continue
        if last == "drought_s" and not before[name.replace("drought_s", "drought_share")]:
            continue
        if last == "mean_life_s":
            assert was is not None
            assert value is not None
        assert value is not None
        assert was is not None
        assert value >= was if last not in BETTER else value <= was, name


def test_the_most_that_a_host_costs_rises_too() -> None:
    most = [one.marketplace.usd * one.marketplace.dearer_most for one in WORLDS.values()]
    assert most == sorted(most)
    assert most[1:] == [pytest.approx(1.66, abs=0.01), pytest.approx(1.70, abs=0.01)]


def test_modal_s_price_is_that_of_its_catalogue() -> None:
    """GPU, four cores and 32 GiB together, to the micro-dollar, as the service rents them."""
    from providers.modal.catalogue import Catalogue, Shape

    offers = [one for one in Catalogue(Shape(4, 32)).offers() if (one.gpu_type, one.gpu_count) == ("A100", 1)]
    prices = {one.gpu_memory_bytes // 1024**3: one.price_per_hour.micros for one in offers}
    assert round(MEASURED.serverless.usd * 1e6) == prices[40]
    assert round(HARSH.serverless.usd * 1e6) == prices[80]


def test_tails_are_those_of_the_emulated_companies() -> None:
    """What an emulator plays by default is what `measured` is made of."""
    from providers.emulators import startup

    pairs = ((Tier.SERVERLESS, startup.MODAL), (Tier.MARKETPLACE, startup.VAST), (Tier.CONVENTIONAL, startup.LAMBDA))
    for tier, played in pairs:
        ours = MEASURED.of(tier)
        assert (ours.startup_mean_s * 1000, ours.startup_sd_s * 1000) == (played.mean_ms, played.sd_ms)
        assert (ours.slow_share * 1e6, ours.slow_s * 1000) == (played.slow_ppm, played.slow_ms)
        assert ours.never_share * 1e6 == played.never_ppm


def test_starts_are_given_up_when_the_service_gives_them_up() -> None:
    from providers.lambda_cloud.options import LambdaOptions
    from providers.modal.adapter import Times
    from providers.vast.options import VastOptions

    assert MEASURED.serverless.give_up_s * 1000 == Times().startup_deadline_ms
    assert MEASURED.marketplace.give_up_s * 1000 == VastOptions.__dataclass_fields__["startup_deadline_ms"].default
    assert MEASURED.conventional.give_up_s * 1000 == LambdaOptions.__dataclass_fields__["startup_deadline_ms"].default


def test_back_offs_are_those_of_the_service() -> None:
    from app.db.decisions import job_views
    from app.services.moves import hand_jobs_on
    from app.settings import Settings
    from app.simulator.worlds import rough

    assert rough.FIRST_BACK_OFF_MS == hand_jobs_on.FIRST_BACK_OFF_MS
    assert rough.NEXT_BACK_OFF_MS == hand_jobs_on.NEXT_BACK_OFF_MS
    assert rough.AVOID_OFFER_MS == job_views.AVOID_OFFER_MS
    assert MEASURED.checkpoint_every_s == Settings.model_fields["checkpoint_interval_s"].default
    assert MEASURED.prepare_s == Settings.model_fields["move_prepare_s"].default
