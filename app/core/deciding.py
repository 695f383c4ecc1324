"""A decision that no single job, node or offer can prevent. Pure.

A policy that raises is asked again without the project, and then without the job (or node), that makes it raise. Parts
of the snapshot are admitted one block after the other, halved where they make it raise: so that a few more decisions
find what is to blame among thousands. What is left out keeps what it holds (`app.core.leaving_out`).

Where very many jobs would have to be left out, none of them may be to blame: an offer that makes it raise does so with
every job. So offers are looked for in the same way, and what leaves out less counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from app.core.board import Board
from app.core.leaving_out import leave_out
from app.core.model.node import Tier
from app.core.model.plan import Plan
from app.core.model.snapshot import Snapshot
from app.core.policy import Policy, PolicyConfig, PolicyState

MOST_TRIES = 96
_MANY = 8  # jobs that make a policy raise, each by itself: look for another culprit


class Noun(StrEnum):
    OFFER = "offer"
    NODE = "node"
    JOB = "job"


@dataclass(frozen=True, slots=True)
class Omittable:
    """Something that may be left out. `owner`: the project of a job or node, the provider of an offer."""

    noun: Noun
    owner: str
    key: str


@dataclass(frozen=True, slots=True)
class Decided:
    """A plan, and what it was made without: `blamed` makes the policy raise `error`, by itself; `unseen` was not looked
    at because the tries were used up, and comes into the next decision. `left_out`: all jobs that the plan says nothing
    about. The policy made the plan of `made_on` under the limits of `made_under`."""

    plan: Plan
    state: PolicyState
    made_on: Snapshot
    made_under: PolicyConfig
    blamed: tuple[Omittable, ...] = ()
    unseen: tuple[Omittable, ...] = ()
    left_out: frozenset[str] = frozenset()
    error: Exception | None = None
    tries: int = 1


def decide_apart(
    policy: Policy,
    snapshot: Snapshot,
    state: PolicyState,
    config: PolicyConfig,
    *,
    suspects: Collection[str] = (),
    most_tries: int = MOST_TRIES,
    board_of: Callable[[Snapshot], Board] = Board.of,
) -> Decided:
    """`policy.decide`, without what makes it raise. `suspects`: ids that did so lately, and are tried last. `board_of`
    makes the board of the whole snapshot, for those who keep one.

    Raises what the policy raises when it raises without any job, node and offer too.
    """
    try:
        plan, after = policy.decide(board_of(snapshot), state, config)
    except Exception as error:
        whole = error
    else:
        return Decided(plan, after, snapshot, config)
    search = _Search(policy, snapshot, state, config, most_tries)
    found = search.blaming(_holders(snapshot), suspects)
    if found is None or len(found.blamed) > _MANY or found.unseen:
        search = _Search(policy, snapshot, state, config, most_tries)
        other = search.blaming(_offers(snapshot), suspects)
        if other is not None and (found is None or _weight(other) < _weight(found)):
            found = other
    if found is None:
        raise whole
    return replace(found, error=whole)


@dataclass(slots=True)
class _Search:
    """Admits members to what is decided on, as long as the policy bears them."""

    policy: Policy
    snapshot: Snapshot
    state: PolicyState
    config: PolicyConfig
    tries_left: int
    tries: int = 1  # the first one, with everything
    out: set[Omittable] = field(default_factory=set)
    blamed: list[Omittable] = field(default_factory=list)
    last: Decided | None = None

    def blaming(self, members: Sequence[Omittable], suspects: Collection[str]) -> Decided | None:
        """The decision without those of these with which none can be made. None: there is none without all of them."""
        self.out = set(members)
        if not self._bears(()):
            return None
        for some in (
            [member for member in members if member.key not in suspects],
            [member for member in members if member.key in suspects],
        ):
            self._admit(some)
        assert self.last is not None
        unseen = tuple(sorted(self.out - set(self.blamed), key=_order))
        return replace(self.last, blamed=tuple(self.blamed), unseen=unseen, tries=self.tries)

    def _admit(self, block: Sequence[Omittable]) -> None:
        if not block or self.tries_left <= 0:
            return
        if self._bears(block):
            return
        if len(block) == 1:
            self.blamed.append(block[0])
            return
        middle = _middle(block)
        self._admit(block[:middle])
        self._admit(block[middle:])

    def _bears(self, block: Sequence[Omittable]) -> bool:
        """Whether a decision can be made with this block too; if so, the block is in from now on."""
        self.tries_left -= 1
        self.tries += 1
        out = self.out.difference(block)
        keys = {noun: [member.key for member in out if member.noun is noun] for noun in Noun}
        kept, gone = leave_out(self.snapshot, job_ids=keys[Noun.JOB], node_ids=keys[Noun.NODE], offers=keys[Noun.OFFER])
        limits = self._within_limits(kept)
        try:
            plan, after = self.policy.decide(Board.of(kept), self.state, limits)
        except Exception:
            return False
        self.out = out
        self.last = Decided(plan, after, kept, limits, left_out=gone)
        return True

    def _within_limits(self, kept: Snapshot) -> PolicyConfig:
        """Nodes that are left out count for the limits all the same."""
        shown = {node.node_id for node in kept.nodes}
        hidden = [node.tier for node in self.snapshot.nodes if node.node_id not in shown]
        serverless = hidden.count(Tier.SERVERLESS)
        return beside_hidden(self.config, serverless=serverless, serverful=len(hidden) - serverless)


def beside_hidden(config: PolicyConfig, *, serverless: int, serverful: int) -> PolicyConfig:
    """The limits that are left where so many nodes exist that the snapshot does not show."""
    if not serverless and not serverful:
        return config
    return replace(
        config,
        serverless_limit=max(0, config.serverless_limit - serverless),
        serverful_limit=max(0, config.serverful_limit - serverful),
    )


def _holders(snapshot: Snapshot) -> list[Omittable]:
    """Nodes and jobs, by project; of a project the nodes first, since a job is only looked at with its node. Of jobs
    that are one for the decision, one stands for all."""
    nodes = [Omittable(Noun.NODE, node.project_id, node.node_id) for node in snapshot.nodes]
    spoken_for = {merge.companion_id for merge in snapshot.merges}
    jobs = [Omittable(Noun.JOB, job.project_id, job.job_id) for job in snapshot.jobs if job.job_id not in spoken_for]
    return sorted(nodes + jobs, key=_order)


def _offers(snapshot: Snapshot) -> list[Omittable]:
    members = [Omittable(Noun.OFFER, offer.provider, offer.key) for offer in snapshot.offers]
    return sorted(members, key=_order)


def _order(member: Omittable) -> tuple[str, bool, str]:
    return member.owner, member.noun is Noun.JOB, member.key


def _middle(block: Sequence[Omittable]) -> int:
    """Where to halve: between two owners, at the one nearest to the middle, as long as there are several."""
    half = len(block) // 2
    borders = [place for place in range(1, len(block)) if block[place].owner != block[place - 1].owner]
    return min(borders, key=lambda place: abs(place - half)) if borders else half


def _weight(found: Decided) -> int:
    return len(found.blamed) + len(found.unseen)
