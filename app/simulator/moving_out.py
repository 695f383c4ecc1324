"""Runs that move to a machine that is rented for them, and train on until it is there.

No policy decides that. It is for runs whose own machine ends, and for ranges that go on with another number of GPUs.
"""

from __future__ import annotations

from app.core.model.node import NodeState
from app.core.model.plan import MoveOut
from app.core.model.run import RunState
from app.simulator.engine import Event, Simulation
from app.simulator.lives import Life, SimulatedRun


class MovesOut(Simulation):
    """See the module; to be put before what plays the rest."""

    def _move_out(self, action: MoveOut) -> bool:
        """False where it is not to be had any more."""
        if not self._is_there(action.offer):
            return False
        life = self._lives[action.job_id]
        source = life.run
        assert source is not None
        node, ready_ms = self._cloud.rent(action.offer, self._now_ms, life.view.project_id)
        self._board.put_node(self._cloud.hold(node.node_id, action.gpu_indices))
        self._supply_changed(action.offer.tier)
        target = self._hold(life, node.node_id, action.gpu_indices, RunState.STANDBY)
        life.run, source.goes_on_to = source, target
        self._await_target(action, node.node_id, ready_ms, lambda: self._target_ready(life, source, target))
        return True

    def _await_target(self, _action: MoveOut, _node_id: str, ready_ms: int, ready: Event) -> None:
        self._at(ready_ms, ready)

    def _target_ready(self, life: Life, source: SimulatedRun, target: SimulatedRun) -> None:
        node_id = target.view.node_id
        if node_id not in self._cloud.machines or self._is_dark(node_id):
            return
        self._node_ready(node_id)
        if not target.over and not source.over and source.view.state == RunState.RUNNING:
            self._go_to(life, source, target)

    def _is_dark(self, _node_id: str) -> bool:
        """Whether its host is dead, whoever knows."""
        return False

    def _go_to(self, life: Life, source: SimulatedRun, target: SimulatedRun) -> None:
        """The machine is there: the source saves, and the target goes on."""
        self._stop(life)
        life.run = target
        self._at(self._now_ms + self._scenario.moves.save_ms, lambda: self._promote(life, source, target))

    def _call_off(self, life: Life, target: SimulatedRun) -> None:
        """Of a move: whoever was to come stays where he is, or waits once he has saved."""
        life.outcome.tiers = life.outcome.tiers[:-1]  # it never ran there
        self._leave(life, target)

    def _stop(self, life: Life) -> SimulatedRun:
        assert life.run is not None
        ran_ms, before_ms = self._ran_ms(life.run), life.view.done_ms
        safe_ms = self._saved_before_ms(life, life.run, ran_ms)
        run = super()._stop(life)
        run.kept_ms = max(before_ms, safe_ms) if life.task.saves else run.kept_ms  # should it die while it saves
        return run

    def _finish(self, life: Life, run: SimulatedRun) -> None:
        target = run.goes_on_to
        if not run.over and run.view.state == RunState.RUNNING and target is not None and not target.over:
            self._call_off(life, target)
        super()._finish(life, run)

    def _lose(self, run: SimulatedRun) -> None:
        life, target = self._lives[run.view.job_ids[0]], run.goes_on_to
        if target is not None and not target.over and self._boots(target):
            self._call_off(life, target)
        if run.view.state == RunState.STOPPING and run.kept_ms is not None:
            life.outcome.lost_ms += max(0, life.view.done_ms - run.kept_ms)
        super()._lose(run)

    def _boots(self, run: SimulatedRun) -> bool:
        return self._cloud.machines[run.view.node_id].view.state == NodeState.BOOTING
