"""What Modal says of a sandbox, as a machine of ours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from modal_proto import api_pb2

from app.core.model.ids import is_id
from app.core.model.money import Money
from app.core.model.node import Tier
from app.ports.provider import Machine, MachineRequest, MachineStatus
from providers.modal.catalogue import NAME
from providers.modal.failures import end_words

# Tags travel inside the create call, so no sandbox of ours is ever without them, unless somebody takes them off.
OWNED_TAG, OWNED = "allpass", "node"
NODE_TAG = "allpass-node"
PRICE_TAG = "allpass-price"
ASKED_TAG = "allpass-asked"


def tags_of(request: MachineRequest, *, price_per_hour: Money, now_ms: int) -> dict[str, str]:
    """What a listing has to bring back: whose it is, what it costs by our list, and when it was asked for."""
    return {
        OWNED_TAG: OWNED,
        NODE_TAG: request.label,
        PRICE_TAG: str(price_per_hour.micros),
        ASKED_TAG: str(now_ms),
    }


@dataclass(frozen=True, slots=True)
class Named:
    """What the tags and the name of a sandbox tell. `label` None: it is not one of our nodes."""

    label: str | None
    price_per_hour: Money
    asked_ms: int | None


def named(name: str, tags: Iterable[api_pb2.SandboxTag]) -> Named:
    """The name is set once and for all by the create call, so it counts; tags can be replaced later."""
    given = {tag.tag_name: tag.tag_value for tag in tags}
    candidates = (name, given.get(NODE_TAG, ""))
    label = next((text for text in candidates if is_id(text, "node")), None)
    return Named(label, Money(_whole(given.get(PRICE_TAG)) or 0), _whole(given.get(ASKED_TAG)))


def from_listing(info: api_pb2.SandboxInfo) -> Machine:
    """A sandbox as a listing shows it. It is billed from the start of its task to the end of it."""
    who, task = named(info.name, info.tags), info.task_info
    started_ms, finished_ms = _ms(task.started_at), _ms(task.finished_at)
    over = task.result.status != api_pb2.GenericResult.GENERIC_STATUS_UNSPECIFIED
    return Machine(
        provider=NAME,
        ref=info.id,
        label=who.label,
        tier=Tier.SERVERLESS,
        status=_status(over, started_ms),
        price_per_hour=who.price_per_hour,
        created_ms=_ms(info.created_at) or who.asked_ms or 0,
        billed_from_ms=started_ms,
        billed_to_ms=finished_ms if over and started_ms is not None else None,
        detail=end_words(task.result) if over else _waiting(task),
    )


def from_result(ref: str, who: Named, result: api_pb2.GenericResult) -> Machine:
    """A sandbox that answers for itself but is not listed (yet, or any more): without the times of its bill."""
    over = result.status != api_pb2.GenericResult.GENERIC_STATUS_UNSPECIFIED
    return Machine(
        provider=NAME,
        ref=ref,
        label=who.label,
        tier=Tier.SERVERLESS,
        status=MachineStatus.ENDED if over else MachineStatus.BOOTING,
        price_per_hour=who.price_per_hour,
        created_ms=who.asked_ms or 0,
        billed_from_ms=None,
        billed_to_ms=None,
        detail=end_words(result) if over else "not listed yet",
    )


def has_machine(info: api_pb2.SandboxInfo) -> bool:
    """Whether it lives and has been given a machine: it runs, or is about to."""
    task = info.task_info
    return bool(task.id) and task.result.status == api_pb2.GenericResult.GENERIC_STATUS_UNSPECIFIED


def _status(over: bool, started_ms: int | None) -> MachineStatus:
    if over:
        return MachineStatus.ENDED
    return MachineStatus.BOOTING if started_ms is None else MachineStatus.RUNNING


def _waiting(task: api_pb2.TaskInfo) -> str:
    if task.started_at:
        return ""
    return "its container starts" if task.id else "waits for a machine"


def _ms(seconds: float) -> int | None:
    return round(seconds * 1_000) if seconds > 0 else None


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None
