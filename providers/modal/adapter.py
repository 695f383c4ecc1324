"""Modal as a provider: one sandbox per node, named after it."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from modal_proto import api_pb2

from app.core.images.logins import RegistryLogins
from app.core.model.ids import is_id
from app.core.model.money import Money
from app.core.model.node import BillingRule, BillingStart, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.core.model.price_list import PriceList
from app.errors import (
    ImageNotBuilt,
    ImageRefused,
    InvalidRequest,
    NoCapacity,
    OfferGone,
    OutcomeUnknown,
    PriceMoved,
    ProviderError,
    Transient,
)
from app.ports.clock import Clock
from app.ports.prices import OwnPrices, ProcessOwnPrices
from app.ports.provider import Machine, MachineRequest, MachineStatus
from providers.modal import sdk
from providers.modal.catalogue import NAME, STARTUP_MS, Catalogue
from providers.modal.deadlines import Deadline, Late
from providers.modal.failures import of_building, of_creating, vendor
from providers.modal.launch import LONGEST_LIFE_MS, Launch, asked_for, launch_of, registry_secret
from providers.modal.link import Account, ModalLink
from providers.modal.reading import NODE_TAG, OWNED, OWNED_TAG, from_listing, from_result, has_machine, named
from providers.modal.sdk import modal

# Of the time for a create call: when App and image must be there, and when the sandbox must be scheduled. What is left
# is for ending one that was not.
_PREPARED_BY = 0.35
_SCHEDULED_BY = 0.6
_FIRST_CONFIRM_S, _LAST_CONFIRM_S = 0.05, 0.8
_IMAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*")
_LONGEST_BUILD_S = 86_400.0  # whoever asks decides how long to wait
_LOG_ENTRIES_PER_LINE = 4  # an entry is what was written at once, not a line
_MOST_LOG_ENTRIES = 10_000
_LONGEST_LOG_CHARS = 256 * 1024


@dataclass(frozen=True, slots=True)
class Times:
    """How long things take at Modal. An emulator that runs faster has shorter ones."""

    startup_ms: int = STARTUP_MS
    startup_deadline_ms: int = 180_000
    create_grace_ms: int = 30_000


class ModalProvider:
    """Implements `app.ports.provider.Provider`.

    Every method has a deadline of ours: Modal's client knows none for most calls, and waits 21 minutes for a machine.
    """

    name = NAME

    def __init__(
        self,
        account: Account,
        catalogue: Catalogue,
        *,
        clock: Clock,
        timeout_s: float = 40.0,
        times: Times | None = None,
        launch: Callable[[MachineRequest], Launch] = launch_of,
        logins: RegistryLogins | None = None,
        own_prices: OwnPrices | None = None,
    ) -> None:
        """`timeout_s` bounds every method. `launch`: what a sandbox runs. `logins`: of private registries.
        `own_prices`: in place of the list's."""
        self._link = ModalLink(account)
        self._catalogue = catalogue
        self._clock = clock
        self._timeout_s = timeout_s
        self._times = times or Times()
        self._launch = launch
        self._logins = logins or RegistryLogins()
        self._own_prices = own_prices or ProcessOwnPrices()
        self._images: dict[str, modal.Image] = {}

    def traits(self) -> tuple[ProviderTraits, ...]:
        """Billed by the second from the start of the container; 24 hours at most; with GPUs it may be preempted."""
        traits = ProviderTraits(
            provider=NAME,
            tier=Tier.SERVERLESS,
            billing=BillingRule(1_000, BillingStart.READY),
            startup_mean_ms=self._times.startup_ms,
            startup_deadline_ms=self._times.startup_deadline_ms,
            create_grace_ms=self._times.create_grace_ms,
            dies_with_run=True,
            preemptible=True,
            max_lifetime_ms=LONGEST_LIFE_MS,
            is_sandbox=True,
            builds_images=True,
        )
        return (traits,)

    def price_list(self) -> PriceList:
        """Modal has no interface for prices."""
        return self._catalogue.price_list()

    async def offers(self) -> list[Offer]:
        """The price list, once Modal has said that it knows our token."""
        await self._link.read(self._deadline(), "for a greeting", sdk.greet)
        return self._catalogue.offers(await self._own_prices.known())

    async def create(self, request: MachineRequest) -> Machine:
        """A sandbox named after the node. When this returns, it has been given a machine.

        Modal's client repeats a create call that it got no answer to. The name makes that harmless: Modal knows a name
        once in an App, and refuses the second. What this very call has made already is adopted; what an earlier call
        made is OutcomeUnknown, and found by its label.
        """
        offer = self._agreed(request, await self._own_prices.known())
        asking_ms, deadline = self._clock.now_ms(), self._deadline()
        launch = self._launch(request)
        app, image = await self._prepare(request.image, deadline.share(_PREPARED_BY))
        asked = asked_for(request, offer, self._catalogue.gpu_argument(offer), asking_ms)

        def call(client: modal.Client) -> Coroutine[Any, Any, modal.Sandbox]:
            secret = modal.Secret.from_dict(dict(launch.environment))
            return modal.Sandbox.create.aio(
                *launch.command, app=app, client=client, name=request.label, image=image, secrets=[secret], **asked
            )

        try:
            sandbox = await self._link.within(deadline.share(_SCHEDULED_BY), call)
        except Late:
            raise await self._withdraw(request.label, deadline) from None
        except vendor.AlreadyExistsError as error:
            return await self._adopt(request.label, asking_ms, deadline, error)
        except ProviderError:
            raise
        except Exception as error:
            if isinstance(error, vendor.NotFoundError):
                self._images.clear()
            raise of_creating(error) from error
        return Machine(
            provider=NAME,
            ref=sandbox.object_id,
            label=request.label,
            tier=Tier.SERVERLESS,
            status=MachineStatus.BOOTING,
            price_per_hour=offer.price_per_hour,
            created_ms=asking_ms,
            billed_from_ms=None,
            billed_to_ms=None,
        )

    async def build_image(self, image: str) -> None:
        """See `ImageBuilder`. Modal builds as long as somebody asks; whether it would without us, it does not say."""
        app = await self._link.read(self._deadline(), "for the App", lambda client: self._lookup(client, create=True))
        asked = self._named_image(image)
        try:
            await self._link.within(Deadline(_LONGEST_BUILD_S), lambda _: asked.build.aio(app))
        except Late as error:
            raise ImageNotBuilt(f"Modal is still building the image {image}") from error
        except ProviderError:
            raise
        except Exception as error:
            raise await self._told(of_building(error), getattr(error, "image_id", "")) from error
        self._images[image] = asked

    def _named_image(self, name: str) -> modal.Image:
        """Its name becomes a line of a Dockerfile. Raises ImageRefused for what would become more than that."""
        if _IMAGE_NAME.fullmatch(name) is None:
            raise ImageRefused(f"{name!r:.200} is no name of an image, such as docker.io/lab/train:7")
        return modal.Image.from_registry(name, registry_secret(self._logins.for_name(name)))

    async def _told(self, failure: ProviderError, image_id: str) -> ProviderError:
        """With the builder's log, where there is one to be had."""
        if not isinstance(failure, ImageRefused) or not image_id:
            return failure
        with contextlib.suppress(ProviderError, vendor.Error):
            what = f"for the log of {image_id}"
            log = await self._link.look(self._deadline(), what, lambda client: sdk.build_log.aio(client, image_id))
            return ImageRefused(failure.message, log=str(log))
        return failure

    async def get(self, ref: str) -> Machine | None:
        """Also after its end, as long as Modal knows it. None: Modal knows of no such sandbox."""
        deadline = self._deadline()
        try:
            answer = await self._link.look(deadline, f"for {ref}", lambda client: sdk.result.aio(client, ref))
        except vendor.NotFoundError:
            return None
        who = named("", await self._tags(ref, deadline))
        listed = await self._siblings(deadline, who.label, answer.metadata.app_id)
        shown = next((info for info in listed if info.id == ref), None)
        told = from_result(ref, who, answer.result)
        if shown is None:
            return told
        machine = from_listing(shown)
        if told.status is MachineStatus.ENDED and machine.status is not MachineStatus.ENDED:
            return replace(machine, status=told.status, detail=told.detail)  # the listing lags behind
        return machine

    async def find(self, label: str) -> list[Machine]:
        """All sandboxes under this label, oldest first, ended ones included as long as Modal lists them."""
        listed = await self._link.sandboxes(self._deadline(), {NODE_TAG: label}, finished=True)
        return sorted(map(from_listing, listed), key=lambda machine: (machine.created_ms, machine.ref))

    async def list_owned(self) -> list[Machine]:
        """All live sandboxes that are nodes: in every App of the environment by tag, and in our App by name.

        By tag, because the App may have had another name when they were made. By name, because tags can be taken off;
        a live node that lost its tags must not look like one that has vanished.
        """
        deadline = self._deadline()
        infos = {info.id: info for info in await self._link.sandboxes(deadline, {OWNED_TAG: OWNED})}
        app = await self._our_app(deadline)
        if app is not None:
            infos |= {info.id: info for info in await self._link.sandboxes(deadline, {}, app_id=app)}
        machines = [from_listing(info) for info in infos.values()]
        return [machine for machine in machines if machine.label is not None and is_id(machine.label, "node")]

    async def terminate(self, ref: str) -> None:
        """End the sandbox and wait until Modal says that it has ended. One that is gone or unknown is a success."""
        deadline, pause_s = self._deadline(), _FIRST_CONFIRM_S
        try:
            sandbox = await self._handle(ref, deadline)
            if sandbox.returncode is not None:
                return
            await self._link.look(deadline, f"to end {ref}", lambda _: sandbox.terminate.aio())
            while await self._link.look(deadline, f"whether {ref} has ended", lambda _: sandbox.poll.aio()) is None:
                if deadline.left_s <= pause_s:
                    raise Transient(f"Modal took the order to end {ref}, and still says that it runs")
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LAST_CONFIRM_S)
        except vendor.NotFoundError:
            return

    async def logs(self, ref: str, tail_lines: int) -> str:
        """The last lines that the sandbox wrote; empty for one that is not known or has not begun."""
        deadline = self._deadline()
        try:
            sandbox = await self._handle(ref, deadline)
            if tail_lines <= 0:
                return ""
            entries = min(tail_lines * _LOG_ENTRIES_PER_LINE, _MOST_LOG_ENTRIES)
            text = await self._link.look(deadline, f"for the log of {ref}", lambda _: _written(sandbox, entries))
        except (vendor.NotFoundError, vendor.ExecutionError):  # no sandbox, or no task of it yet
            return ""
        return "".join(str(text)[-_LONGEST_LOG_CHARS:].splitlines(keepends=True)[-tail_lines:])

    async def close(self) -> None:
        """Close the connection, and give up on calls that have outlived their deadline; harmless when repeated."""
        await self._link.close()

    # -- a sandbox

    def _agreed(self, request: MachineRequest, own: Mapping[str, Money]) -> Offer:
        if request.offer.provider != NAME:
            raise InvalidRequest(f"offer {request.offer.key} is not one of provider {NAME}")
        offer = self._catalogue.current(request.offer.offer_id, own)
        if offer is None:
            raise OfferGone(f"{request.offer.offer_id} is not, or no longer, among the GPUs that are rented at Modal")
        if offer.price_per_hour > request.max_price_per_hour:
            raise PriceMoved(f"{offer.key} costs {offer.price_per_hour}/h, agreed was {request.max_price_per_hour}/h")
        return offer

    async def _prepare(self, image_name: str, deadline: Deadline) -> tuple[modal.App, modal.Image]:
        """All that can be had before the call that costs money; it can be repeated, and shows that Modal answers."""
        app = await self._link.read(deadline, "for the App", lambda client: self._lookup(client, create=True))
        image = self._images.get(image_name)
        if image is not None:
            return app, image
        image = self._named_image(image_name)
        try:
            await self._link.within(deadline, lambda _: image.build.aio(app))
        except Late as error:
            raise ImageNotBuilt(f"Modal is still building the image {image_name}") from error
        except ProviderError:
            raise
        except Exception as error:
            raise of_building(error) from error
        self._images[image_name] = image
        return app, image

    async def _withdraw(self, label: str, deadline: Deadline) -> ProviderError:
        """The create call took too long. A sandbox that waits for a machine is ended; anything else stays unknown."""
        try:
            async with asyncio.timeout(deadline.left_s):
                infos = await self._link.sandboxes(deadline, {NODE_TAG: label}, finished=True)
                if not infos:
                    return OutcomeUnknown("Modal did not answer the create call in time, and does not list it")
                if any(map(has_machine, infos)):
                    return OutcomeUnknown("Modal did not answer the create call in time, but the sandbox has a machine")
                for info in infos:
                    await self.terminate(info.id)
        except (ProviderError, TimeoutError) as error:
            return OutcomeUnknown(f"Modal did not answer the create call in time, nor the look after it: {error}")
        ended = from_listing(infos[0])
        if ended.billed_from_ms is None:
            return NoCapacity("Modal gave the sandbox no machine in time; it was ended, and Modal confirms that")
        return NoCapacity(f"the sandbox ended before it could be used: {ended.detail}")

    async def _adopt(self, label: str, asking_ms: int, deadline: Deadline, refusal: Exception) -> Machine:
        """There is a live sandbox of our name. If this very call made it, with its token, it is the answer.

        One of an earlier call of ours is left to the caller's look: it carries that call's token, not this one's.
        """
        try:
            infos = await self._link.sandboxes(deadline, {NODE_TAG: label}, finished=False)
        except ProviderError as error:
            raise OutcomeUnknown(f"Modal knows the name {label} already, and does not show it: {error}") from refusal
        for info in infos:
            if named(info.name, info.tags).asked_ms == asking_ms:
                return from_listing(info)
        raise OutcomeUnknown(f"Modal knows the name {label} already, from an earlier call") from refusal

    # -- small things

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout_s)

    async def _handle(self, ref: str, deadline: Deadline) -> modal.Sandbox:
        """Raises the client's NotFoundError for a sandbox that is none."""
        sandbox: modal.Sandbox = await self._link.look(
            deadline, f"for {ref}", lambda client: modal.Sandbox.from_id.aio(ref, client=client)
        )
        return sandbox

    async def _tags(self, ref: str, deadline: Deadline) -> Sequence[api_pb2.SandboxTag]:
        """None where Modal keeps them no longer than the sandbox lives."""
        try:
            answer = await self._link.look(deadline, f"for the tags of {ref}", lambda client: sdk.tags.aio(client, ref))
        except vendor.NotFoundError:
            return []
        return list(answer.tags)

    async def _siblings(self, deadline: Deadline, label: str | None, app_id: str) -> list[api_pb2.SandboxInfo]:
        """What is listed beside this sandbox: those of its label, or, when its tags were taken off, of its App."""
        if label is None:
            return await self._link.sandboxes(deadline, {}, app_id=app_id)
        return await self._link.sandboxes(deadline, {NODE_TAG: label}, finished=True)

    async def _our_app(self, deadline: Deadline) -> str | None:
        """The id of our App; None before the first sandbox."""
        try:
            app = await self._link.look(deadline, "for the App", lambda client: self._lookup(client, create=False))
        except vendor.NotFoundError:
            return None
        return str(app.app_id)

    def _lookup(self, client: modal.Client, *, create: bool) -> Coroutine[Any, Any, modal.App]:
        account = self._link.account
        return modal.App.lookup.aio(
            account.app, client=client, environment_name=account.environment, create_if_missing=create
        )


async def _written(sandbox: modal.Sandbox, entries: int) -> str:
    return "".join([entry.message async for entry in sandbox.logs.tail.aio(entries)])
