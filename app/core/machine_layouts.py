"""How a job is laid out over the GPUs of several machines: as the built-in recipe does it, or a script could. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.core.exchange import Exchange, Network, bytes_between
from app.core.layout import GpuSet, Learned, lay_out_alone
from app.core.memory import Estimate, Training, verdict
from app.core.memory.calibration import Calibration, Calibrations, corrected
from app.core.memory.exact import ExactEstimate
from app.core.memory.plans import Device, feasible_plans, least_memory
from app.core.options import AskedJob, decided_of, stated_alone
from app.core.precision import on_gpu
from app.core.throughput import StepTime, Throughput

_Kind = tuple[str, int, int]  # GPU type, GPUs of each machine, bytes of each


@dataclass(frozen=True, slots=True)
class LaidOver:
    training: Training
    estimated: Estimate
    decided: ExactEstimate | None
    calibration: Calibration | None
    computing: StepTime | None


class MachineLayouts:
    """Layouts over so many machines, each kind of GPU looked at once."""

    def __init__(self, wish: AskedJob, nodes: int, throughput: Throughput, calibrations: Calibrations) -> None:
        self._wish, self._nodes = wish, nodes
        self._throughput, self._calibrations = throughput, calibrations
        self._fitting: dict[_Kind, list[LaidOver]] = {}
        self._least: dict[_Kind, LaidOver] = {}

    def on(self, kind: _Kind, network: Network) -> LaidOver | None:
        """None where the GPUs cannot share a step of the script evenly."""
        if self._wish.own is not None:
            return self._of_recipe(kind)
        used = self._used(kind[1])
        if used is None:
            return None
        if kind not in self._fitting:
            self._fitting[kind] = self._of_script(kind, used)
        fitting = self._fitting[kind]
        if fitting:
            return min(fitting, key=lambda laid: self._effort(laid, network))
        if kind not in self._least:
            self._least[kind] = self._sparing(kind, used)
        return self._least[kind]

    def _used(self, count: int) -> int | None:
        """GPUs of each machine, so many that all of them share the batch evenly."""
        batch = self._wish.batch
        return next((each for each in range(count, 0, -1) if batch % (each * self._nodes) == 0), None)

    def _of_recipe(self, kind: _Kind) -> LaidOver:
        """As it is laid out when it runs, whatever the network is: each machine has all of the training, and each GPU
        a copy, unless that is split over those of its machine."""
        if kind not in self._least:
            wish, own = self._wish, self._wish.own
            assert own is not None
            own = replace(own, gpus=own.gpus * self._nodes)
            place = GpuSet(kind[0], kind[2], own.gpus)
            calibration = self._calibration(kind[0])
            wish = replace(wish, training=wish.training.over(self._nodes))
            found = lay_out_alone(stated_alone(wish, own), place, Learned(calibration, self._throughput))
            self._least[kind] = LaidOver(found.training, found.estimated, found.decided, calibration, found.step)
        return self._least[kind]

    def _of_script(self, kind: _Kind, used: int) -> list[LaidOver]:
        """Every layout that fits, and goes on fitting where a symbolic run decides."""
        wish, calibration = self._there(kind), self._calibration(kind[0])
        device = Device("", kind[2], used * self._nodes, calibration)
        plans = feasible_plans(wish.model, wish.training, (device,), global_batch=wish.batch, plain=True)
        laid = (self._laid(wish, plan.training, plan.estimated, calibration, kind[0]) for plan in plans)
        return [one for one in laid if verdict(one.estimated, kind[2]) == "fits"]

    def _sparing(self, kind: _Kind, used: int) -> LaidOver:
        wish, calibration = self._there(kind), self._calibration(kind[0])
        gpus = used * self._nodes
        layout, estimated = least_memory(wish.model, wish.training, gpus, global_batch=wish.batch, plain=True)
        return self._laid(wish, layout, corrected(estimated, calibration), calibration, kind[0])

    def _laid(
        self, wish: AskedJob, layout: Training, estimated: Estimate, calibration: Calibration | None, gpu_type: str
    ) -> LaidOver:
        decided = decided_of(wish, layout, estimated)
        estimated = estimated if decided is None else decided.estimated
        step = self._throughput.step(wish.model, layout, gpu_type, name=wish.name)
        return LaidOver(layout, estimated, decided, None if decided is not None else calibration, step)

    def _effort(self, laid: LaidOver, network: Network) -> tuple[float, int, bool, float]:
        """Time with the network; where a step's is not known, the least that is told over it."""
        told = bytes_between(self._wish.model, laid.training, self._nodes, "script")
        exchange = Exchange(told, network)
        ms = exchange.ms if laid.computing is None else laid.computing.ms + exchange.ms
        return ms, laid.training.accumulation, laid.training.checkpointing, exchange.ms

    def _there(self, kind: _Kind) -> AskedJob:
        return replace(self._wish, training=on_gpu(self._wish.training, kind[0]))

    def _calibration(self, gpu_type: str) -> Calibration | None:
        return self._calibrations.of(self._wish.model, self._wish.training, gpu_type)
