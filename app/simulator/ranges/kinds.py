"""What plays a scenario: simulations with ranges of GPUs, in every world, with machines of one's own or without."""

from __future__ import annotations

from app.core.model.offer import Offer
from app.core.model.run import RunState
from app.simulator.engine import Simulation
from app.simulator.lives import Life, SimulatedRun
from app.simulator.own.playing import PoolSimulation, RoughPoolSimulation
from app.simulator.own.playing import simulation_of as without_ranges
from app.simulator.ranges.playing import WithRanges
from app.simulator.scenario import Scenario
from app.simulator.worlds.rough import RoughSimulation


class RangeSimulation(WithRanges):
    """In the friendly world."""


class RangePoolSimulation(WithRanges, PoolSimulation):
    """With machines of one's own."""


class RoughRangeSimulation(WithRanges, RoughSimulation):
    """In a rougher world: the target of a move fetches while its source trains on, and may never come."""

    def _go_to(self, life: Life, source: SimulatedRun, target: SimulatedRun) -> None:
        node_id = target.view.node_id
        fetch_ms = self._hosts.fetch_ms(node_id, life.task)
        self._prepared_ms[target.view.run_id] = self._now_ms + fetch_ms
        self._at(self._now_ms + fetch_ms, lambda: self._leave_for(life, source, target))

    def _give_up(self, node_id: str, offer: Offer, job_id: str) -> None:
        for view in self._board.runs_on(node_id):
            if view.state == RunState.STANDBY:
                self._call_off(self._lives[view.job_ids[0]], self._runs[view.run_id])
        super()._give_up(node_id, offer, job_id)


class RoughRangePoolSimulation(RoughRangeSimulation, RoughPoolSimulation):
    """The same with machines of one's own."""


_WITH_RANGES: dict[type[Simulation], type[Simulation]] = {
    Simulation: RangeSimulation,
    PoolSimulation: RangePoolSimulation,
    RoughSimulation: RoughRangeSimulation,
    RoughPoolSimulation: RoughRangePoolSimulation,
}


def simulation_of(scenario: Scenario, *, merging: bool) -> type[Simulation]:
    """What plays a scenario. Jobs that take ranges are not played with jobs that may be merged."""
    if any(task.elastic is not None for task in scenario.tasks):
        return _WITH_RANGES[without_ranges(scenario, merging=False)]
    return without_ranges(scenario, merging=merging)
