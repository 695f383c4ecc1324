"""Sandboxes: machines of the estate, as Modal names, schedules, lists and buries them."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grpclib import GRPCError, Status
from modal_proto import api_pb2

from providers.emulators.faults import Fault
from providers.emulators.gpu_faults import wrong_of
from providers.emulators.modal.prices import gpu_name, most_gpus, price_micros, shown_gpus
from providers.emulators.modal.workspace import Result, new_id
from providers.emulators.rows import Cause, MachineProgram, MachineRow, NewMachine
from providers.emulators.serving import Grounds

LONGEST_LIFE_S = 86_400
NEVER_SCHEDULED = "never_scheduled"
NEVER_STARTS = "never_starts"
INIT_FAILURE = "init_failure"
DEAD_ON_ARRIVAL = "dead_on_arrival"
SILENCE = "SILENCE"
_LONGEST_LAG_MS = 5_000
_SIGNAL_EXIT = 128


@dataclass(frozen=True, slots=True)
class Wanted:
    """A create call, whichever generation it asks for."""

    definition: api_pb2.Sandbox
    app_id: str
    environment_name: str
    tags: Mapping[str, str]
    environment: Mapping[str, str]
    idempotency_key: str
    second_generation: bool


class Sandboxes:
    """Raises GRPCError as Modal does."""

    def __init__(self, grounds: Grounds) -> None:
        self._grounds = grounds
        self._estate = grounds.estate

    # -- making

    def create(self, wanted: Wanted, fault: Fault | None) -> MachineRow:
        """One more sandbox; or the one that the same call has made already, where Modal recognises it."""
        earlier = self._same_call(wanted.idempotency_key)
        if earlier is not None and self._grounds.switches["dedupe"]:
            return earlier
        definition = wanted.definition
        gpu = self._checked(definition)
        now_ms, kind = self._grounds.now_ms(), "" if fault is None else fault.kind
        if definition.name and self._holder(definition.name, wanted.app_id) is not None:
            raise GRPCError(Status.ALREADY_EXISTS, f"Sandbox with name '{definition.name}' already exists")
        resources = definition.resources
        count = resources.gpu_config.count if gpu else 0
        boot_ms = self._boot_ms(gpu, count, kind)
        scheduled_ms = now_ms if kind == NEVER_STARTS else None if boot_ms is None else now_ms + boot_ms
        row = self._estate.add(
            NewMachine(
                ref=new_id("sb", 26 if wanted.second_generation else 22),
                program=MachineProgram(tuple(definition.entrypoint_args) or ("sleep", str(definition.timeout_secs))),
                label=definition.name or None,
                environment=wanted.environment,
                price_micros_per_hour=price_micros(
                    self._grounds.market, now_ms, gpu, count, resources.milli_cpu, resources.memory_mb
                ),
                boot_ms=None if kind == NEVER_STARTS else boot_ms,
                lifetime_ms=definition.timeout_secs * 1_000 + int(self._grounds.switches["timeout_late_ms"]),
                facts={**self._facts(wanted, gpu, count, scheduled_ms), **shown_gpus(gpu, count, wrong_of(fault))},
            )
        )
        return self._after_creation(row, kind)

    def _facts(self, wanted: Wanted, gpu: str, count: int, scheduled_ms: int | None) -> dict[str, Any]:
        definition, second = wanted.definition, wanted.second_generation
        return {
            "app_id": wanted.app_id,
            "environment": wanted.environment_name,
            "name": definition.name,
            "tags": dict(wanted.tags),
            "task_id": new_id("ta", 23, "V") if second else new_id("ta"),
            "scheduled_ms": scheduled_ms,
            "visible_ms": self._grounds.now_ms() + self._lag_ms(),
            "gpu": gpu,
            "gpu_count": count,
            "milli_cpu": definition.resources.milli_cpu,
            "memory_mib": definition.resources.memory_mb,
            "image_id": definition.image_id,
            "timeout_secs": definition.timeout_secs,
            "second": second,
            "idempotency_key": wanted.idempotency_key,
        }

    def _after_creation(self, row: MachineRow, kind: str) -> MachineRow:
        if kind == INIT_FAILURE:
            self._estate.update_facts(row.ref, scheduled_ms=None)
            self.finish(row.ref, "INIT_FAILURE", 0, "failed to start: exec format error")
        elif kind == DEAD_ON_ARRIVAL:
            self._estate.update_facts(row.ref, scheduled_ms=self._grounds.now_ms(), vanished=True)
            self._estate.end_soon(row.ref, Cause.FAILURE, "dead on arrival")
        return self._estate.get(row.ref) or row

    def _checked(self, definition: api_pb2.Sandbox) -> str:
        """The name of the GPU on the price list; raises for what cannot be run."""
        asked = definition.resources.gpu_config
        gpu = gpu_name(asked.gpu_type)
        if gpu and not 1 <= asked.count <= most_gpus(gpu):
            known = most_gpus(gpu)
            told = f"{asked.gpu_type} is limited to {known} per container" if known else f"unknown GPU {gpu}"
            raise GRPCError(Status.INVALID_ARGUMENT, told)
        if not 0 < definition.timeout_secs <= LONGEST_LIFE_S:
            message = f"timeout is {definition.timeout_secs} s; it must be from 1 to {LONGEST_LIFE_S}"
            raise GRPCError(Status.INVALID_ARGUMENT, message)
        limit = int(self._grounds.switches["gpu_limit"])
        if limit and gpu and self._gpus_in_use() + asked.count > limit:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, f"the workspace is limited to {limit} concurrent GPUs")
        return gpu

    def _boot_ms(self, gpu: str, count: int, kind: str) -> int | None:
        """How long until there is a machine for it; None: there never is."""
        now_ms = self._grounds.now_ms()
        if kind == NEVER_SCHEDULED:
            return None
        if gpu and self._gpus_in_use(gpu) + count > self._grounds.market.supply(gpu, now_ms):
            return None
        return self._grounds.startup.boot_ms(self._estate.next_number())

    def _lag_ms(self) -> int:
        """How long until listings show it: up to five seconds, at the emulator's speed."""
        set_ms = int(self._grounds.switches["listing_lag_ms"])
        chance = random.Random(f"{self._grounds.seed}/lag/{self._estate.next_number()}")  # noqa: S311 - a model
        return set_ms or round(chance.uniform(0, _LONGEST_LAG_MS) * self._grounds.speed)

    def _gpus_in_use(self, gpu: str | None = None) -> int:
        return sum(row.facts["gpu_count"] for row in self._estate.live() if gpu is None or row.facts["gpu"] == gpu)

    def _same_call(self, key: str) -> MachineRow | None:
        return next((row for row in self._estate.all() if key and row.facts["idempotency_key"] == key), None)

    def _holder(self, name: str, app_id: str) -> MachineRow | None:
        """Who keeps others from having this name: a live sandbox, or one that ended only just now."""
        now_ms, kept_ms = self._grounds.now_ms(), int(self._grounds.switches["name_kept_ms"])
        for row in self._estate.with_label(name):
            gone = row.ended_ms is not None and now_ms >= row.ended_ms + kept_ms
            if row.facts["app_id"] == app_id and not gone:
                return row
        return None

    # -- looking

    def required(self, sandbox_id: str, *, just_created: bool = False) -> MachineRow:
        """NOT_FOUND for one that never was, or of which Modal knows nothing any more.

        `just_created`: the question that ends a create call; one that is dead on arrival still answers it.
        """
        row = self._estate.get(sandbox_id)
        if row is None or (self._vanished(row) and not just_created):
            raise GRPCError(Status.NOT_FOUND, f"Modal Function/Sandbox not found: {sandbox_id}")
        return row

    def by_task(self, task_id: str) -> MachineRow:
        """The sandbox of a task. NOT_FOUND as above."""
        row = next((row for row in self._estate.all() if row.facts["task_id"] == task_id), None)
        if row is None or self._vanished(row):
            raise GRPCError(Status.NOT_FOUND, f"task {task_id} not found")
        return row

    def by_name(self, name: str, app_id: str, second_generation: bool, *, ended_too: bool) -> MachineRow:
        """The live sandbox of this name, else the newest that had it. NOT_FOUND when there is none."""
        rows = [
            row
            for row in self._estate.with_label(name)
            if row.facts["app_id"] == app_id and is_second(row) is second_generation and not self._vanished(row)
        ]
        found = [row for row in rows if row.is_live] or (rows[-1:] if ended_too else [])
        if not found:
            raise GRPCError(Status.NOT_FOUND, f"Sandbox '{name}' not found")
        return found[-1]

    def listed(self, request: api_pb2.SandboxListRequest, environment: str) -> list[api_pb2.SandboxInfo]:
        """One page, newest first: only what was created strictly before `before_timestamp`."""
        now_ms = self._grounds.now_ms()
        wanted = {tag.tag_name: tag.tag_value for tag in request.tags}
        rows = [
            row
            for row in self._estate.all()
            if (row.facts["app_id"] == request.app_id or not request.app_id)
            and (row.facts["environment"] == environment or request.app_id)
            and (request.include_finished or row.is_live)
            and row.facts["visible_ms"] <= now_ms
            and not self._vanished(row)
            and all(row.facts["tags"].get(name) == value for name, value in wanted.items())
            and (not request.before_timestamp or self._created_s(row) < request.before_timestamp)
        ]
        rows.sort(key=lambda row: (-self._created_s(row), -row.number))
        return [self.info(row) for row in rows[: int(self._grounds.switches["page_size"])]]

    def info(self, row: MachineRow) -> api_pb2.SandboxInfo:
        facts = row.facts
        task = api_pb2.TaskInfo(
            id=facts["task_id"] if self.is_scheduled(row) else "",
            started_at=_seconds(row.ready_ms),
            finished_at=_seconds(row.ended_ms if row.ready_ms is not None else None),
            result=self.result(row),
            sandbox_id=row.ref,
        )
        return api_pb2.SandboxInfo(
            id=row.ref,
            created_at=self._created_s(row),
            app_id=facts["app_id"],
            name=facts["name"],
            image_id=facts["image_id"],
            timeout_secs=facts["timeout_secs"],
            tags=tag_messages(facts["tags"]),
            task_info=task,
            metadata=api_pb2.SandboxHandleMetadata(app_id=facts["app_id"], result=task.result),
        )

    def is_scheduled(self, row: MachineRow) -> bool:
        """Whether it has been given a machine."""
        moment = row.facts["scheduled_ms"]
        return row.ready_ms is not None or (moment is not None and moment <= self._grounds.now_ms())

    def result(self, row: MachineRow) -> api_pb2.GenericResult:
        """How it ended; unset while it has not. Outside of its program's own end, the exit code says nothing."""
        if row.is_live:
            return Result()
        told = row.facts.get("result")
        if told is not None:
            return _result(told["status"], told["exitcode"], told["exception"])
        if row.cause is Cause.PROGRAM:
            code = row.exit_code or 0
            code = _SIGNAL_EXIT - code if code < 0 else code
            return _result("SUCCESS" if code == 0 else "FAILURE", code)
        if row.cause is Cause.COMPANY:
            return _result(self._preempted_as(), 0, "preempted")
        if row.cause is Cause.FAILURE:
            return _result("INTERNAL_FAILURE", 0, row.detail)
        return _result("TIMEOUT" if row.cause is Cause.DEADLINE else "TERMINATED", _SIGNAL_EXIT + signal.SIGKILL)

    # -- ending

    def end_soon(self, row: MachineRow) -> None:
        """Terminate, as asked by its owner: the answer comes before the end."""
        self._estate.end_soon(row.ref, Cause.REQUEST, "terminated")

    def finish(self, ref: str, status: str, exitcode: int, exception: str) -> None:
        """End it in a way of the test's choice."""
        names = [name.removeprefix("GENERIC_STATUS_") for name, _ in Result.GenericStatus.items()]
        if status not in names:
            known = ", ".join(names)
            raise ValueError(f"status is {status!r}; it must be one of {known}")
        told = {"status": status, "exitcode": exitcode, "exception": exception}
        self._estate.update_facts(ref, result=told)
        self._estate.end_soon(ref, Cause.FAILURE, exception)

    def _vanished(self, row: MachineRow) -> bool:
        lost = row.cause is Cause.COMPANY and not row.is_live and self._preempted_as() == SILENCE
        return bool(row.facts.get("vanished")) or lost

    def _preempted_as(self) -> str:
        return str(self._grounds.switches["preempted_as"])

    def _created_s(self, row: MachineRow) -> float:
        """Modal's clock may tick in coarse steps: nothing then tells sandboxes of one instant apart."""
        step_ms = max(1, int(self._grounds.switches["listing_clock_ms"]))
        return row.created_ms // step_ms * step_ms / 1_000


def is_second(row: MachineRow) -> bool:
    """Sandboxes without GPUs are of the second generation; their tasks' ids end with a V."""
    return bool(row.facts["second"])


def tag_messages(tags: Mapping[str, str]) -> list[api_pb2.SandboxTag]:
    return [api_pb2.SandboxTag(tag_name=name, tag_value=value) for name, value in tags.items()]


def tags_of(messages: Iterable[Any]) -> dict[str, str]:
    return {message.tag_name: message.tag_value for message in messages}


def _result(status: str, exitcode: int, exception: str = "") -> api_pb2.GenericResult:
    value = Result.GenericStatus.Value(f"GENERIC_STATUS_{status}")
    return Result(status=value, exitcode=exitcode, exception=exception)


def _seconds(moment_ms: int | None) -> float:
    return 0.0 if moment_ms is None else moment_ms / 1_000
