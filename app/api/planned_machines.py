"""Plans over several machines, and what they share with those of one, as the wire has them."""

from __future__ import annotations

from typing import Any

from allpass.wire.plan import MemoryRange, PlanLayout, PlanMachines, PlanNetwork, PlanSwitch
from app.core.machine_options import MachineOption
from app.core.memory import Range, Training
from app.core.topology import entropy
from app.services.jobs.plan_machines import MachinesPlan


def over_machines(planned: MachinesPlan | None) -> dict[str, Any]:
    """The fields of a plan that say it; none where one machine is enough."""
    if planned is None:
        return {}
    return {
        "machines": [_machines(each) for each in planned.options],
        "chosen_machines": planned.chosen,
        "machines_reason": planned.reason,
    }


def _machines(option: MachineOption) -> PlanMachines:
    found, computing = option.estimated, option.computing
    provider, tier, region, gpu_type = option.site
    return PlanMachines(
        nodes=option.nodes,
        gpu_type=gpu_type,
        gpu_count=option.gpu_count,
        gpu_memory_bytes=option.gpu_memory_bytes,
        provider=provider,
        tier=tier.value,
        site=region,
        verdict=option.verdict,
        layout=layout_of(option.training),
        runs_as=option.runner,
        peak_in=found.peak.phase,
        calibrated_by=0 if option.calibration is None else option.calibration.samples,
        allocated=range_of(found.allocated),
        reserved=range_of(found.reserved),
        process=range_of(found.process),
        computing_ms=None if computing is None else computing.ms,
        step_ms=option.step_ms,
        step_source=None if computing is None else computing.source,
        network=_network(option),
        machines=option.machines,
        why_not=option.why_not,
        price_per_hour=None if option.hourly is None else option.hourly.micros,
        startup_ms=option.startup_ms,
        duration_ms=option.duration_ms,
        cost=None if option.cost is None else option.cost.micros,
        in_time=option.in_time,
        steps_in_time=option.steps_in_time,
        switches=[
            PlanSwitch(rack=rack, switch=switch, machines=count)
            for (rack, switch), count in sorted(option.under.items(), key=lambda one: (-one[1], one[0]))
        ],
        entropy=entropy(option.under.values()),
    )


def _network(option: MachineOption) -> PlanNetwork:
    exchange = option.exchange
    return PlanNetwork(
        bits_per_s=exchange.network.bits_per_s,
        source=exchange.network.source,
        meetings=exchange.network.meetings,
        bytes_per_step=exchange.bytes_per_step,
        exchange_ms=exchange.ms,
        is_slow=option.is_slow,
    )


def layout_of(training: Training) -> PlanLayout:
    return PlanLayout(
        gpus=training.gpus,
        replicas=training.replicas,
        tensor_parallel=training.tensor_parallel,
        sharding=training.sharding,
        micro_batch=training.batch,
        accumulation=training.accumulation,
        checkpointing=training.checkpointing,
        precision=training.precision,
    )


def range_of(found: Range) -> MemoryRange:
    return MemoryRange(low=found.low, expected=found.expected, high=found.high)
