"""Builds of images at a provider: begun by the leader, waited for by jobs, told to everybody, and survived by all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.core import codec
from app.core.model.job import Resources
from app.core.model.node import Tier
from app.db import tables as t
from app.db.offers import provider_states as states
from app.db.offers.image_builds import ImageBuild, builders, builds_now, want_again
from app.db.tables import image_builds
from app.errors import AuthFailed, Fenced, ImageNotBuilt, ImageRefused, Transient
from tests.control.fake_provider import make_offer
from tests.control.world import World

OWN = "lab/train:7"
MINUTE_MS = 60_000


@pytest.fixture(autouse=True)
def builds(world: World) -> dict[str, asyncio.Future[None]]:
    """The company builds images before it runs them; serverless is all that it rents out."""
    world.cloud.on_offer = world.cloud.on_offer[:1]
    world.cloud.image_builds = {}
    return world.cloud.image_builds


def _own(image: str = OWN) -> dict[str, Any]:
    return {"resources": dict(codec.encode(Resources(base_image=image)))}


async def _look(world: World) -> None:
    """A round of the chore, and time for its builds to ask the company."""
    assert await world.control.do("images") == 0  # type: ignore[arg-type]  # the word of the chore
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def _ends(world: World, image: str, error: Exception | None = None) -> None:
    """The company is done with it, and what came of it is written."""
    assert world.cloud.image_builds is not None
    async with asyncio.timeout(30):
        while image not in world.cloud.image_builds:
            await asyncio.sleep(0.01)
    build = world.cloud.image_builds.pop(image)
    if error is None:
        build.set_result(None)
    else:
        build.set_exception(error)
    task = next(task for key, task in world.control.images._tasks.items() if key.image == image)
    await task


async def _build(world: World, image: str = OWN) -> ImageBuild:
    async with world.database.transaction() as connection:
        (found,) = await builds_now(connection, image=image)
    return found


async def _place(world: World) -> None:
    await world.decide()
    await world.work()


async def test_the_usual_image_is_built_before_any_job_needs_it(world: World) -> None:
    """At the start of the first leader; once it is built, a job starts at once."""
    await _look(world)
    image = world.settings.node_image
    assert (await _build(world, image)).state == "building"
    world.clock.advance(s=70)
    await _ends(world, image)
    built = await _build(world, image)
    assert (built.state, built.took_ms, built.ready_ms) == ("ready", 70_000, None)
    job_id = await world.submit()
    await _place(world)
    assert (await world.job(job_id)).state == "starting"
    await _look(world)
    assert world.cloud.calls.count(f"build_image {image}") == 1


async def test_nothing_is_built_unasked_where_that_is_switched_off(world: World) -> None:
    """The first job that needs the image has it built."""
    world.settings.prepare_images = False
    await _look(world)
    assert await world.rows(image_builds) == []
    await world.submit()
    await world.decide()
    await _look(world)
    assert (await _build(world, world.settings.node_image)).state == "building"


async def test_a_job_waits_for_its_image_without_a_failure_and_then_starts(world: World) -> None:
    """No machine is asked for, no offer is held against it, and its story tells when the build began and ended."""
    world.settings.prepare_images = False
    job_id = await world.submit(**_own())
    await _place(world)
    assert "it is about to build it now" in (await world.job(job_id)).wait_reason
    await _look(world)
    world.clock.advance(s=30)
    await _place(world)
    job = await world.job(job_id)
    assert f"waits until cloud has built its image {OWN}: it builds it now (for 30 s, about 90 s to go)" in (
        job.wait_reason
    )
    await _ends(world, OWN)
    await _place(world)
    job = await world.job(job_id)
    assert (job.state, job.faults, job.avoided_offers, job.unreached_offers) == ("starting", 0, [], [])
    assert world.cloud.creates == 1
    told = [kind for kind in await world.events(job_id) if kind.startswith("image_")]
    assert told == ["image_building", "image_built"]


async def test_builds_teach_how_long_builds_take(world: World) -> None:
    """The next estimate is what the last ones took."""
    world.settings.prepare_images = False
    await world.submit(**_own())
    await world.decide()
    await _look(world)
    world.clock.advance(s=40)
    await _ends(world, OWN)
    await world.submit(**_own("lab/other:1"))
    await world.decide()
    await _look(world)
    build = await _build(world, "lab/other:1")
    assert build.ready_ms == build.since_ms + 40_000


async def test_an_image_that_cannot_be_built_holds_its_jobs_and_no_others(world: World) -> None:
    """The reason has the image, the builder's last lines, a fix and a command. No run is burnt, however long it takes;
    a job with another image starts; the build itself is tried less and less often, and then no more."""
    await _look(world)
    await _ends(world, world.settings.node_image)
    held = await world.submit(**_own())
    await _place(world)
    await _look(world)
    await _ends(world, OWN, ImageRefused("the build failed", log="Step 1\nmanifest unknown: lab/train:7\n"))
    other = await world.submit()
    await _place(world)
    job = await world.job(held)
    assert (job.state, job.faults) == ("queued", 0)
    assert "held: cloud could not build its image lab/train:7" in job.wait_reason
    assert "manifest unknown: lab/train:7" in job.wait_reason
    assert "compare its name and tag with the registry" in job.wait_reason
    assert "tried again in 300 s (at once: allpass providers prepare lab/train:7)" in job.wait_reason
    assert (await _build(world)).log == "Step 1\nmanifest unknown: lab/train:7"
    (event,) = [row for row in await world.rows(t.job_events) if row.kind == "image_failed"]
    assert (event.job_id, event.data["log"]) == (held, "Step 1\nmanifest unknown: lab/train:7")
    assert (await world.job(other)).state == "starting"
    for _ in range(40):
        world.clock.advance(s=1_800)
        await _look(world)
        if (await _build(world)).state == "building":
            await _ends(world, OWN, ImageRefused("the build failed"))
        await _place(world)
    assert world.cloud.calls.count(f"build_image {OWN}") == 3
    assert "only when somebody asks for it" in (await world.job(held)).wait_reason
    assert (await world.job(held)).faults == 0
    assert world.cloud.creates == 1
    await world.check_invariants()


async def test_whoever_mended_the_image_asks_and_the_job_goes_on(world: World) -> None:
    """At once, as if it had never failed."""
    world.settings.prepare_images = False
    job_id = await world.submit(**_own())
    await world.decide()
    await _look(world)
    await _ends(world, OWN, ImageRefused("no such tag"))
    async with world.database.transaction() as connection:
        await want_again(connection, "cloud", OWN, now_ms=world.clock.now_ms())
    await _look(world)
    await _ends(world, OWN)
    await _place(world)
    assert (await world.job(job_id)).state == "starting"
    assert (await _build(world)).failures == 0


@pytest.mark.parametrize("error", [Transient("cut off"), AuthFailed("401")])
async def test_a_build_that_was_cut_off_is_tried_again_soon(world: World, error: Exception) -> None:
    """The image is not to blame: half a minute, then longer."""
    world.settings.prepare_images = False
    await world.submit(**_own())
    await world.decide()
    await _look(world)
    await _ends(world, OWN, error)
    build = await _build(world)
    assert (build.state, build.failures) == ("failed", 1)
    assert build.again_ms == world.clock.now_ms() + 30_000
    async with world.database.transaction() as connection:
        await states.accept(connection, "cloud")
    world.clock.advance(s=31)
    await _look(world)
    await _ends(world, OWN)
    assert (await _build(world)).state == "ready"


async def test_a_provider_that_refuses_our_credentials_is_asked_for_no_build(world: World) -> None:
    """As nothing is rented there either."""
    async with world.database.transaction() as connection:
        await states.set_configured(connection, ["cloud"])
        await states.refuse(connection, "cloud", "401", now_ms=world.clock.now_ms())
    await _look(world)
    assert not [call for call in world.cloud.calls if call.startswith("build_image")]
    async with world.database.transaction() as connection:
        assert await builders(connection) == ["cloud"]


async def test_a_build_that_takes_too_long_has_failed(world: World) -> None:
    """Else nobody would ever be told."""
    world.settings.prepare_images, world.settings.image_build_timeout_s = False, 0.01
    await world.submit(**_own())
    await world.decide()
    await _look(world)
    await world.control.images.settle()
    build = await _build(world)
    assert (build.state, build.why) == ("failed", "it took longer than 0.01 s")


async def test_a_build_outlives_the_process_that_began_it(world: World, builds: dict[str, Any]) -> None:
    """It stays 'being built', since when it was; whoever leads next asks for it again, and once."""
    await _look(world)
    image = world.settings.node_image
    began_ms = world.clock.now_ms()
    await world.control.images.stop()
    assert (await _build(world, image)).state == "building"
    await world.restart()
    world.clock.advance(s=50)
    await _look(world)
    await _look(world)
    assert world.cloud.calls.count(f"build_image {image}") == 2  # one by each process
    assert (await _build(world, image)).since_ms == began_ms
    await _ends(world, image)
    assert (await _build(world, image)).took_ms == 50_000


async def test_a_process_that_leads_no_more_neither_builds_nor_writes(world: World) -> None:
    """Its build ends when another one leads, and what came of it counts for nothing."""
    await _look(world)
    old, image = world.control, world.settings.node_image
    await world.restart()
    with pytest.raises(Fenced):
        await old.images.look()
    await _ends_of(old, world, image)
    assert (await _build(world, image)).state == "building"


async def _ends_of(control: Any, world: World, image: str) -> None:
    assert world.cloud.image_builds is not None
    world.cloud.image_builds.pop(image).set_result(None)
    await control.images.settle()


async def test_one_of_many_images_does_not_hold_up_the_others_for_ever(world: World) -> None:
    """Four at once at one provider; the fifth begins when one is done."""
    world.settings.prepare_images = False
    names = [f"lab/many:{n}" for n in range(5)]
    for name in names:
        await world.submit(**_own(name))
    await world.decide()
    await _look(world)
    assert [(await _build(world, name)).state for name in names] == ["building"] * 4 + ["wanted"]
    await _ends(world, names[0])
    await _look(world)
    assert (await _build(world, names[4])).state == "building"


@pytest.mark.parametrize("error", [ImageNotBuilt("still building"), ImageRefused("no such tag")])
async def test_a_machine_that_finds_no_image_has_it_built_and_harms_no_offer(
    world: World, error: ImageNotBuilt | ImageRefused
) -> None:
    """The company has lost its copy: no call is repeated for it, nothing is held against offer, provider or job."""
    await _look(world)
    await _ends(world, world.settings.node_image)
    world.cloud.create_faults = [error]
    job_id = await world.submit()
    await _place(world)
    assert world.cloud.creates == 1
    job = await world.job(job_id)
    assert (job.state, job.faults, job.avoided_offers, job.unreached_offers) == ("queued", 0, [], [])
    assert (await _build(world, world.settings.node_image)).state == "wanted"
    async with world.database.transaction() as connection:
        (state,) = await states.provider_states_now(connection)
    assert not state.is_failing()
    await _look(world)
    await _ends(world, world.settings.node_image)
    world.clock.advance(s=2)
    await _place(world)
    assert (await world.job(job_id)).state == "starting"


async def test_a_job_for_one_gpu_keeps_to_one_while_the_company_fails(world: World) -> None:
    """Two and four are on offer; each failure in passing is followed by the same single one."""
    await _look(world)
    await _ends(world, world.settings.node_image)
    world.cloud.on_offer = [
        make_offer("cloud", f"b200-{n}", Tier.SERVERLESS, str(6 * n), startup_ms=2_000, gpus=n) for n in (1, 2, 4)
    ]
    world.cloud.create_faults = [Transient("503")] * 12
    job_id = await world.submit()
    for _ in range(120):
        await _place(world)
        world.clock.advance(s=2)
    asked = {row.data["offer"] for row in await world.rows(t.node_events) if row.kind == "node_requested"}
    assert asked == {"cloud/b200-1"}
    assert (await world.job(job_id)).state == "starting"
    assert len(world.cloud.alive()) == 1


async def test_words_of_a_newer_release_are_read_as_wanted(world: World) -> None:
    """It is built, or found to be there."""
    async with world.database.transaction() as connection:
        row = {"provider": "cloud", "image": OWN, "state": "of a newer release", "since_ms": 5}
        await connection.execute(image_builds.insert().values(**row))
    await _look(world)
    assert (await _build(world)).state == "building"


async def test_old_builds_are_forgotten(world: World) -> None:
    """Thirty days after they were settled; one that goes on is not."""
    await _look(world)
    async with world.database.transaction() as connection:
        for state in ("ready", "failed"):
            row = {"provider": "cloud", "image": state, "state": state, "since_ms": world.clock.now_ms()}
            await connection.execute(image_builds.insert().values(**row))
    world.clock.advance(s=31 * 86_400)
    assert await world.control.do("housekeeping") == 0  # type: ignore[arg-type]  # the word of the chore
    assert [row.state for row in await world.rows(image_builds)] == ["building"]
