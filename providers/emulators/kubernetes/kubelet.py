"""Pods as processes of this host: bound, started, told to end, and gone.

A pod that was created with a node's name is of a node that is not played: it stays as it is.
"""

from __future__ import annotations

import asyncio
import base64
import signal
from collections.abc import Mapping
from typing import Any

from providers.emulators.faults import Fault
from providers.emulators.gpu_faults import wrong_of
from providers.emulators.kubernetes import ways
from providers.emulators.kubernetes.conditions import is_leaving, is_over, note
from providers.emulators.kubernetes.kinds import BY_PLURAL
from providers.emulators.kubernetes.scheduling import fitting_node
from providers.emulators.kubernetes.store import ClusterStore, KubeObject, parse_ms
from providers.emulators.nvidia_smi import GPUS
from providers.emulators.rows import Cause, MachineProgram, MachineRow, MachineState, NewMachine, Then
from providers.emulators.serving import Grounds

PODS, NODES, SECRETS = BY_PLURAL["pods"], BY_PLURAL["nodes"], BY_PLURAL["secrets"]
GPU = "nvidia.com/gpu"


class Kubelet:
    """The scheduler and the kubelets of all nodes. `troubles`: by a job's uid, what is to go wrong with its pods."""

    def __init__(self, grounds: Grounds, store: ClusterStore) -> None:
        self._grounds = grounds
        self._estate = grounds.estate
        self._store = store
        self.troubles: dict[str, Fault] = {}
        self._signals: set[asyncio.Task[Any]] = set()

    # -- starting

    def look_at(self, pod: KubeObject) -> None:
        """Take the next step of a pod that is not over."""
        meta, spec = pod["metadata"], pod["spec"]
        if pod["status"].get("phase") == "Unknown" and not self.is_lost(pod):
            self._store.change(PODS, pod, _heard_again)
        if is_leaving(pod):
            self._tell_again(pod)
            return
        if is_over(pod) or self._estate.get(meta["uid"]) is not None:
            return
        trouble = self._trouble(pod)
        if not spec.get("nodeName"):
            never = trouble is not None and trouble.kind == ways.NEVER_READY
            self._schedule(pod, never=never)
        elif "allpass.emulated" not in (meta.get("annotations") or {}):
            return
        elif trouble is not None and trouble.kind == ways.PULL_ERROR:
            self._wait(pod, "ImagePullBackOff", f'Back-off pulling image "{spec["containers"][0]["image"]}"')
        else:
            self._start(pod)

    def _schedule(self, pod: KubeObject, *, never: bool) -> None:
        nodes = [] if never else self._store.all(NODES)
        placed = [each for each in self._store.all(PODS) if each["spec"].get("nodeName") and not is_over(each)]
        name, why = fitting_node(pod, nodes, placed)

        def alter(now: KubeObject) -> None:
            if name:
                now["spec"]["nodeName"] = name
                now["metadata"].setdefault("annotations", {})["allpass.emulated"] = "1"
                note(now, "PodScheduled", "", now=self._store.stamp())
            elif not any(each.get("message") == why for each in now["status"].get("conditions") or []):
                note(now, "PodScheduled", "Unschedulable", why, now=self._store.stamp(), holds=False)

        self._store.change(PODS, pod, alter)

    def _start(self, pod: KubeObject) -> None:
        container = pod["spec"]["containers"][0]
        environment = self._environment(pod, container)
        if isinstance(environment, str):
            self._wait(pod, "CreateContainerConfigError", environment)
            return
        command = [*(container.get("command") or []), *(container.get("args") or [])]
        program = MachineProgram(command=tuple(command)) if command else MachineProgram(script="exec sleep infinity")
        new = NewMachine(
            ref=pod["metadata"]["uid"],
            program=program,
            label=(pod["metadata"].get("labels") or {}).get("batch.kubernetes.io/job-name", pod["metadata"]["name"]),
            environment=environment,
            boot_ms=self._grounds.startup.boot_ms(self._estate.next_number()),
            when_it_exits=Then.END,
            facts=self._facts(pod),
        )
        self._wait(pod, "ContainerCreating", "")
        self._estate.add(new)

    def _facts(self, pod: KubeObject) -> dict[str, Any]:
        limits = (pod["spec"]["containers"][0].get("resources") or {}).get("limits") or {}
        node = self._store.get(NODES, "", pod["spec"]["nodeName"])
        labels = {} if node is None else node["metadata"]["labels"]
        told = {"pod": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
        if GPU not in limits:
            return told
        memory = int(labels.get("nvidia.com/gpu.memory", 81920))
        good = str(labels.get("nvidia.com/gpu.product", "A100 SXM4"))
        wrong = wrong_of(self._trouble(pod))
        return {**told, GPUS: {"good": good, "count": int(limits[GPU]), "memory_mib": memory, "wrong": wrong}}

    def _environment(self, pod: KubeObject, container: Mapping[str, Any]) -> dict[str, str] | str:
        """What the container gets; a text says which secret it waits for."""
        found: dict[str, str] = {}
        for source in container.get("envFrom") or []:
            data = self._secret(pod, (source.get("secretRef") or {}).get("name", ""))
            if data is None:
                return f'secret "{(source.get("secretRef") or {}).get("name")}" not found'
            found |= data
        for each in container.get("env") or []:
            reference = (each.get("valueFrom") or {}).get("secretKeyRef")
            if reference is None:
                found[each["name"]] = str(each.get("value", ""))
                continue
            data = self._secret(pod, reference.get("name", ""))
            if data is None or reference.get("key") not in data:
                return f'secret "{reference.get("name")}" not found'
            found[each["name"]] = data[reference["key"]]
        return found

    def _secret(self, pod: KubeObject, name: str) -> dict[str, str] | None:
        found = self._store.get(SECRETS, pod["metadata"]["namespace"], name)
        if found is None:
            return None
        return {key: base64.b64decode(text).decode() for key, text in (found.get("data") or {}).items()}

    def _wait(self, pod: KubeObject, reason: str, message: str) -> None:
        waiting = {"reason": reason, **({"message": message} if message else {})}

        def alter(now: KubeObject) -> None:
            now["status"]["containerStatuses"] = [self._container(now, {"waiting": waiting})]

        self._store.change(PODS, pod, alter)

    # -- what becomes of its process

    def heard(self, machine: MachineRow) -> None:
        """The process of a pod has changed its state."""
        pod = self.pod_of(machine)
        if pod is None:
            return
        if machine.state is MachineState.RUNNING:
            self._store.change(PODS, pod, self._run)
        elif machine.state is MachineState.ENDED:
            ended = self._store.change(PODS, pod, lambda now: self._end(now, machine))
            if ended is not None and is_leaving(ended):
                self._store.remove(PODS, ended)

    def pod_of(self, machine: MachineRow) -> KubeObject | None:
        found = self._store.get(PODS, machine.facts.get("namespace", ""), machine.facts.get("pod", ""))
        return found if found is not None and found["metadata"]["uid"] == machine.ref else None

    def _run(self, pod: KubeObject) -> None:
        now = self._store.stamp()
        pod["status"] |= {"phase": "Running", "startTime": now, "podIP": "192.0.2.1", "hostIP": "192.0.2.2"}
        pod["status"]["containerStatuses"] = [self._container(pod, {"running": {"startedAt": now}}, ready=True)]
        note(pod, "Ready", "", now=now)

    def _end(self, pod: KubeObject, machine: MachineRow) -> None:
        now = self._store.stamp(machine.ended_ms)
        code = machine.exit_code if machine.exit_code is not None else 137
        if code < 0:
            code = 128 - code
        before = (pod["status"].get("containerStatuses") or [{}])[0].get("state", {}).get("running", {})
        reason = "Completed" if code == 0 else "Error"
        over = {"exitCode": code, "reason": reason, "startedAt": before.get("startedAt", now), "finishedAt": now}
        pod["status"]["phase"] = "Succeeded" if code == 0 else "Failed"
        pod["status"]["containerStatuses"] = [self._container(pod, {"terminated": over})]
        note(pod, "Ready", "PodFailed", now=now, holds=False)

    @staticmethod
    def _container(pod: KubeObject, state: Mapping[str, Any], *, ready: bool = False) -> dict[str, Any]:
        container = pod["spec"]["containers"][0]
        told = {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0}
        return {**told, "ready": ready, "started": ready, "state": dict(state)}

    # -- ending

    def delete(self, pod: KubeObject, grace_s: int | None = None, disruption: tuple[str, str] | None = None) -> None:
        """SIGTERM now, SIGKILL when the grace is over; a `disruption` (reason and words) is noted before."""
        usual_s = int(pod["spec"].get("terminationGracePeriodSeconds", 30))
        seconds = usual_s if grace_s is None else grace_s
        machine = self._estate.get(pod["metadata"]["uid"])
        lives = machine is not None and machine.is_live and not is_over(pod)
        at_ms = self._grounds.now_ms() + seconds * 1000

        def alter(now: KubeObject) -> None:
            if disruption is not None:
                note(now, "DisruptionTarget", *disruption, now=self._store.stamp())
            meta = now["metadata"]
            if not is_leaving(now) or at_ms < parse_ms(meta["deletionTimestamp"]):
                meta |= {"deletionTimestamp": self._store.stamp(at_ms), "deletionGracePeriodSeconds": seconds}

        told = self._store.change(PODS, pod, alter)
        if told is None:
            return
        if not lives or (seconds == 0 and self.is_lost(pod)):
            self._store.remove(PODS, told)
        elif machine is not None and not self.is_lost(pod):
            self._tell_process(machine.ref, seconds, at_ms, is_first=not is_leaving(pod))

    def _tell_process(self, uid: str, seconds: int, at_ms: int, *, is_first: bool) -> None:
        if seconds == 0:
            self._estate.end_soon(uid, Cause.REQUEST, "deleted")
            return
        self._estate.set_deadline(uid, at_ms, Then.END, Cause.REQUEST)
        if is_first:
            task = asyncio.create_task(self._estate.signal_inside(uid, signal.SIGTERM))
            self._signals.add(task)
            task.add_done_callback(self._signals.discard)

    def _tell_again(self, pod: KubeObject) -> None:
        """A node that is back hears what was to end meanwhile."""
        machine = self._estate.get(pod["metadata"]["uid"])
        if machine is None or not machine.is_live or self.is_lost(pod):
            return
        if machine.deadline_ms is not None or machine.ending is not None:
            return  # it has
        seconds = int(pod["metadata"]["deletionGracePeriodSeconds"])
        self._tell_process(machine.ref, seconds, self._grounds.now_ms() + seconds * 1000, is_first=True)

    def is_lost(self, pod: KubeObject) -> bool:
        """Whether nobody hears from its node."""
        node = self._store.get(NODES, "", pod["spec"].get("nodeName", ""))
        told = [] if node is None else node["status"]["conditions"]
        return any(each["type"] == "Ready" and each["status"] == "Unknown" for each in told)

    def _trouble(self, pod: KubeObject) -> Fault | None:
        owners = [str(each["uid"]) for each in pod["metadata"].get("ownerReferences") or []]
        return next((self.troubles[uid] for uid in owners if uid in self.troubles), None)


def _heard_again(pod: KubeObject) -> None:
    pod["status"]["phase"] = "Running"
    for name in ("reason", "message"):
        pod["status"].pop(name, None)
