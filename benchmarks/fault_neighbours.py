"""A machine of another installation on the same account, rented through the company's real client as ours are."""

from __future__ import annotations

from app.core.model.ids import make_id, marked
from app.ports.failures import ProcessHostFailures
from app.ports.pace import ProcessPace
from app.ports.provider import MachineRequest, Provider
from app.stack.emulated import Emulated
from app.system import SystemClock
from benchmarks.fault_cluster import CLUSTER_GPU, SHAPE
from providers.emulators.companies import Company, kubeconfig_in
from providers.kubernetes.adapter import KubernetesProvider
from providers.kubernetes.options import KubeOptions, KubeShape
from providers.lambda_cloud.adapter import LambdaProvider
from providers.lambda_cloud.options import LambdaOptions
from providers.modal.adapter import ModalProvider
from providers.modal.catalogue import Catalogue, Shape
from providers.modal.launch import Launch
from providers.modal.link import Account
from providers.runpod.adapter import RunpodProvider
from providers.runpod.options import RunpodOptions
from providers.vast.adapter import VastProvider
from providers.vast.options import VastOptions

_OTHER_INSTALLATION = "inst_01NEXTD0000000000000"
_LIVES_S = 900
_GPUS = {
    Company.MODAL: "T4",
    Company.VAST: "RTX4090",
    Company.LAMBDA: "A10",
    Company.RUNPOD: "RTXA6000",
    Company.KUBERNETES: CLUSTER_GPU,
}


async def rent_as_neighbour(one: Emulated) -> str:
    """Have the other installation rent a machine that sleeps; its reference. It is young, as ours will be."""
    clock = SystemClock()
    provider = _account_of(one, clock)
    try:
        offers = [offer for offer in await provider.offers() if offer.gpu_type == _GPUS[one.company]]
        offer = min(offers, key=lambda each: (each.gpu_count, each.offer_id))
        label = marked(make_id("node", clock.now_ms(), 1), _OTHER_INSTALLATION)
        request = MachineRequest(label, offer, offer.price_per_hour, "busybox", ())
        return (await provider.create(request)).ref
    finally:
        await provider.close()


def _account_of(one: Emulated, clock: SystemClock) -> Provider:
    """The same account that the stack uses, by a client of the other installation's own."""
    pace = ProcessPace(clock, patience_ms=10_000)
    if one.company is Company.MODAL:
        token_id, _, token_secret = one.key.partition(":")
        account = Account(token_id=token_id, token_secret=token_secret, server_url=one.url)
        sleeps = Launch(("sleep", str(_LIVES_S)), {})
        return ModalProvider(account, Catalogue(Shape(4, 32)), clock=clock, launch=lambda _: sleeps)
    script = f"#!/bin/sh\nexec sleep {_LIVES_S}\n"
    if one.company is Company.VAST:
        options = VastOptions(one.key, one.url)
        return VastProvider(options, clock=clock, pace=pace, failures=ProcessHostFailures(), bootstrap=lambda _: script)
    if one.company is Company.RUNPOD:
        account_there = RunpodOptions(one.key, one.url, gpu_counts=(1,), call_every_ms=50)
        return RunpodProvider(account_there, clock=clock, pace=pace, bootstrap=lambda _: script)
    if one.company is Company.KUBERNETES:
        shapes = (KubeShape.model_validate(SHAPE),)
        way = KubeOptions(shapes, str(kubeconfig_in(one.data_dir)), grace_s=5)
        return KubernetesProvider(way, clock=clock, bootstrap=lambda _: script)
    rented = LambdaOptions(one.key, "allpass", one.url, call_every_ms=50, launch_every_ms=50)
    return LambdaProvider(rented, clock=clock, pace=pace, bootstrap=lambda _: script)
