"""A Kubernetes cluster for `providers.emulators.serving`."""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping
from typing import Any

from providers.emulators.admin import Unfit
from providers.emulators.gpu_faults import break_gpus
from providers.emulators.kubernetes.access import own_certificate, write_kubeconfig
from providers.emulators.kubernetes.api import KubeApi, add_account
from providers.emulators.kubernetes.conditions import note
from providers.emulators.kubernetes.controllers import ELSEWHERE, JOBS, Controllers
from providers.emulators.kubernetes.kinds import BY_PLURAL
from providers.emulators.kubernetes.kubelet import NODES, PODS, Kubelet
from providers.emulators.kubernetes.store import ClusterStore, KubeObject
from providers.emulators.kubernetes.ways import KINDS, OPS, SWITCHES
from providers.emulators.meter import Rule
from providers.emulators.serving import Built, Emulation, Grounds
from providers.emulators.startup import Startup
from providers.emulators.wire import HttpFront
from workers.machines.premises import url_of

DEFAULT_PORT, DEFAULT_ADMIN_PORT = 7725, 7735
_STARTUP = Startup(8_000, 3_000)  # an image that is on the node already
NAMESPACE = "allpass"
_NAMESPACES = ("default", "kube-system", NAMESPACE)
_ALLOCATABLE = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
_GPU_LABELS = {"nvidia.com/gpu.product": "A100 SXM4", "nvidia.com/gpu.memory": "81920"}


def build(grounds: Grounds) -> Built:
    """The API, and on the admin port: `evict` (a drain), `preempt_pod` (a more important pod), `pressure` (the node has
    too little memory), `node_lost` (`{"halts": true}`: and what runs there stands still), `suspend` (Kueue takes the
    quota back), `compact` (watches cannot go on from any version), `gpus`. Each takes a pod's uid."""
    store = ClusterStore(grounds.now_ms)
    furnish(store)
    kubelet = Kubelet(grounds, store)
    controllers = Controllers(grounds, store, kubelet)
    api = KubeApi(grounds, store, kubelet, _Crowd(grounds, store).gather)
    actions = _Actions(grounds, store, kubelet)
    return Built(
        _ClusterFront(grounds, api, controllers),
        {
            "evict": actions.evict,
            "preempt_pod": actions.preempt_pod,
            "pressure": actions.pressure,
            "node_lost": actions.node_lost,
            "suspend": actions.suspend,
            "compact": actions.compact,
            "gpus": break_gpus(grounds.estate),
        },
    )


def furnish(store: ClusterStore) -> None:
    """Namespaces with their service accounts, and two nodes with eight GPUs each."""
    for name in _NAMESPACES:
        store.add(BY_PLURAL["namespaces"], {"metadata": {"name": name}, "status": {"phase": "Active"}})
        add_account(store, name, "default")
    add_account(store, NAMESPACE, "allpass-machine")
    for name in ("gpu-1", "gpu-2"):
        labels = {"kubernetes.io/hostname": name, **_GPU_LABELS}
        node: KubeObject = {"metadata": {"name": name, "labels": labels}, "spec": {}}
        node["status"] = {"allocatable": dict(_ALLOCATABLE), "capacity": dict(_ALLOCATABLE), "conditions": []}
        note(node, "Ready", "KubeletReady", now=store.stamp())
        store.add(NODES, node)


class _Crowd:
    """Pods of others, which run elsewhere: as many as the switch says."""

    def __init__(self, grounds: Grounds, store: ClusterStore) -> None:
        self._grounds = grounds
        self._store = store
        self._pods: list[KubeObject] = []

    def gather(self) -> None:
        wanted = self._grounds.switches["crowd"]
        while len(self._pods) > wanted:
            self._store.remove(PODS, self._pods.pop())
        for index in range(len(self._pods), wanted):
            labels = {"app": f"web-{index % 40}", "app.kubernetes.io/managed-by": "helm"}
            meta = {"name": f"web-{index:06}", "namespace": NAMESPACE, "labels": labels}
            spec = {"nodeName": ELSEWHERE, "containers": [{"name": "web", "image": "nginx"}]}
            pod = {"metadata": meta, "spec": spec, "status": {"phase": "Running"}}
            self._pods.append(self._store.add(PODS, pod))


class _ClusterFront(HttpFront):
    def __init__(self, grounds: Grounds, api: KubeApi, controllers: Controllers) -> None:
        self._certificate, key_file = own_certificate(grounds.data_dir)
        super().__init__(api.app(), (self._certificate, key_file))
        self._grounds = grounds
        self._controllers = controllers

    async def open(self, listener: socket.socket) -> None:
        url, folder = url_of(listener, "https"), self._grounds.data_dir
        write_kubeconfig(folder, url, self._certificate, self._grounds.key, NAMESPACE)
        self._controllers.open()
        await super().open(listener)

    async def close(self) -> None:
        await self._controllers.close()
        await super().close()


class _Actions:
    def __init__(self, grounds: Grounds, store: ClusterStore, kubelet: Kubelet) -> None:
        self._estate = grounds.estate
        self._store = store
        self._kubelet = kubelet

    def _pod(self, ref: str) -> KubeObject:
        machine = self._estate.get(ref)
        pod = None if machine is None else self._kubelet.pod_of(machine)
        if pod is None:
            raise Unfit(f"there is no pod {ref} any more")
        return pod

    async def evict(self, ref: str, _: Mapping[str, Any]) -> None:
        self._kubelet.delete(self._pod(ref), disruption=("EvictionByEvictionAPI", "Eviction API: evicting"))

    async def preempt_pod(self, ref: str, _: Mapping[str, Any]) -> None:
        why = ("PreemptionByScheduler", "default-scheduler: preempting to accommodate a higher priority pod")
        self._kubelet.delete(self._pod(ref), disruption=why)

    async def pressure(self, ref: str, _: Mapping[str, Any]) -> None:
        def alter(now: KubeObject) -> None:
            note(now, "DisruptionTarget", "TerminationByKubelet", "The node was low on memory", now=self._store.stamp())
            now["status"] |= {"reason": "Evicted", "message": "The node was low on resource: memory."}

        self._store.change(PODS, self._pod(ref), alter)
        await self._estate.end(ref, detail="evicted by the kubelet")

    async def node_lost(self, ref: str, body: Mapping[str, Any]) -> None:
        pod = self._pod(ref)
        if body.get("halts") is True:
            await self._estate.signal_inside(ref, signal.SIGSTOP)
        node = self._store.required(NODES, "", pod["spec"]["nodeName"])
        now = self._store.stamp()

        def silent(found: KubeObject) -> None:
            note(found, "Ready", "NodeStatusUnknown", "Kubelet stopped posting node status.", now=now)
            found["status"]["conditions"][-1]["status"] = "Unknown"

        self._store.change(NODES, node, silent)
        lost = {"phase": "Unknown", "reason": "NodeLost", "message": "Node which was running the pod is unresponsive"}
        self._store.change(PODS, pod, lambda found: found["status"].update(lost))

    async def compact(self, _: str, __: Mapping[str, Any]) -> None:
        self._store.forget()

    async def suspend(self, ref: str, _: Mapping[str, Any]) -> None:
        pod = self._pod(ref)
        owner = pod["metadata"]["ownerReferences"][0]["name"]
        job = self._store.required(JOBS, pod["metadata"]["namespace"], owner)
        self._store.change(JOBS, job, lambda found: found["spec"].update(suspend=True))


EMULATION = Emulation(
    name="kubernetes",
    default_port=DEFAULT_PORT,
    default_admin_port=DEFAULT_ADMIN_PORT,
    rule=Rule(1_000),
    startup=_STARTUP,
    goods=(),
    ops=OPS,
    kinds=KINDS,
    switches=SWITCHES,
    scheme="https",
    build=build,
)
