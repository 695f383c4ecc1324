"""The series of the whole service, from what the database knows: the same from every process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import Metric

from app.api.families import counter, gauge, gauges, histogram
from app.core.invariants import INVARIANTS
from app.core.model.health import Chore, PartKind
from app.core.model.job import JobEnd, JobState, PauseReason, StartRule
from app.core.model.money import MICROS_PER_USD
from app.core.model.move import OPEN_MOVE_STATES, MoveState
from app.core.model.plan import ActionKind
from app.db.counting.series import SOURCES, CountedSeries
from app.services.kit.histogram import Histogram
from app.services.reading.fleet_metrics import FleetMetrics

_Numbers = dict[tuple[str, ...], float]
_STATE_OF: dict[JobEnd, JobState] = dict.fromkeys(JobEnd, JobState.FAILED) | {
    JobEnd.FINISHED: JobState.SUCCEEDED,
    JobEnd.CANCELLED: JobState.CANCELLED,
    JobEnd.MAX_DURATION: JobState.CANCELLED,
}
_NAMES = {PartKind.CHORE: tuple(Chore), PartKind.ACTION: tuple(ActionKind), PartKind.INVARIANT: INVARIANTS}


def of_service(fleet: FleetMetrics) -> Iterator[Metric]:
    """Of a reading in which the database answered."""
    standing = _by_kind(fleet)
    yield from _jobs(standing)
    yield from _machines_and_money(fleet, standing)
    yield from _control(fleet, standing)
    yield from _providers(fleet, standing)
    yield from _happened(fleet)
    yield from _failures(fleet)


def _by_kind(fleet: FleetMetrics) -> dict[str, _Numbers]:
    found: dict[str, _Numbers] = {}
    for count in fleet.standing:
        found.setdefault(count.what, {})[count.labels] = count.number
    return found


def _first(numbers: _Numbers | None, labels: int, *, unit: int = 1) -> _Numbers:
    """By its first labels alone, in that unit."""
    return {key[:labels]: number / unit for key, number in (numbers or {}).items()}


def _jobs(standing: dict[str, _Numbers]) -> Iterator[Metric]:
    yield gauges("allpass_jobs", "Jobs that are not over", ["state", "tier"], _first(standing.get("job"), 2))
    late = {("given",): 0.0, ("inferred",): 0.0} | _first(standing.get("late"), 1)
    told = "Unfinished jobs past their deadline, by who set it; those that their user paused are left out"
    yield gauges("allpass_jobs_late", told, ["deadline"], late)
    paused = {(reason.value,): 0.0 for reason in PauseReason} | _first(standing.get("paused"), 1)
    yield gauges("allpass_jobs_paused", "Jobs that are paused, by what paused them", ["reason"], paused)


def _machines_and_money(fleet: FleetMetrics, standing: dict[str, _Numbers]) -> Iterator[Metric]:
    nodes = standing.get("node", {})
    yield gauges("allpass_nodes", "Machines that are not gone", ["state", "tier", "provider"], nodes)
    told = "Machines without a node that were found at a provider and are not gone"
    yield gauges("allpass_orphan_nodes", told, ["provider"], _first(standing.get("orphan"), 1))
    price = _first(standing.get("price"), 2, unit=MICROS_PER_USD)
    told = "What the machines that are not gone cost in an hour"
    yield gauges("allpass_nodes_usd_per_hour", told, ["tier", "provider"], price)
    spent = _first(standing.get("spent"), 2, unit=MICROS_PER_USD)
    yield counter("allpass_spent_usd", "The sum of the ledger, in dollars", ["tier", "provider"], spent)
    (behind,) = (standing.get("unmetered") or {(): 0.0}).values()
    told = "For how long the machine that was metered longest ago is not metered"
    yield gauge("allpass_meter_behind_seconds", told, behind / 1000)
    budgets = {(state,): number for state, number in fleet.budgets.items()}
    told = "Budgets by how much is spent of them: near is four fifths, used_up is all"
    yield gauges("allpass_budgets", told, ["state"], budgets)


def _control(fleet: FleetMetrics, standing: dict[str, _Numbers]) -> Iterator[Metric]:
    terms = list(standing.get("leader", {}).values())
    yield gauge("allpass_leader", "Whether some process leads (1) or none (0)", len(terms))
    if terms:
        yield gauge("allpass_leader_term", "The leader's term, which only grows", terms[0])
    if fleet.tick is not None:
        told = "When the newest decision that is stored was taken"
        yield gauge("allpass_last_tick_timestamp_seconds", told, fleet.tick.at_ms / 1000)
        told = "Actions of that decision that could not be enacted"
        yield gauge("allpass_last_tick_dropped_actions", told, fleet.tick.dropped)
        signals = {(name,): value for name, value in fleet.tick.signals.items()}
        yield gauges("allpass_policy_signal", "What the policy saw in that decision, e.g. F_s", ["signal"], signals)


def _providers(fleet: FleetMetrics, standing: dict[str, _Numbers]) -> Iterator[Metric]:
    told = "Calls to providers that are still to succeed, by the error of the last try"
    labels = ["provider", "kind", "error"]
    yield gauges("allpass_provider_operations_pending", told, labels, standing.get("pending", {}))
    errors = {(one.provider, one.call, one.code): one.count for one in fleet.provider_errors}
    labels = ["provider", "call", "code"]
    yield counter("allpass_provider_errors", "Calls to providers that failed, by code", labels, errors)
    present = [
        one for one in fleet.providers if one.configured
    ]  # of one that is not used any more, nobody is to be woken
    refused = {(one.provider,): int(one.refused_ms is not None) for one in present}
    told = "Whether the provider refuses our credentials (1): an alarm"
    yield gauges("allpass_provider_refused", told, ["provider"], refused)
    paused = {(one.provider,): int(one.is_paused(fleet.now_ms)) for one in present}
    told = "Whether the account's limit stops renting there (1)"
    yield gauges("allpass_provider_paused", told, ["provider"], paused)
    heard = {(one.provider,): one.last_success_ms / 1000 for one in present if one.last_success_ms is not None}
    told = "When a call was last answered, to about a minute"
    yield gauges("allpass_provider_last_success_timestamp_seconds", told, ["provider"], heard)


def _happened(fleet: FleetMetrics) -> Iterator[Metric]:
    """Since the database was made, or upgraded to a release that counts."""
    happened = fleet.happened
    told = "From submission until user code first ran, by the job's start rule"
    starts = {(rule.value,): Histogram(_bounds(CountedSeries.START_LATENCY)) for rule in StartRule}
    yield histogram("allpass_start_latency_seconds", told, ["start"], starts | happened[CountedSeries.START_LATENCY])
    told = "From the last step on the source to the first on the target, of moves of jobs that report steps"
    yield histogram("allpass_move_pause_seconds", told, [], _at_least_none(fleet, CountedSeries.MOVE_PAUSE))
    told = "Time to observe, decide and enact, of decisions that are stored"
    yield histogram("allpass_tick_seconds", told, [], _at_least_none(fleet, CountedSeries.DECISION_TIME))
    dropped = _numbers(happened[CountedSeries.DROPPED_ACTIONS]) or {(): 0}
    told = "Planned actions that could not be enacted when their turn came"
    yield counter("allpass_actions_dropped", told, [], dropped)
    labels = ["state", "reason", "late"]
    told = "Jobs that are over, and whether that was after their deadline"
    ends = {(state, reason, late): 0 for reason, state in _STATE_OF.items() for late in ("no", "yes")}
    yield counter("allpass_jobs_ended", told, labels, _merge(ends, happened[CountedSeries.JOBS_ENDED]))
    told = "Moves with a prepared target that are over: done or abandoned"
    over = {(state.value,): 0 for state in MoveState if state not in OPEN_MOVE_STATES}
    yield counter("allpass_moves_ended", told, ["state"], _merge(over, happened[CountedSeries.MOVES_ENDED]))
    operations = happened[CountedSeries.OPERATIONS]
    told, labels = "Calls to providers that are over, by error code or ok", ["provider", "kind", "outcome"]
    yield counter("allpass_provider_operations", told, labels, _numbers(operations))
    told = "From the intent to call a provider until that was over"
    yield histogram("allpass_provider_operation_seconds", told, labels[:2], _by_first(operations, 2))


def _bounds(series: CountedSeries) -> tuple[float, ...]:
    return SOURCES[series].bounds_s or ()


def _at_least_none(fleet: FleetMetrics, series: CountedSeries) -> dict[tuple[str, ...], Histogram]:
    """Of a series without labels: one that has not happened yet is zero, not unknown."""
    return fleet.happened[series] or {(): Histogram(_bounds(series))}


def _by_first(happened: dict[tuple[str, ...], Histogram], labels: int) -> dict[tuple[str, ...], Histogram]:
    """Of all that have the same first labels, together."""
    found: dict[tuple[str, ...], Histogram] = {}
    for key, one in happened.items():
        found.setdefault(key[:labels], Histogram(_bounds(CountedSeries.OPERATIONS))).merge(one)
    return found


def _merge(known: Mapping[Any, int], happened: dict[tuple[str, ...], Histogram]) -> dict[tuple[str, ...], int]:
    """What is known by name is zero before it happens: an alert on a growing count needs to have seen that."""
    return {**known, **_numbers(happened)}


def _numbers(happened: dict[tuple[str, ...], Histogram]) -> dict[tuple[str, ...], int]:
    return {labels: one.count for labels, one in happened.items()}


def _failures(fleet: FleetMetrics) -> Iterator[Metric]:
    """What failed inside of the service: an alarm on any of them finds what each leaves running. What is known by name
    is zero before it fails, as in `_merge`."""
    counted: dict[PartKind, Counter[tuple[str, ...]]] = {kind: Counter() for kind in PartKind}
    counted[PartKind.DECISION][()] = 0
    for kind, names in _NAMES.items():
        counted[kind].update({(name,): 0 for name in names})
    for part in fleet.health:
        counted[part.kind][(part.name,) if part.name else ()] += part.failures
    told = "Decisions that failed, or were made without what fails"
    yield counter("allpass_decisions_failed", told, [], counted[PartKind.DECISION])
    yield counter("allpass_actions_failed", "Planned actions that failed", ["kind"], counted[PartKind.ACTION])
    yield counter("allpass_chore_failures", "Failures in what the leader does", ["chore"], counted[PartKind.CHORE])
    told = "Actions that were refused because they would have broken an invariant"
    yield counter("allpass_plan_breaches", told, ["invariant"], counted[PartKind.INVARIANT])
    yield counter("allpass_rows_unreadable", "Rows found that cannot be read", ["table"], counted[PartKind.ROW])
    yield from _failing_now(fleet)


def _failing_now(fleet: FleetMetrics) -> Iterator[Metric]:
    chores = [part for part in fleet.health if part.kind is PartKind.CHORE]
    failing = {(part.name,): int(part.failing_since_ms is not None) for part in chores}
    yield gauges("allpass_chore_failing", "Whether its last turn had failures (1)", ["chore"], failing)
    overdue = {(part.name,): int(part.due_ms is not None and part.due_ms < fleet.now_ms) for part in chores}
    told = "Whether it has not finished for several of its turns (1): it hangs, or nobody leads"
    yield gauges("allpass_chore_overdue", told, ["chore"], overdue)
    told = "Jobs, nodes and rows that fail again and again, by what fails of them"
    yield gauges("allpass_items_failing", told, ["what"], {(what,): number for what, number in fleet.items.items()})
