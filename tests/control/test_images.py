"""An app's own image: its jobs run on nodes that were rented with it, and on no others."""

from __future__ import annotations

from app.core import codec
from app.core.model.job import Resources
from app.db import tables as t
from tests.control.world import World

OWN = "registry.example.org/lab:7"


def _own(image: str) -> dict[str, object]:
    return dict(codec.encode(Resources(base_image=image)))


async def _idle_node(world: World, **job: object) -> str:
    """A rented node on which a job has just succeeded; it is kept for a minute."""
    job_id = await world.submit(**job)
    await world.decide()
    await world.work()
    node_id = (await world.newest_node()).id
    await world.boot(node_id)
    await world.decide()
    await world.report(node_id, "running")
    await world.report(node_id, "exited", exit_code=0)
    assert (await world.job(job_id)).state == "succeeded"
    return node_id


async def test_a_job_with_an_image_of_its_own_gets_a_node_of_its_own(world: World) -> None:
    """A node is idle beside it, with the usual image: a new one is rented, with the job's image."""
    world.cloud.on_offer = world.cloud.on_offer[1:]
    idle = await _idle_node(world)
    job_id = await world.submit(resources=_own(OWN))
    await world.decide()
    await world.work()
    node = await world.newest_node()
    assert node.id != idle
    assert (node.image, node.rented_for_job_id) == (OWN, job_id)
    await world.boot(node.id)
    decision = await world.decide()
    assert await world.node_of(job_id) == node.id
    assert {view.node_id: view.image for view in decision.snapshot.nodes}[node.id] == OWN


async def test_a_node_of_one_image_takes_no_job_of_another(world: World) -> None:
    """Neither a job without an image of its own nor one with a different one; a second job of the same app may."""
    world.cloud.on_offer = world.cloud.on_offer[1:]
    world.settings.serverful_limit = 1
    world.settings.idle_release_s = 3_600
    await world.restart()
    node_id = await _idle_node(world, resources=_own(OWN))
    plain = await world.submit()
    other = await world.submit(resources=_own("other:1"))
    same = await world.submit(resources=_own(OWN))
    await world.decide()
    assert await world.node_of(same) == node_id
    assert [(await world.job(job_id)).state for job_id in (plain, other)] == ["queued", "queued"]


async def test_a_job_is_told_that_a_node_has_room_but_not_its_image(world: World) -> None:
    """At the limit of nodes, with one idle: the reason names the node and both images."""
    world.cloud.on_offer = world.cloud.on_offer[1:]
    world.settings.serverful_limit = 1
    world.settings.idle_release_s = 3_600
    await world.restart()
    node_id = await _idle_node(world)
    job_id = await world.submit(resources=_own(OWN))
    await world.decide()
    reason = (await world.job(job_id)).wait_reason
    assert f"with image {OWN}" in reason
    assert node_id in reason
    assert f"has room but runs the usual image, and the job wants {OWN}" in reason


async def test_naming_the_usual_image_is_no_constraint(world: World) -> None:
    """An app may spell out what it would get anyway."""
    world.cloud.on_offer = world.cloud.on_offer[1:]
    world.settings.idle_release_s = 3_600
    await world.restart()
    node_id = await _idle_node(world)
    job_id = await world.submit(resources=_own(world.settings.node_image))
    await world.decide()
    assert await world.node_of(job_id) == node_id
    assert {row.image for row in await world.rows(t.nodes)} == {world.settings.node_image}
