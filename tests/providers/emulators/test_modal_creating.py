"""What goes wrong at Modal when a sandbox is made, and what the adapter makes of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.core.images.logins import read_logins
from app.errors import (
    ImageNotBuilt,
    ImageRefused,
    InvalidRequest,
    NoCapacity,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Transient,
)
from app.ports.provider import MachineStatus
from providers.conformance.suite import new_label
from providers.emulators.modal.workspace import ModalWorkspace
from providers.modal.adapter import ModalProvider
from providers.modal.sdk import modal
from tests.providers.cloud_process import PATIENCE_S, eventually
from tests.providers.modal_emulator import EmulatedModal, rent, wanted


@pytest.fixture
async def provider(shared_modal: EmulatedModal) -> AsyncIterator[ModalProvider]:
    provider = shared_modal.provider()
    yield provider
    await provider.close()


@pytest.fixture
async def client(shared_modal: EmulatedModal) -> AsyncIterator[Any]:
    """Modal's own client."""
    client = await shared_modal.client()
    yield client
    await client.close.aio()


async def bare_create(client: Any, *, gpu: str = "T4", lifetime_s: int = 600, name: str | None = None) -> Any:
    """A sandbox as anybody would make it."""
    app = await modal.App.lookup.aio("bare", client=client, create_if_missing=True)
    image = modal.Image.from_registry("python:3.11-slim")
    return await modal.Sandbox.create.aio(
        "sleep", "600", app=app, image=image, gpu=gpu, timeout=lifetime_s, name=name, client=client
    )


# -- row 1: capacity


async def test_what_is_rented_is_not_there_for_the_next(shared_modal: EmulatedModal) -> None:
    """With no GPU left a sandbox waits for ever: it is ended and confirmed, NoCapacity is told, nothing is billed."""
    shared_modal.admin.post("/admin/market", json={"supply": {"T4": 1}}).raise_for_status()
    provider, label = shared_modal.provider(timeout_s=10.0), new_label()
    await rent(provider)
    with pytest.raises(NoCapacity, match="it was ended, and Modal confirms that"):
        await rent(provider, label=label)
    await provider.close()
    (machine,) = shared_modal.machines(label)
    assert (machine["state"], machine["bill"]["amount_micros"]) == ("ended", 0)


# -- row 2: the reply is lost, and the client asks again by itself


async def test_a_repeated_call_is_recognised_where_modal_does(
    shared_modal: EmulatedModal, provider: ModalProvider
) -> None:
    """A first attempt whose answer is lost, a second under the same key: one sandbox, and the caller has it."""
    shared_modal.switch(strike_each_attempt=True, dedupe=True)
    shared_modal.fault("create", "drop", when="after")
    machine = await rent(provider)
    assert [each["ref"] for each in shared_modal.machines(machine.label)] == [machine.ref]


async def test_a_repeated_call_is_harmless_where_modal_does_not_recognise_it(
    shared_modal: EmulatedModal, provider: ModalProvider
) -> None:
    """Without recognition the second attempt clashes with the name of the first, which is ours and is adopted."""
    shared_modal.switch(strike_each_attempt=True, dedupe=False)
    shared_modal.fault("create", "drop", when="after")
    machine = await rent(provider)
    assert [each["ref"] for each in shared_modal.machines(machine.label)] == [machine.ref]
    assert machine.status is not MachineStatus.ENDED


async def test_without_a_name_a_repeated_call_leaks(shared_modal: EmulatedModal, client: Any) -> None:
    """The emulator shows what the name is for: without one, and without recognition, there are two sandboxes."""
    before = len(shared_modal.machines())
    shared_modal.switch(strike_each_attempt=True, dedupe=False)
    shared_modal.fault("create", "drop", when="after")
    await bare_create(client)
    assert len(shared_modal.machines()) == before + 2


async def test_a_cancelled_create_leaves_what_can_be_found(
    shared_modal: EmulatedModal, provider: ModalProvider
) -> None:
    """Whoever is cancelled inside the call finds the sandbox by its label, and asking again makes no second one.

    Asking again is no answer either: the sandbox was given the token of the first call.
    """
    request = await wanted(provider)
    shared_modal.fault("create", "hang", when="after")
    creating = asyncio.create_task(provider.create(request))
    async with asyncio.timeout(PATIENCE_S):
        while not shared_modal.machines(request.label):
            await asyncio.sleep(0.02)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    with pytest.raises(OutcomeUnknown, match="from an earlier call"):
        await provider.create(request)
    (found,) = await provider.find(request.label)
    assert [each["ref"] for each in shared_modal.machines(request.label)] == [found.ref]


# -- rows 3 and 4: bursts, throttling, limits


@pytest.mark.parametrize("status", ["UNAVAILABLE", "INTERNAL"])
async def test_a_short_burst_of_errors_is_ridden_out(
    shared_modal: EmulatedModal, provider: ModalProvider, status: str
) -> None:
    """Two failures of one call, then success: nobody notices, and there is one sandbox."""
    shared_modal.switch(strike_each_attempt=True)
    shared_modal.fault("create", "error", count=2, args={"status": status})
    machine = await rent(provider)
    assert len(shared_modal.machines(machine.label)) == 1


async def test_throttling_and_limits_are_told_apart(shared_modal: EmulatedModal, provider: ModalProvider) -> None:
    """Throttled calls say when to come back; a limit of the workspace sends us to another provider. Nothing is made."""
    request = await wanted(provider)
    shared_modal.fault("create", "throttle", ms=700)
    with pytest.raises(RateLimited) as throttled:
        await provider.create(request)
    assert throttled.value.retry_after_ms == 700
    shared_modal.fault("create", "limit")
    with pytest.raises(QuotaExceeded, match="limit of GPUs"):
        await provider.create(request)
    shared_modal.fault("create", "limit", args={"message": "Insufficient capacity for GPU_T4"})
    with pytest.raises(NoCapacity):
        await provider.create(request)
    assert shared_modal.machines(request.label) == []


async def test_the_workspaces_limit_counts_gpus(shared_modal: EmulatedModal, provider: ModalProvider) -> None:
    """With a limit of two GPUs, one of one and one of two do not go together."""
    shared_modal.switch(gpu_limit=2)
    await rent(provider, "T4:1")
    with pytest.raises(QuotaExceeded, match="limited to 2 concurrent GPUs"):
        await rent(provider, "L4:2")


# -- row 5: requests that are wrong


@pytest.mark.parametrize(
    ("asked", "words"),
    [({"gpu": "H900"}, "unknown GPU H900"), ({"gpu": "A10:8"}, "limited to 4"), ({"lifetime_s": 86_401}, "86401")],
)
async def test_what_modal_does_not_run_is_refused(client: Any, asked: dict[str, Any], words: str) -> None:
    """Unknown GPUs, too many of them and more than 24 hours are invalid."""
    with pytest.raises(modal.exception.InvalidError, match=words):
        await bare_create(client, **asked)


@pytest.mark.parametrize("status", ["INVALID_ARGUMENT", "FAILED_PRECONDITION"])
async def test_a_refused_request_is_not_repeated(
    shared_modal: EmulatedModal, provider: ModalProvider, status: str
) -> None:
    """A request that is wrong is told so; asking again cannot help."""
    shared_modal.fault("create", "error", args={"status": status, "message": "bad image"})
    with pytest.raises(InvalidRequest, match="bad image"):
        await rent(provider)


# -- row 7: the image


@pytest.mark.parametrize(
    ("status", "error"), [("FAILURE", ImageRefused), ("TIMEOUT", Transient), ("TERMINATED", Transient)]
)
async def test_an_image_that_cannot_be_built(
    shared_modal: EmulatedModal, provider: ModalProvider, status: str, error: type[ProviderError]
) -> None:
    """A failed build is our mistake, a build that was cut off is tried again; no sandbox is made of either."""
    request = await wanted(provider, image=f"allpass/node:{status.lower()}")
    shared_modal.fault("image", "build_failure", args={"status": status, "message": "no such tag"})
    with pytest.raises(error):
        await provider.create(request)
    assert shared_modal.machines(request.label) == []
    assert (await provider.create(request)).label == request.label


async def test_a_build_that_takes_long_is_told(shared_modal: EmulatedModal, provider: ModalProvider) -> None:
    """A build is waited for; where it outlasts our time the call is Transient, and no sandbox is made."""
    shared_modal.switch(image_build_ms=100)
    assert (await rent(provider, image="allpass/node:slow")).status is MachineStatus.BOOTING
    shared_modal.switch(image_build_ms=600_000)
    hasty = shared_modal.provider(timeout_s=8.0)
    request = await wanted(hasty, image="allpass/node:slower")
    with pytest.raises(ImageNotBuilt, match="still building the image"):
        await hasty.create(request)
    assert shared_modal.machines(request.label) == []
    await hasty.close()


async def test_an_image_is_built_ahead_however_long_that_takes(
    shared_modal: EmulatedModal, provider: ModalProvider
) -> None:
    """Longer than any call may take; two that ask for one image join one build, and a sandbox then starts at once."""
    shared_modal.fault("image", "build_slow", ms=4_000)
    hasty = shared_modal.provider()
    await hasty.offers()
    hasty._timeout_s = 3.0  # once it is connected
    began = time.monotonic()
    await asyncio.gather(hasty.build_image("allpass/node:ahead"), provider.build_image("allpass/node:ahead"))
    assert time.monotonic() - began >= 3.5
    await hasty.build_image("allpass/node:ahead")
    assert (await rent(provider, image="allpass/node:ahead")).status is MachineStatus.BOOTING
    await hasty.close()


@pytest.mark.parametrize("ms", [0, 500])
async def test_a_build_that_fails_tells_its_last_lines(
    shared_modal: EmulatedModal, provider: ModalProvider, ms: int
) -> None:
    """At once or after a while, in the builder's own words; the next try may succeed."""
    said = {"status": "FAILURE", "message": "Image build failed", "log": "Step 1\n/bin/sh: python: not found\n"}
    shared_modal.fault("image", "build_failure", ms=ms, args=said)
    name = f"allpass/node:fails-{ms}"
    with pytest.raises(ImageRefused, match="Image build failed") as failed:
        await provider.build_image(name)
    assert failed.value.log == said["log"]
    assert "ImageBuildError" not in failed.value.message
    await provider.build_image(name)


@pytest.mark.parametrize(("status", "words"), [("TERMINATED", "external shut-down"), ("TIMEOUT", "timed out")])
async def test_a_build_that_is_cut_off_is_nobodys_fault(
    shared_modal: EmulatedModal, provider: ModalProvider, status: str, words: str
) -> None:
    """Nor is one whose call fails."""
    shared_modal.fault("image", "build_failure", args={"status": status})
    with pytest.raises(Transient, match=words):
        await provider.build_image("allpass/node:cut")
    shared_modal.fault("image", "error", args={"status": "INTERNAL"})
    with pytest.raises(Transient):
        await provider.build_image("allpass/node:cut")


@pytest.mark.parametrize("name", ["two words", "a\nRUN curl evil", "", "-x"])
async def test_what_is_no_name_of_an_image_is_never_sent(
    shared_modal: EmulatedModal, provider: ModalProvider, name: str
) -> None:
    """It would become a line of a Dockerfile, or several."""
    with pytest.raises(ImageRefused, match="is no name of an image"):
        await provider.build_image(name)
    request = await wanted(provider, image=name)
    with pytest.raises(ImageRefused, match="is no name of an image"):
        await provider.create(request)
    assert shared_modal.machines(request.label) == []


def test_an_image_takes_one_to_three_minutes_at_the_emulators_speed() -> None:
    """Always the same for one image, others for others; where time stands still, none."""
    times = {ModalWorkspace.usual_build_ms(f"FROM lab/{n}".encode(), 1.0) for n in range(200)}
    assert len(times) > 190
    assert 60_000 <= min(times) < 70_000
    assert 170_000 < max(times) <= 180_000
    assert ModalWorkspace.usual_build_ms(b"x", 0.1) == round(ModalWorkspace.usual_build_ms(b"x", 1.0) / 10)
    assert ModalWorkspace.usual_build_ms(b"x", 0.0) == 0


@pytest.mark.parametrize(
    ("password", "why"),
    [(None, "pull access denied"), ("wrong", "authentication required"), ("hush", None)],
    ids=["no login", "a wrong one", "the right one"],
)
async def test_a_private_image_is_built_with_its_login(
    shared_modal: EmulatedModal, password: str | None, why: str | None
) -> None:
    """It is a secret of the image: the sandbox does not see it. Without the right one no sandbox is made."""
    given = json.dumps({"registry.example.com": {"user": "robot", "password": password}}) if password else ""
    shared_modal.switch(private_registry="registry.example.com robot hush")
    provider = shared_modal.provider(logins=read_logins(given), program="env; echo told; exec sleep 600")
    image, label = f"registry.example.com/team/node:{password}", new_label()
    if why is None:
        machine = await rent(provider, label=label, image=image)
        log = eventually(lambda: "told" in (said := shared_modal.log_of(machine.ref)) and said)
        assert "hush" not in log
        assert "REGISTRY_" not in log
    else:
        with pytest.raises(InvalidRequest, match=why):
            await rent(provider, label=label, image=image)
        assert shared_modal.machines(label) == []
    await provider.close()


# -- row 10: names


async def test_a_name_is_had_once(shared_modal: EmulatedModal, client: Any) -> None:
    """A second sandbox of one name is refused to anybody; an end frees the name."""
    first = await bare_create(client, name="one-of-a-kind")
    with pytest.raises(modal.exception.AlreadyExistsError):
        await bare_create(client, name="one-of-a-kind")
    named = await modal.Sandbox.from_name.aio("bare", "one-of-a-kind", client=client)
    assert named.object_id == first.object_id
    shared_modal.act(first.object_id, "end")
    with pytest.raises(modal.exception.NotFoundError):
        await modal.Sandbox.from_name.aio("bare", "one-of-a-kind", client=client)
    assert (await bare_create(client, name="one-of-a-kind")).object_id != first.object_id


async def test_a_name_that_stays_taken_leaves_the_outcome_unknown(
    shared_modal: EmulatedModal, provider: ModalProvider
) -> None:
    """A name that is refused although nothing lives under it: no other name is tried, the caller looks first."""
    ended = await rent(provider)
    await provider.terminate(ended.ref)
    shared_modal.switch(name_kept_ms=600_000)
    with pytest.raises(OutcomeUnknown, match="knows the name"):
        await rent(provider, label=ended.label)
    shared_modal.switch(name_kept_ms=0)
    assert (await rent(provider, label=ended.label)).ref != ended.ref


# -- row 15: dead on arrival


async def test_a_sandbox_that_is_dead_on_arrival_is_nothing(
    shared_modal: EmulatedModal, provider: ModalProvider
) -> None:
    """Create succeeds, and the next call knows no such sandbox: it is not there, not listed, and ending it is done."""
    shared_modal.fault("create", "dead_on_arrival")
    machine = await rent(provider)
    assert await provider.get(machine.ref) is None
    assert machine.ref not in {each.ref for each in await provider.list_owned()}
    assert await provider.find(str(machine.label)) == []
    await provider.terminate(machine.ref)
    assert await provider.logs(machine.ref, 5) == ""


async def test_a_sandbox_that_dies_while_it_is_made_ready(shared_modal: EmulatedModal, provider: ModalProvider) -> None:
    """A container that cannot be started ends the create call: there is no machine, try the next offer."""
    shared_modal.fault("create", "init_failure")
    with pytest.raises(NoCapacity, match="exec format error"):
        await rent(provider)
