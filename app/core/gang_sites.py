"""Where a job on several machines can be: those that reach each other, and what of them would do (ADR 0100). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from app.core.market import kind_fits
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.model.snapshot import JobView, NodeView

Site = tuple[str, Tier, str, str]  # provider, tier, region, kind of GPU
_TIERS = (Tier.OWN, Tier.MARKETPLACE, Tier.CONVENTIONAL)


@dataclass(frozen=True, slots=True)
class GangRental:
    """What is rented at a site, beside what the job has there, so that it has all of its machines."""

    site: Site
    offers: tuple[Offer, ...]
    has: tuple[NodeView, ...]
    hourly_micros: int
    spread: float = 0.0  # over switches, as entropy

    @property
    def rank(self) -> tuple[int, int, int, float, Site]:
        """Where it has most already; then own machines, then the cheapest, then the least spread."""
        return -len(self.has), _TIERS.index(self.site[1]), self.hourly_micros, round(self.spread, 9), self.site


def site_of(machine: Offer | NodeView) -> Site:
    """Machines of one site reach each other, where their provider says that of its own."""
    return machine.provider, machine.tier, machine.region, machine.gpu_type


def has_room(job: JobView, node: NodeView) -> bool:
    """Whether the node could be one of the job's machines."""
    need = job.resources
    return (
        node.project_id == job.project_id
        and not node.spot_only
        and len(node.free_gpus) >= need.gpus_min
        and node.cpus >= need.cpus_min
        and node.memory_bytes >= need.memory_bytes_min
        and kind_fits(need, node.gpu_type, node.gpu_memory_bytes)
        and node.image == (need.base_image or "")
    )
