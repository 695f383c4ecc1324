"""Listings page by page, with sandboxes of one instant."""

from __future__ import annotations

import random

import pytest
from modal_proto import api_pb2

from providers.modal.listing import TooLong, list_all


def server(created: dict[str, float], page_size: int) -> tuple[list[float], object]:
    """As Modal lists: newest first, strictly before the moment that is asked for."""
    asked: list[float] = []

    async def ask(request: api_pb2.SandboxListRequest) -> api_pb2.SandboxListResponse:
        asked.append(request.before_timestamp)
        before = request.before_timestamp or float("inf")
        rows = sorted((-at, name) for name, at in created.items() if at < before)
        infos = [api_pb2.SandboxInfo(id=name, created_at=-at) for at, name in rows[:page_size]]
        return api_pb2.SandboxListResponse(sandboxes=infos)

    return asked, ask


async def listed(created: dict[str, float], page_size: int) -> list[str]:
    _, ask = server(created, page_size)
    return [info.id for info in await list_all(ask, api_pb2.SandboxListRequest(app_id="ap"))]


async def test_sandboxes_of_one_instant_are_not_lost_between_pages() -> None:
    """A page that ends amid several sandboxes of one instant is followed by the rest of them."""
    created = {"new": 9.0, "b": 5.0, "c": 5.0, "d": 5.0, "old": 1.0}
    assert await listed(created, 3) == ["new", "b", "c", "d", "old"]


@pytest.mark.parametrize("seed", range(20))
async def test_everything_is_listed_once_as_long_as_an_instant_fits_a_page(seed: int) -> None:
    """Whatever the times are, each sandbox is listed once, newest first."""
    chance = random.Random(seed)
    page_size = chance.randint(2, 6)
    created: dict[str, float] = {}
    for moment in range(chance.randint(0, 8)):
        for _ in range(chance.randint(1, page_size - 1)):
            created[f"sb-{len(created)}"] = 1_795_000_000.123 + moment
    names = await listed(created, page_size)
    assert sorted(names) == sorted(created)
    assert [created[name] for name in names] == sorted(created.values(), reverse=True)


async def test_a_page_that_is_one_instant_does_not_stop_the_listing() -> None:
    """More sandboxes of one instant than fit on a page: what comes before them is listed all the same."""
    created = {f"sb-{number}": 5.0 for number in range(5)} | {"old": 1.0}
    assert "old" in await listed(created, 2)


async def test_a_listing_that_does_not_end_is_given_up() -> None:
    """A server that always has one more page does not hold us for ever."""

    async def ask(request: api_pb2.SandboxListRequest) -> api_pb2.SandboxListResponse:
        before = request.before_timestamp or 1e9
        return api_pb2.SandboxListResponse(sandboxes=[api_pb2.SandboxInfo(id=f"{before}", created_at=before - 1)])

    with pytest.raises(TooLong):
        await list_all(ask, api_pb2.SandboxListRequest())
