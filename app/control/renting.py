"""Places for runs: GPUs of a node that is there, or a machine that is to be rented."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from app.control.context import ControlContext
from app.control.dropping import MovedOnError
from app.core.budgets import BudgetStanding, PaidMachine, refused_by
from app.core.limits import Limits, Rented, least_of, rented_at
from app.core.model.ids import marked
from app.core.model.node import NodeState, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.db.access.installation import installation_id
from app.db.connection import Connection
from app.db.decisions.enactment import PlacedJob, Places
from app.db.decisions.placements import NewNode
from app.db.money.budgets import budgets_now
from app.db.money.limits import read_limits, rented_now
from app.db.transitions import Event
from app.db.unreadable import RowReading
from app.services.nodes.check_addresses import real_providers


def free_place(node_id: str, places: Places | None, gpu_indices: Sequence[int]) -> Tier:
    """The tier of a ready node whose GPUs are free. Raises MovedOnError."""
    if places is None or places.state is not NodeState.READY:
        raise MovedOnError(f"{node_id} is not ready")
    wanted = set(gpu_indices)
    if wanted & places.taken or not all(0 <= index < places.gpu_count for index in wanted):
        raise MovedOnError(f"GPUs {sorted(wanted)} of {node_id} are not free")
    return places.tier


@dataclass(slots=True)
class Rentals:
    """What may be rented, read once for any number of machines: one that is rented counts for those after it.

    Read under the leader's term, which one process has: what it has written before counts, and nobody else rents.
    `real`: providers that ask for real money, to which `limits` apply.
    """

    context: ControlContext
    now_ms: int
    installation: str
    rules: Mapping[tuple[str, Tier], ProviderTraits]
    real: Collection[str]
    limits: Limits
    rented: Rented
    standings: list[BudgetStanding]

    @classmethod
    async def read(
        cls,
        connection: Connection,
        context: ControlContext,
        offers: Sequence[Offer],
        project_ids: Collection[str],
        *,
        now_ms: int,
    ) -> Rentals:
        """Of these offers, for jobs of these projects."""
        real = real_providers(context.settings)
        concerned = real if any(offer.provider in real for offer in offers) else []
        return cls(
            context=context,
            now_ms=now_ms,
            installation=await installation_id(connection),
            rules={(one.provider, one.tier): one for one in context.traits()},
            real=concerned,
            limits=await read_limits(connection) if concerned else Limits(None, None),
            rented=await rented_now(connection, concerned, now_ms=now_ms),
            standings=await budgets_now(connection, RowReading(), now_ms=now_ms, project_ids=project_ids),
        )

    def rent(self, job: PlacedJob, offer: Offer, reason: str, *, ahead: bool = False) -> NewNode:
        """A machine to be. `ahead`: one that the job would take, for jobs to come; the job does not pay for it.
        Raises MovedOnError where it may not be rented."""
        traits = self.rules.get((offer.provider, offer.tier))
        if traits is None:
            raise MovedOnError(f"provider {offer.provider!r} is not configured here")
        refused = self._refused(job, offer)
        if refused is not None:
            raise MovedOnError(refused)
        return NewNode(
            node_id=marked(self.context.ids.new("node"), self.installation),
            operation_id=self.context.ids.new("op"),
            project_id=job.project_id,
            job_id=None if ahead else job.job_id,
            key_id=None if ahead else job.key_id,
            offer=offer,
            traits=traits,
            image=job.base_image or self.context.settings.node_image,
            event=Event("node_requested", reason, {"job_id": job.job_id, "offer": offer.key}),
        )

    def count(self, node: NewNode) -> None:
        """It is rented: there is so much less for those that come after it."""
        machine = rented_at(node.traits.billing, node.offer, self.now_ms)
        if node.offer.provider in self.real:
            self.rented = self.rented.with_one_more(machine, self.now_ms)
        paid = PaidMachine(node.project_id, node.key_id, node.offer.provider, machine)
        self.standings = [one.with_one_more(paid) for one in self.standings]

    def _refused(self, job: PlacedJob, offer: Offer) -> str | None:
        """Why limits or budgets do not allow this machine now, in words."""
        least = least_of(offer, self.rules)
        why = self.rented.refuses(self.limits, least) if offer.provider in self.real else None
        return why or refused_by(self.standings, job.project_id, job.key_id, offer, least)
