"""Rule 9 of `allpass`: whoever is alone on a rented node that is larger than it needs leaves for what costs less.

Everywhere else a job is weighed by its share of a node, as if others had the rest. Once they have left nobody has, and
the whole node is paid for as long as the last job stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from app.core.job_prices import job_micros
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.model.snapshot import JobView, NodeView, RunView
from app.core.policies.moving import Mover, Reckoning, share_micros
from app.core.policies.reuse import Flow


class Leaver:
    """Looks at the runs of one decision, after the `Mover`; used once. `flows`: what free nodes of each project would
    have saved lately."""

    def __init__(self, mover: Mover, flows: Mapping[str, Flow]) -> None:
        self.mover, self.desk, self.board = mover, mover.desk, mover.board
        self.flows, self.config = flows, mover.config

    def leave_larger_nodes(self) -> None:
        """From the node first that costs most for nothing. The target costs less by the share at which runs are moved
        by price."""
        if not self.mover.makes_before_break:
            return
        found = [(self._price(job, node), job, run, node) for job, run, node in self._alone()]
        for price, job, run, node in sorted(found, key=lambda one: (-one[0], one[1].job_id)):
            if not self._is_shared(node):  # by whoever has just been moved there
                self.mover.move_if_less(job, run, self._reckoning(price, job, node))

    def _alone(self) -> Iterator[tuple[JobView, RunView, NodeView]]:
        """Those that have as many GPUs as they need, and nobody any of the others."""
        for node in list(self.board.all_open()):
            held = node.gpu_count - len(node.free_gpus)
            if node.tier == Tier.OWN or not held or self._is_shared(node):
                continue
            run = self.board.runs_on(node.node_id)[0]
            for job in self.mover.movable(run):
                if held == job.resources.gpus_min and job.job_id not in self.mover.going and not self.mover.rests(run):
                    yield job, run, node

    def _is_shared(self, node: NodeView) -> bool:
        runs = self.board.runs_on(node.node_id)
        if len(runs) != 1 or len(runs[0].job_ids) != 1:
            return True
        return len(self.desk.fleet.place_on(node).free_gpus) < len(node.free_gpus)

    def _price(self, job: JobView, node: NodeView) -> int:
        """All of the node, less what the rest of it is worth to the jobs that come."""
        flow = self.flows.get(node.project_id)
        whole, share = job_micros(node, job), share_micros(node, job)
        return whole - min(whole - share, 0 if flow is None else int(flow.micros_per_hour))

    def _reckoning(self, price: int, job: JobView, node: NodeView) -> Reckoning:
        def costs(one: Offer | NodeView, job: JobView) -> int:
            is_here = isinstance(one, NodeView) and one.node_id == node.node_id
            is_shared = isinstance(one, NodeView) and self.board.is_occupied(one.node_id)
            return share_micros(one, job) if is_shared and not is_here else job_micros(one, job)

        gpus = job.resources.gpus_min
        why = (
            f"nobody else has any of the {node.gpu_count} GPUs there, of which it has {gpus}: another place costs less"
        )
        return Reckoning(price, costs, self.config.rules.chase_drop, why)
