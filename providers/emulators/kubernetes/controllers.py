"""The controllers: jobs make pods, pods that end make jobs end, what is owned goes with its owner, and Kueue."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import secrets
from typing import Any

from providers.emulators.kubernetes.admission import QUEUE_LABEL, admit_new
from providers.emulators.kubernetes.answers import KubeError, forbidden
from providers.emulators.kubernetes.conditions import has, is_leaving, is_over, note, owner_uids
from providers.emulators.kubernetes.kinds import BY_PLURAL
from providers.emulators.kubernetes.kubelet import PODS, SECRETS, Kubelet
from providers.emulators.kubernetes.store import ClusterStore, KubeObject, ObjectChange, parse_ms
from providers.emulators.serving import Grounds

JOBS, EVENTS, ACCOUNTS = BY_PLURAL["jobs"], BY_PLURAL["events"], BY_PLURAL["serviceaccounts"]
_TICK_S = 0.2
ELSEWHERE = "elsewhere"  # a node that is not played


class Controllers:
    """Looks at every job and pod again after each change, and a few times a second."""

    def __init__(self, grounds: Grounds, store: ClusterStore, kubelet: Kubelet) -> None:
        self._grounds = grounds
        self._store = store
        self._kubelet = kubelet
        self._jobs: dict[str, KubeObject] = {}
        self._pods: dict[str, KubeObject] = {}
        self._is_asked = False
        self._ticking: asyncio.Task[None] | None = None
        store.on_change.append(self._changed)
        grounds.estate.listen(kubelet.heard)

    def open(self) -> None:
        self._ticking = asyncio.create_task(self._tick())

    async def close(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)

    async def _tick(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(_TICK_S)

    def _changed(self, change: ObjectChange) -> None:
        known = {"jobs": self._jobs, "pods": self._pods}.get(change.kind.plural)
        uid = change.after["metadata"]["uid"]
        if known is not None and change.after.get("spec", {}).get("nodeName") != ELSEWHERE:
            known[uid] = change.after
        if change.type == "DELETED":
            if known is not None:
                known.pop(uid, None)
            if change.kind is PODS:
                self._count_loss(change.after)
            self._collect(uid)
        if not self._is_asked:
            self._is_asked = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._is_asked = False
        for job in list(self._jobs.values()):
            if job["metadata"]["uid"] in self._jobs:
                self._look_at_job(self._jobs[job["metadata"]["uid"]])
        for uid in list(self._pods):
            if uid in self._pods:
                self._kubelet.look_at(self._pods[uid])

    # -- jobs

    def _look_at_job(self, job: KubeObject) -> None:
        mine = [pod for pod in self._pods.values() if job["metadata"]["uid"] in owner_uids(pod)]
        if is_leaving(job):
            for pod in mine:
                if not is_leaving(pod):
                    self._kubelet.delete(pod)
            if not any(pod["metadata"]["uid"] in self._pods for pod in mine):
                self._store.remove(JOBS, job)
        elif is_over(job):
            self._forget_old(job)
        elif job["spec"].get("suspend"):
            self._suspend(job, mine)
        else:
            self._advance(job, mine)

    def _suspend(self, job: KubeObject, mine: list[KubeObject]) -> None:
        labels = job["metadata"].get("labels") or {}
        if labels.get(QUEUE_LABEL) and self._grounds.switches["kueue_admits"] and not has(job, "Suspended"):
            self._store.change(JOBS, job, lambda now: now["spec"].update(suspend=False))
            return
        for pod in mine:
            if not is_leaving(pod):
                self._kubelet.delete(pod, disruption=("TerminationByKueue", "the workload was preempted"))

        def alter(now: KubeObject) -> None:
            if not has(now, "Suspended"):
                note(now, "Suspended", "JobSuspended", "Job suspended", now=self._store.stamp())
            now["status"].pop("startTime", None)
            now["status"]["active"] = 0

        self._store.change(JOBS, job, alter)

    def _advance(self, job: KubeObject, mine: list[KubeObject]) -> None:
        status = job.get("status") or {}
        if status.get("succeeded", 0) or any(pod["status"].get("phase") == "Succeeded" for pod in mine):
            self._finish(job, "Complete", "CompletionsReached", "Reached expected number of succeeded pods")
        elif status.get("failed", 0) or any(pod["status"].get("phase") == "Failed" for pod in mine):
            self._finish(job, "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
        elif self._is_late(job):
            for pod in mine:
                self._kubelet.delete(pod)
            self._finish(job, "Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
        else:
            self._start(job, mine)

    def _start(self, job: KubeObject, mine: list[KubeObject]) -> None:
        def alter(now: KubeObject) -> None:
            told = now.setdefault("status", {})
            told.setdefault("startTime", self._store.stamp())
            told["active"] = len(mine)
            if has(now, "Suspended"):
                note(now, "Suspended", "JobResumed", "Job resumed", now=self._store.stamp(), holds=False)

        changed = self._store.change(JOBS, job, alter)
        if changed is None or mine:
            return
        pod = self._pod_for(changed)
        try:
            account = pod["spec"].get("serviceAccountName", "default")
            if self._store.get(ACCOUNTS, pod["metadata"]["namespace"], account) is None:
                why = f'error looking up service account {pod["metadata"]["namespace"]}/{account}: serviceaccount "'
                raise forbidden("pods", pod["metadata"]["name"], f'{why}{account}" not found')
            admit_new(self._store, PODS, pod)
            self._store.add(PODS, pod)
        except KubeError as error:
            self._say(changed, "FailedCreate", f"Error creating: {error}")

    def _pod_for(self, job: KubeObject) -> KubeObject:
        template, meta = copy.deepcopy(job["spec"]["template"]), job["metadata"]
        labels = (template.get("metadata") or {}).get("labels") or {}
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"]}
        told = {"batch.kubernetes.io/job-name": meta["name"], "batch.kubernetes.io/controller-uid": meta["uid"]}
        return {
            "metadata": {
                "name": f"{meta['name']}-{secrets.token_hex(3)[:5]}",
                "namespace": meta["namespace"],
                "labels": {**labels, **told, "job-name": meta["name"]},
                "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
            },
            "spec": template["spec"],
        }

    def _finish(self, job: KubeObject, kind: str, reason: str, message: str) -> None:
        def alter(now: KubeObject) -> None:
            told = now.setdefault("status", {})
            told["active"] = 0
            told["succeeded" if kind == "Complete" else "failed"] = 1
            note(now, kind, reason, message, now=self._store.stamp())
            if kind == "Complete":
                told["completionTime"] = self._store.stamp()

        self._store.change(JOBS, job, alter)

    def _is_late(self, job: KubeObject) -> bool:
        seconds, started = job["spec"].get("activeDeadlineSeconds"), (job.get("status") or {}).get("startTime")
        if seconds is None or started is None:
            return False
        return self._grounds.now_ms() >= parse_ms(str(started)) + int(seconds) * 1000

    def _forget_old(self, job: KubeObject) -> None:
        ttl_s = job["spec"].get("ttlSecondsAfterFinished")
        ends = [
            parse_ms(each["lastTransitionTime"]) for each in job["status"]["conditions"] if each["status"] == "True"
        ]
        if ttl_s is not None and self._grounds.now_ms() >= max(ends) + ttl_s * 1000:
            self._store.remove(JOBS, job)

    def _count_loss(self, pod: KubeObject) -> None:
        """A pod that was deleted counts for its job as it ended: one whose program had not is a failure."""
        how = "succeeded" if pod["status"]["phase"] == "Succeeded" else "failed"
        for uid in owner_uids(pod) & set(self._jobs):
            job = self._jobs[uid]
            if is_over(job) or is_leaving(job) or job["spec"].get("suspend"):
                continue
            self._store.change(JOBS, job, lambda now: now.setdefault("status", {}).update({how: 1}))

    # -- what is owned

    def _collect(self, uid: str) -> None:
        """Delete what the deleted object owned."""
        for pod in [pod for pod in self._pods.values() if uid in owner_uids(pod) and not is_leaving(pod)]:
            self._kubelet.delete(pod)
        for kind in (SECRETS, EVENTS):
            for owned in self._store.all(kind):
                if uid in owner_uids(owned):
                    self._store.remove(kind, owned)

    def _say(self, about: KubeObject, reason: str, message: str) -> None:
        meta = about["metadata"]
        told: dict[str, Any] = {"kind": "Job", "name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]}
        name = f"{meta['name']}.{reason.lower()}"
        with contextlib.suppress(KubeError):  # it has been said
            event = {"metadata": {"name": name, "namespace": meta["namespace"]}, "involvedObject": told}
            self._store.add(EVENTS, {**event, "reason": reason, "message": message, "type": "Warning"})
