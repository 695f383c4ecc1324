"""A node: a machine we pay for, or own. Providers differ by data (`ProviderTraits`), never by branches."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MOST_GPUS = 1024  # of one machine: a number beyond it is a mistake, and each of its GPUs would be looked at


class NodeState(StrEnum):
    REQUESTED = "requested"  # the intent is committed; the provider may not have been asked yet
    BOOTING = "booting"  # the provider said yes
    READY = "ready"  # its agent has called home
    UNREACHABLE = "unreachable"  # silent for a while; not failed, its own clock runs
    UNKNOWN = "unknown"  # the create call's outcome is not known: look before any retry
    DRAINING = "draining"  # takes no new run
    TERMINATING = "terminating"  # asked the provider to end it
    TERMINATED = "terminated"  # the provider confirmed the end
    FAILED = "failed"  # never came up, or died on its own; nothing is running there


GONE_NODE_STATES = frozenset({NodeState.TERMINATED, NodeState.FAILED})


class Tier(StrEnum):
    SERVERLESS = "serverless"  # starts in seconds, one slot, dies with its run
    OWN = "own"  # of the team itself, by its own launcher: there first, at the price its owner states
    MARKETPLACE = "marketplace"  # cheapest, boots in half a minute, may vanish
    CONVENTIONAL = "conventional"  # the stable fallback


RENTED_TIERS = (Tier.SERVERLESS, Tier.MARKETPLACE, Tier.CONVENTIONAL)  # of companies
SERVERFUL_TIERS = (Tier.OWN, Tier.MARKETPLACE, Tier.CONVENTIONAL)


class BillingStart(StrEnum):
    REQUEST = "request"  # from the create call
    READY = "ready"  # from the moment the machine runs


@dataclass(frozen=True, slots=True)
class BillingRule:
    """Time is billed in started units of `unit_ms`, from `starts` until the provider has ended the machine."""

    unit_ms: int
    starts: BillingStart
    minimum_ms: int = 0


@dataclass(frozen=True, slots=True)
class ProviderTraits:
    """How one tier of one provider behaves. This is data: no code asks for a provider by name."""

    provider: str
    tier: Tier
    billing: BillingRule
    startup_mean_ms: int
    startup_deadline_ms: int  # no heartbeat by then: give the node up and take the next offer
    create_grace_ms: int  # how long a machine may stay missing from the listing after a create
    dies_with_run: bool
    preemptible: bool
    max_lifetime_ms: int | None = None
    is_sandbox: bool = (
        False  # isolated from all else, for one run, thrown away after it: what its code may do harms nobody
    )
    builds_images: bool = False  # a machine with an image can be had only when the provider has built its copy
    takes_images: bool = True  # False: its machines are not containers, and no job that names an image goes there
    is_networked: bool = False  # its machines of one region (of a pool, of a cluster) reach each other privately
