"""What a Job and its pods are in our words. Others write there, too: nothing of what is read is taken for granted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from app.core.model.ids import is_id
from app.core.model.money import Money
from app.core.model.node import Tier
from app.ports.provider import Machine, MachineStatus
from providers.kubernetes.options import NAME
from providers.kubernetes.order import MANAGED, NODE, PRICE, QUEUE, SHAPE, job_name

_NEVER_STARTS = frozenset({"InvalidImageName", "ErrImageNeverPull"})
_MAY_NOT_START = frozenset({"ImagePullBackOff", "ErrImagePull", "CreateContainerError", "RunContainerError"})
_LONGEST_DETAIL = 300
_PRICE = re.compile(r"[0-9]{1,15}")


@dataclass(frozen=True, slots=True)
class KubeMachine:
    """A machine as the cluster has it, and how it waits: since when for a node, None once it has one. `is_active`: its
    job counts a pod that has not ended."""

    machine: Machine
    shape: str
    waits_since_ms: int | None
    is_suspended: bool
    is_active: bool


def label_of(found: Any) -> str | None:
    """The node whose machine this object is; None for what is not ours, whatever its name."""
    labels = at(found, "metadata", "labels")
    if not isinstance(labels, Mapping) or labels.get(MANAGED) != "allpass":
        return None
    label = labels.get(NODE)
    return label if isinstance(label, str) and is_id(label, "node") else None


def is_job_of(found: Any, label: str) -> bool:
    """Whether it is the job of this node's machine."""
    return label_of(found) == label and at(found, "metadata", "name") == job_name(label)


def gathered(jobs: Iterable[Any], pods: Iterable[Any]) -> Iterator[tuple[str, Any, list[Any]]]:
    """Label, job and pods of each machine. A pod whose job is gone stands for the machine."""
    by_label: dict[str, list[Any]] = {}
    for pod in pods:
        label = label_of(pod)
        if label is not None:
            by_label.setdefault(label, []).append(pod)
    for job in jobs:
        label = label_of(job)
        if label is not None and is_job_of(job, label):
            yield label, job, by_label.pop(label, [])
    for label, left in by_label.items():
        yield label, None, left


def read_machine(label: str, job: Any, pods: list[Any], *, now_ms: int, max_wait_ms: int) -> KubeMachine:
    """Raises ValueError for a job or pods that say too little."""
    pod = max(pods, key=lambda each: str(at(each, "metadata", "creationTimestamp") or ""), default=None)
    about = job if job is not None else pod
    created_ms = instant_ms(at(about, "metadata", "creationTimestamp"))
    if created_ms is None:
        raise ValueError(f"the job of {label} does not say when it was created")
    status, detail = _state(job, pod, now_ms - created_ms > max_wait_ms)
    from_ms, to_ms = _ran(job, pod, status, now_ms)
    machine = Machine(
        provider=NAME,
        ref=job_name(label),
        label=label,
        tier=Tier.OWN,
        status=status,
        price_per_hour=_price(job),
        created_ms=created_ms,
        billed_from_ms=from_ms,
        billed_to_ms=to_ms,
        detail=detail[:_LONGEST_DETAIL],
        ends_ms=_ends_ms(job, pod),
    )
    has_node = pod is not None and bool(at(pod, "spec", "nodeName"))
    waits = status is MachineStatus.BOOTING and not has_node
    shape = at(about, "metadata", "labels", SHAPE)
    suspended = at(job, "spec", "suspend") is True
    return KubeMachine(machine, str(shape), created_ms if waits else None, suspended, _counts_a_pod(job))


def _counts_a_pod(job: Any) -> bool:
    active = at(job, "status", "active")
    return isinstance(active, int) and active > 0 and at(job, "spec", "suspend") is not True


def at(found: Any, *path: str) -> Any:
    """What lies at this path; None where something on the way is no object."""
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def instant_ms(text: Any) -> int | None:
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def condition(found: Any, kind: str) -> Mapping[str, Any] | None:
    """A condition of this type that holds, or does not: whatever is told last."""
    told = at(found, "status", "conditions")
    rows = [each for each in told if isinstance(each, Mapping)] if isinstance(told, list) else []
    return next((each for each in rows if each.get("type") == kind), None)


def _holds(found: Any, kind: str) -> Mapping[str, Any] | None:
    told = condition(found, kind)
    return told if told is not None and told.get("status") == "True" else None


def _state(job: Any, pod: Any, waited: bool) -> tuple[MachineStatus, str]:
    over = _holds(job, "Failed") or _holds(job, "Complete")
    phase = at(pod, "status", "phase")
    disruption = _holds(pod, "DisruptionTarget")
    why = _words(disruption)
    if phase in {"Succeeded", "Failed"}:
        return MachineStatus.ENDED, why or _said(pod) or _words(over)
    if pod is not None and at(pod, "metadata", "deletionTimestamp"):
        return MachineStatus.RUNNING, f"its pod is to end; {why or _words(over) or 'it was deleted'}"
    if phase in {"Running", "Unknown"}:
        return MachineStatus.RUNNING, why if phase == "Running" else f"nothing is heard of its node: {_said(pod)}"
    if over is not None:
        return MachineStatus.ENDED, _words(over)
    return _pending(pod, waited) if pod is not None else (MachineStatus.BOOTING, _without_pod(job))


def _without_pod(job: Any) -> str:
    if at(job, "spec", "suspend") is not True:
        return "its pod is not created yet"
    queue = at(job, "metadata", "labels", QUEUE)
    return f"suspended: it waits in queue {queue}" if queue else "suspended"


def _pending(pod: Any, waited: bool) -> tuple[MachineStatus, str]:
    statuses = at(pod, "status", "containerStatuses")
    waiting = at(statuses[0], "state", "waiting") if isinstance(statuses, list) and statuses else None
    reason, message = str(at(waiting, "reason") or ""), str(at(waiting, "message") or "")
    said = f"{reason}: {message}".strip(": ")
    if reason in _NEVER_STARTS or (reason in _MAY_NOT_START and waited):
        return MachineStatus.STOPPED, said
    if not said:
        scheduled = condition(pod, "PodScheduled")
        if scheduled is not None and scheduled.get("status") == "False":
            said = f"{scheduled.get('reason')}: {scheduled.get('message', '')}"
    return MachineStatus.BOOTING, said


def _said(pod: Any) -> str:
    told = f"{at(pod, 'status', 'reason') or ''}: {at(pod, 'status', 'message') or ''}".strip(": ")
    over = _terminated(pod)
    code = at(over, "exitCode")
    return told or ("" if code is None else f"{at(over, 'reason') or 'its program ended'}, exit code {code}")


def _words(told: Mapping[str, Any] | None) -> str:
    return "" if told is None else f"{told.get('reason', '')}: {told.get('message', '')}".strip(": ")


def _terminated(pod: Any) -> Any:
    statuses = at(pod, "status", "containerStatuses")
    return at(statuses[0], "state", "terminated") if isinstance(statuses, list) and statuses else None


def _ran(job: Any, pod: Any, status: MachineStatus, now_ms: int) -> tuple[int | None, int | None]:
    """From the start of its program until that ended, as the cluster tells it."""
    statuses = at(pod, "status", "containerStatuses")
    state = at(statuses[0], "state") if isinstance(statuses, list) and statuses else None
    begun = instant_ms(at(state, "running", "startedAt")) or instant_ms(at(state, "terminated", "startedAt"))
    if status is not MachineStatus.ENDED or begun is None:
        return begun, None
    over = instant_ms(at(state, "terminated", "finishedAt"))
    if over is None:
        over = instant_ms(at(_holds(job, "Failed") or _holds(job, "Complete"), "lastTransitionTime")) or now_ms
    return begun, max(begun, over)


def _ends_ms(job: Any, pod: Any) -> int | None:
    """When the cluster ends it: its job's deadline, or that of a pod that was told to end."""
    started, seconds = instant_ms(at(job, "status", "startTime")), at(job, "spec", "activeDeadlineSeconds")
    limit = started + seconds * 1000 if started is not None and isinstance(seconds, int) else None
    leaving = instant_ms(at(pod, "metadata", "deletionTimestamp"))
    return min((each for each in (limit, leaving) if each is not None), default=None)


def _price(job: Any) -> Money:
    told = at(job, "metadata", "annotations", PRICE)
    return Money(int(told)) if isinstance(told, str) and _PRICE.fullmatch(told) else Money(0)
