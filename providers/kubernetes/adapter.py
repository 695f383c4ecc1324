"""A cluster as a provider: each shape is an offer, each machine a Job with one pod."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from app.core.model.money import Money
from app.core.model.node import BillingRule, BillingStart, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.errors import (
    AuthFailed,
    InvalidRequest,
    OfferGone,
    OutcomeUnknown,
    PriceMoved,
    ProviderError,
    Transient,
)
from app.ports.clock import Clock
from app.ports.provider import Machine, MachineRequest
from providers.bootstrap import bootstrap_script
from providers.kubernetes.following import FollowedObjects
from providers.kubernetes.lives import KubeLives
from providers.kubernetes.options import NAME, KubeOptions, KubeShape
from providers.kubernetes.order import NODE, OURS, Bootstrap, job_body, job_name, secret_body
from providers.kubernetes.reading import KubeMachine, at, gathered, is_job_of, label_of, read_machine
from providers.kubernetes.refusals import refusal
from providers.kubernetes.room import ShapeRoom
from providers.kubernetes.wire import KubeWire

_BILLING = BillingRule(1_000, BillingStart.READY)
_BATCH = "batch/v1"
_log = logging.getLogger(__name__)


class KubernetesProvider:
    """Implements `app.ports.provider.Provider`. No create is ever made twice.

    A machine is known by its job's name, which its label determines. Whatever is asked for by name is looked at first:
    what does not carry our labels is somebody else's, and does not exist for us.
    """

    name = NAME

    def __init__(self, options: KubeOptions, *, clock: Clock, bootstrap: Bootstrap = bootstrap_script) -> None:
        self._options = options
        self._clock = clock
        self._bootstrap = bootstrap
        self._wire = KubeWire(options)
        self._lives = KubeLives(clock)
        self._room = ShapeRoom(options, clock)
        self._jobs = FollowedObjects(self._wire, clock, self._wire.place(_BATCH, "jobs"))
        self._pods = FollowedObjects(self._wire, clock, self._wire.place("v1", "pods"))
        self._tells_quotas = True

    def traits(self) -> tuple[ProviderTraits, ...]:
        """One's own tier; others of the cluster may need a machine's place more."""
        return (
            ProviderTraits(
                provider=NAME,
                tier=Tier.OWN,
                billing=_BILLING,
                startup_mean_ms=self._options.startup_ms,
                startup_deadline_ms=self._options.startup_deadline_ms,
                create_grace_ms=self._options.create_grace_ms,
                dies_with_run=False,
                preemptible=True,
                takes_images=not self._options.image,
                is_networked=True,
            ),
        )

    async def offers(self) -> list[Offer]:
        """One for each shape that has room, as far as its limit, quotas and waiting machines tell."""
        jobs, pods = await self._jobs.rows(), await self._pods.rows()
        return self._room.offers(self._read_all(jobs, pods), await self._quotas())

    async def create(self, request: MachineRequest) -> Machine:
        """The job, then the secret that its pod waits for; if that cannot be had, the job goes again.

        OutcomeUnknown as soon as a job may be there without a clear answer, and for one that was there before.
        """
        shape = self._shape_of(request)
        script, body = self._bootstrap(request), job_body(request, shape, self._options)
        try:
            answer = await self._wire.create(self._wire.place(_BATCH, "jobs"), body)
        except OutcomeUnknown:
            await self._give_secret_if_made(request, script)
            raise
        job, was_there = answer.body() if answer.is_success else None, False
        if answer.said.get("reason") == "AlreadyExists":
            job, was_there = await self._own_job(request.label), True
        if job is None or not is_job_of(job, request.label):
            raise refusal(answer) or OutcomeUnknown(f"kubernetes: the answer to {answer.what} names no job of ours")
        is_new = await self._give_secret(job, secret_body(request, script, job))
        if was_there and not is_new:
            raise OutcomeUnknown(f"kubernetes: job {job_name(request.label)} was there before: an earlier call made it")
        return self._lives.see(self._read(request.label, job, []))

    async def get(self, ref: str) -> Machine | None:
        """One that is gone is told as ended for as long as this process remembers it."""
        found = await self._look(ref)
        return self._lives.gone(ref) if found is None else self._lives.see(self._read(*found))

    async def find(self, label: str) -> list[Machine]:
        ref = job_name(label)
        found = await self._look(ref)
        return [] if found is None else [self._lives.see(self._read(*found))]

    async def list_owned(self) -> list[Machine]:
        """What carries our labels; others in the namespace are not even asked for."""
        jobs, _ = await self._wire.listed(self._wire.place(_BATCH, "jobs"), OURS)
        pods, _ = await self._wire.listed(self._wire.place("v1", "pods"), OURS)
        return [self._lives.see(each) for each in self._read_all(jobs, pods)]

    async def terminate(self, ref: str) -> None:
        """Have the job deleted, and its pod before it; it is over when `get` says so. One that is gone is a success."""
        found = await self._look(ref)
        if found is None:
            return
        _, job, pods = found
        for last_look in self._read_all([] if job is None else [job], pods):
            self._lives.see(last_look)  # what it tells of its end goes with it
        if job is not None:
            await self._delete(self._wire.place(_BATCH, "jobs", _name(job)), job, "Foreground")
            return
        for pod in pods:
            await self._delete(self._wire.place("v1", "pods", _name(pod)), pod, "Background")

    async def logs(self, ref: str, tail_lines: int) -> str:
        found = await self._look(ref)
        pods = [] if found is None else found[2]
        if not pods or tail_lines <= 0:
            return ""
        path = f"{self._wire.place('v1', 'pods', _name(pods[-1]))}/log"
        answer = await self._wire.ask("GET", path, {"tailLines": str(tail_lines)})
        if answer.is_missing or answer.status == 400:  # 400: its container has not started yet
            return ""
        refused = refusal(answer)
        if refused is not None:
            raise refused
        return answer.text

    async def close(self) -> None:
        """End the watches, close the connections; harmless when repeated."""
        await self._jobs.close()
        await self._pods.close()
        await self._wire.close()

    # -- looking

    async def _look(self, ref: str) -> tuple[str, Any, list[Any]] | None:
        """Label, job and pods of a machine; None where neither is there, or is ours."""
        job = await self._wire.get(self._wire.place(_BATCH, "jobs", quote(ref, safe="")))
        label = label_of(job)
        if job is not None and (label is None or not is_job_of(job, label)):
            return None
        selector = f"{OURS},{NODE}={label}" if label is not None else OURS
        rows, _ = await self._wire.listed(self._wire.place("v1", "pods"), selector)
        pods = [pod for pod in rows if (own := label_of(pod)) is not None and job_name(own) == ref]
        if job is None and not pods:
            return None
        return label or str(label_of(pods[0])), job, pods

    def _read(self, label: str, job: Any, pods: list[Any]) -> KubeMachine:
        try:
            return read_machine(label, job, pods, now_ms=self._clock.now_ms(), max_wait_ms=self._options.max_wait_ms)
        except (ValueError, TypeError, AttributeError) as error:
            raise Transient(f"kubernetes: the job of {label} cannot be read: {error}") from error

    def _read_all(self, jobs: list[Any], pods: list[Any]) -> list[KubeMachine]:
        """What makes no sense is left out, and said: it hides nothing else."""
        found = []
        for label, job, own in gathered(jobs, pods):
            try:
                found.append(self._read(label, job, own))
            except Transient as error:
                _log.warning("%s; it is left out of the listing", error)
        return found

    async def _quotas(self) -> list[Any]:
        """Those of the namespace; none where we may not look at them."""
        if not self._tells_quotas:
            return []
        try:
            return (await self._wire.listed(self._wire.place("v1", "resourcequotas"), ""))[0]
        except AuthFailed as error:
            _log.warning("quotas of the cluster are not looked at: %s", error)
            self._tells_quotas = False
            return []

    # -- creating and deleting

    def _shape_of(self, request: MachineRequest) -> KubeShape:
        if request.offer.provider != NAME:
            raise InvalidRequest(f"offer {request.offer.key} is not one of provider {NAME}")
        wanted = request.offer.offer_id
        shape = next((each for each in self._options.shapes if each.name == wanted), None)
        if shape is None:
            raise OfferGone(f"kubernetes: ALLPASS_KUBERNETES_SHAPES has no shape {wanted}")
        price = max(request.offer.price_per_hour, Money(0))
        if price > request.max_price_per_hour:
            raise PriceMoved(f"kubernetes: {wanted} costs {price} an hour, agreed were {request.max_price_per_hour}")
        return shape

    async def _own_job(self, label: str) -> dict[str, Any]:
        """The job of this name, which was there before our call. Raises InvalidRequest where it is somebody else's."""
        name = job_name(label)
        job = await self._or_unknown(self._wire.get, self._wire.place(_BATCH, "jobs", name))
        if job is None or not is_job_of(job, label):
            raise InvalidRequest(
                f"kubernetes: job {name} is there and is not ours; delete it, or use another namespace"
            )
        return dict(job)

    async def _give_secret_if_made(self, request: MachineRequest, script: str) -> None:
        """So that the pod of a job whose answer was lost begins, and does not wait in vain until it is given up."""
        with suppress(ProviderError):
            job = await self._wire.get(self._wire.place(_BATCH, "jobs", job_name(request.label)))
            if job is not None and is_job_of(job, request.label):
                await self._give_secret(job, secret_body(request, script, job))

    async def _give_secret(self, job: dict[str, Any], body: dict[str, Any]) -> bool:
        """Whether it is new. Where it cannot be had, nothing may be left that waits for it."""
        try:
            answer = await self._wire.create(self._wire.place("v1", "secrets"), body)
            if answer.said.get("reason") == "AlreadyExists":
                return False
            refused = refusal(answer)
        except ProviderError as error:
            refused = error
        if refused is None:
            return True
        path = self._wire.place(_BATCH, "jobs", _name(job))
        await self._or_unknown(lambda _: self._delete(path, job, "Background"), "")
        if isinstance(refused, OutcomeUnknown):
            raise Transient(f"{refused.message}; job {_name(job)} was deleted again") from refused
        raise refused

    async def _or_unknown(self, call: Callable[[str], Any], path: str) -> Any:
        try:
            return await call(path)
        except ProviderError as error:
            raise OutcomeUnknown(f"kubernetes: a job may be left: {error.message}") from error

    async def _delete(self, path: str, found: dict[str, Any], how: str) -> None:
        """Exactly this object: another that has its name meanwhile is not touched."""
        wanted = {"uid": at(found, "metadata", "uid")}
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": how, "preconditions": wanted}
        answer = await self._wire.ask("DELETE", path, body=body)
        if answer.is_missing or answer.said.get("reason") == "Conflict":
            return
        refused = refusal(answer)
        if refused is not None:
            raise refused


def _name(found: Any) -> str:
    return quote(str(at(found, "metadata", "name")), safe="")
