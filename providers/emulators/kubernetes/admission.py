"""What stands before every write: validation, defaults, webhooks, and quotas."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from providers.emulators.kubernetes.answers import KubeError, forbidden, invalid
from providers.emulators.kubernetes.kinds import BY_PLURAL, ApiKind
from providers.emulators.kubernetes.quantities import added, asked_of, quantity, shown
from providers.emulators.kubernetes.store import ClusterStore, KubeObject

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_NAME = re.compile(r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")
_LABEL_KEY = re.compile(r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
_LABEL_VALUE = re.compile(r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")
_IMAGE = re.compile(r"^[A-Za-z0-9._/:@-]+$")
_JOB_FIELDS = frozenset(
    {
        "template", "suspend", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished", "completions",
        "parallelism", "completionMode", "podFailurePolicy", "podReplacementPolicy", "manualSelector", "selector",
    }
)  # fmt: skip
_POD_FIELDS = frozenset(
    {
        "containers", "initContainers", "restartPolicy", "nodeSelector", "tolerations", "serviceAccountName",
        "serviceAccount", "automountServiceAccountToken", "terminationGracePeriodSeconds", "priorityClassName",
        "priority", "imagePullSecrets", "volumes", "securityContext", "enableServiceLinks", "nodeName", "affinity",
        "dnsPolicy", "schedulerName", "activeDeadlineSeconds", "hostNetwork", "runtimeClassName", "hostname",
        "preemptionPolicy", "topologySpreadConstraints",
    }
)  # fmt: skip


def admit_new(store: ClusterStore, kind: ApiKind, given: KubeObject) -> None:
    """Check a new object and give it its defaults. Raises KubeError."""
    meta = given["metadata"]
    if kind.namespaced and store.get(BY_PLURAL["namespaces"], "", meta["namespace"]) is None:
        raise KubeError(404, f'namespaces "{meta["namespace"]}" not found')
    _check_metadata(kind, meta)
    if kind.plural == "jobs":
        _admit_job(given)
    elif kind.plural == "pods":
        _check_pod_spec("Pod", meta.get("name", ""), given.get("spec"), "spec")
        given.setdefault("status", {})["phase"] = "Pending"
        given["spec"].setdefault("terminationGracePeriodSeconds", 30)
    elif kind.plural == "secrets" and isinstance(given.get("stringData"), Mapping):
        import base64

        encoded = {name: base64.b64encode(str(text).encode()).decode() for name, text in given["stringData"].items()}
        given["data"] = {**(given.get("data") or {}), **encoded}
        del given["stringData"]
    check_quota(store, kind, given)


def _check_metadata(kind: ApiKind, meta: Mapping[str, Any]) -> None:
    name = str(meta.get("name") or f"{meta.get('generateName', '')}x")
    if not _NAME.match(name):
        raise invalid(kind.kind, name, "metadata.name", "a lowercase RFC 1123 subdomain must consist of lower case")
    for key, value in (meta.get("labels") or {}).items():
        if not _LABEL_KEY.match(str(key)) or not isinstance(value, str) or not _LABEL_VALUE.match(value):
            raise invalid(kind.kind, name, "metadata.labels", f"Invalid value: {key}={value}")


def _admit_job(job: KubeObject) -> None:
    name, spec = job["metadata"].get("name", ""), job.get("spec")
    if not isinstance(spec, dict) or not isinstance(spec.get("template"), dict):
        raise invalid("Job", name, "spec.template", "Required value")
    unknown = sorted(set(spec) - _JOB_FIELDS)
    if unknown:
        raise KubeError(400, f'strict decoding error: unknown field "spec.{unknown[0]}"')
    if len(name) > 63:
        raise invalid("Job", name, "metadata.name", "must be no more than 63 characters")
    for field in ("backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        value = spec.get(field)
        if value is not None and (not isinstance(value, int) or value < 0):
            raise invalid("Job", name, f"spec.{field}", "must be greater than or equal to 0")
    template = spec["template"]
    _check_pod_spec("Job", name, template.get("spec"), "spec.template.spec")
    if template["spec"].get("restartPolicy") not in {"Never", "OnFailure"}:
        message = 'Unsupported value: supported values: "OnFailure", "Never"'
        raise invalid("Job", name, "spec.template.spec.restartPolicy", message)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("suspend", False)
    spec |= {"completions": spec.get("completions", 1), "parallelism": spec.get("parallelism", 1)}
    template["spec"].setdefault("terminationGracePeriodSeconds", 30)
    if (job["metadata"].get("labels") or {}).get(QUEUE_LABEL):
        spec["suspend"] = True  # Kueue's webhook: what has a queue begins suspended


def _check_pod_spec(kind: str, name: str, spec: Any, place: str) -> None:
    if not isinstance(spec, dict) or not isinstance(spec.get("containers"), list) or not spec["containers"]:
        raise invalid(kind, name, f"{place}.containers", "Required value")
    unknown = sorted(set(spec) - _POD_FIELDS)
    if unknown:
        raise KubeError(400, f'strict decoding error: unknown field "{place}.{unknown[0]}"')
    for number, container in enumerate(spec["containers"]):
        at = f"{place}.containers[{number}]"
        if not isinstance(container, dict) or not container.get("name"):
            raise invalid(kind, name, f"{at}.name", "Required value")
        if not _IMAGE.match(str(container.get("image", ""))):
            raise invalid(kind, name, f"{at}.image", "Required value")
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        for resource in {*limits, *requests}:
            if "/" in resource and limits.get(resource) != requests.get(resource, limits.get(resource)):
                raise invalid(kind, name, f"{at}.resources", f"requests must equal limits for {resource}")
    asked_of(spec)


# -- quotas


def check_quota(store: ClusterStore, kind: ApiKind, given: Mapping[str, Any]) -> None:
    """Raises KubeError (403) where a ResourceQuota of the namespace has no room for the object."""
    namespace, name = given["metadata"].get("namespace", ""), given["metadata"].get("name", "")
    wanted = _charged(kind, given)
    for quota in store.all(BY_PLURAL["resourcequotas"], namespace) if wanted else []:
        hard = {key: quantity(value) for key, value in (quota.get("spec", {}).get("hard") or {}).items()}
        used = used_of(store, namespace)
        over = [key for key in hard if key in wanted and used.get(key, Fraction(0)) + wanted[key] > hard[key]]
        if over:
            told = [
                ",".join(f"{key}={shown(values.get(key, Fraction(0)))}" for key in over)
                for values in (wanted, used, hard)
            ]
            quota_name = quota["metadata"]["name"]
            why = f"exceeded quota: {quota_name}, requested: {told[0]}, used: {told[1]}, limited: {told[2]}"
            raise forbidden(kind.qualified, name, why)


def used_of(store: ClusterStore, namespace: str) -> dict[str, Fraction]:
    """What the objects of a namespace use of quotas."""
    each = [_charged(BY_PLURAL["jobs"], job) for job in store.all(BY_PLURAL["jobs"], namespace)]
    pods = store.all(BY_PLURAL["pods"], namespace)
    alive = [pod for pod in pods if pod.get("status", {}).get("phase") not in {"Succeeded", "Failed"}]
    return added([*each, *(_charged(BY_PLURAL["pods"], pod) for pod in alive)])


def with_usage(store: ClusterStore, quota: KubeObject) -> KubeObject:
    """The quota with what is used of it, as its controller keeps it."""
    hard = (quota.get("spec") or {}).get("hard") or {}
    used = used_of(store, quota["metadata"]["namespace"])
    told = {key: shown(used.get(key, Fraction(0))) for key in hard}
    return {**quota, "status": {"hard": dict(hard), "used": told}}


def _charged(kind: ApiKind, given: Mapping[str, Any]) -> dict[str, Fraction]:
    if kind.plural == "jobs":
        return {"count/jobs.batch": Fraction(1)}
    if kind.plural != "pods":
        return {}
    requests, limits = asked_of(given["spec"]), asked_of(given["spec"], "limits")
    total = {"pods": Fraction(1), "count/pods": Fraction(1)}
    for name, value in requests.items():
        total[f"requests.{name}"] = value
        if name in {"cpu", "memory"}:
            total[name] = value
    return total | {f"limits.{name}": value for name, value in limits.items()}
