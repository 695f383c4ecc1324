"""Drawn histories of jobs on one and on several machines, on hosts of a pool and in a cloud, decided as they are live:
by the functions that the control loop calls, around a policy that sees neither those on several nor their machines.

Watched at every step: no GPU is two runs'; a job on several has all of its machines or none; all of them are of one
site, on hosts of their own; what is rented for one that does not begin, or does not move there, is let go soon; and
whoever is asked to leave for cheaper machines has all of them, ready, and goes on there unless one fails meanwhile. In
the end everything comes to rest: every job that could ever run has run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from app.core.board import Board
from app.core.gang_offers import EmptyPool, GangNode
from app.core.gang_wishes import is_gang
from app.core.gangs import gather
from app.core.model.job import ANY_NUMBER, PLACEABLE_JOB_STATES, JobState, MostUnderOne, Resources
from app.core.model.money import Money
from app.core.model.node import BillingRule, BillingStart, NodeState, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.core.model.plan import Action, ActionKind, Assign, AssignGang, Demote, Provision, ProvisionGang, Release
from app.core.model.pool import JOINED, HostGpu, OwnHost, Pool
from app.core.model.run import RunState
from app.core.model.snapshot import JobView, NodeView, RunView, Snapshot
from app.core.policies import policy_named
from app.core.policy import AllpassRules, MoveCost, PolicyConfig, PolicyState
from app.core.pools import offers_of
from app.core.topology import Domain, Seats, SwitchRule

_STEP_MS, PATIENCE_MS = 20_000, 300_000
_GIB = 2**30
_USES = frozenset({ActionKind.ASSIGN, ActionKind.PROVISION, ActionKind.RELEASE})
_POLICIES = ("allpass", "fixed-threshold", "hpa", "cheapest-first")
_CLOUD = "cloud"
_RULE = BillingRule(1_000, BillingStart.READY)
_MOVES = MoveCost(1_000, 1_000, 0)
_MOVES_BY = frozenset({ActionKind.DEMOTE, ActionKind.MIGRATE})
_RULES = AllpassRules(chase_pause_share=1.0, move_pause_share=1.0, least_run_ms=0)
_MOST_HALF = 12  # decisions that a machine of a job may wait for its others


@dataclass(frozen=True, slots=True)
class GangHistory:
    """What a history came to. `half`: decisions in which a job had some of its machines, ready, and none were coming.
    `breaches` says what was not kept."""

    seed: int
    begun: int
    gangs_begun: int
    lost: int
    moved: int
    breaches: list[str] = field(default_factory=list)


def play_gang_history(seed: int, steps: int = 60, rule: SwitchRule = SwitchRule.FEWEST) -> GangHistory:
    """The history of this seed: so many decisions while jobs come, then until all of them are done."""
    play = _Play(Random(seed), Random(f"apart {seed}"), rule)  # noqa: S311 - a simulation
    for _ in range(steps):
        play.step(arrivals=True)
    for _ in range(20 * steps):
        if not play.waits():
            break
        play.step(arrivals=False)
    play.check_rest()
    return GangHistory(seed, play.begun, play.gangs_begun, play.lost, play.moved, play.breaches)


class _Play:
    def __init__(self, chance: Random, apart: Random, rule: SwitchRule) -> None:
        self._rule, self._apart = rule, apart
        self.breaches: list[str] = []
        self.begun = self.gangs_begun = self.lost = self.moved = 0
        self._chance, self._now_ms, self._count = chance, 1_000_000, 0
        self._policy = policy_named(chance.choice(_POLICIES))
        self._state = PolicyState()
        limit = chance.choice([4, 9])
        self._config = PolicyConfig(
            _USES, serverless_budget_ms=0, serverless_limit=0, serverful_limit=limit, idle_release_ms=20_000
        )
        self._hosts = {f"host_{n}": chance.randint(1, 4) for n in range(chance.randint(2, 5))}
        self._domains: dict[str, Domain] = {
            host: (f"r{number % 4 // 2}", f"s{number % 4}") for number, host in enumerate(self._hosts)
        }
        self._stock = chance.choice([0, 0, 2, 4])  # machines of two GPUs that the cloud has
        self._fails = chance.choice([0.0, 0.0, 0.1])  # of machines on their way, at each decision
        self._vanishes = chance.choice([0.0, 0.01])  # of machines that are ready
        self._jobs: dict[str, JobView] = {}
        self._nodes: dict[str, NodeView] = {}
        self._place: dict[str, tuple[str, tuple[int, ...]]] = {}  # of nodes on hosts: the host, and its GPUs
        self._rented_for: dict[str, str] = {}
        self._runs: dict[str, list[tuple[RunView, tuple[int, ...]]]] = {}  # by job
        self._weighs = replace(self._config, capabilities=_USES | _MOVES_BY, moves=_MOVES, rules=_RULES)
        self._rests: dict[str, tuple[int, int]] = {}
        self._going: dict[str, set[str]] = {}  # by job that was asked to leave: the machines that it goes to
        self._half: dict[str, int] = {}
        self._kept_hosts: Mapping[str, str] = {}
        self._offered: dict[str, int] = {}  # GPUs of own hosts that are free to whoever is decided on next

    def waits(self) -> bool:
        return bool(self._jobs)

    def step(self, *, arrivals: bool) -> None:
        self._now_ms += self._chance.choice([1, _STEP_MS, _STEP_MS, 60_000])
        if arrivals:
            for _ in range(self._chance.choice([0, 0, 1, 2])):
                self._submit()
        else:
            self._fails = self._vanishes = 0.0
        self._let_pass()
        self._decide()
        self._check()

    # What happens

    def _submit(self) -> None:
        """Only what could ever be placed."""
        self._count += 1
        gpus = self._chance.choice([1, 1, 2])
        fit = sum(count >= gpus for count in self._hosts.values())
        most = max(fit, self._stock if gpus <= 2 else 0)
        nodes = self._chance.choice([1, 1, 1, 2, 2, 3])
        if most < 1:
            return
        resources = Resources(gpus, gpus, nodes=min(nodes, most))
        made = JobView(
            job_id=f"job_{self._count:03}", project_id=f"proj_{self._chance.choice('ab')}", state=JobState.QUEUED,
            row_version=1, submitted_ms=self._now_ms, deadline_ms=self._now_ms + self._chance.randint(1, 10**7),
            resources=resources, most_under_one=self._bound(resources),
        )  # fmt: skip
        self._jobs[made.job_id] = made

    def _bound(self, need: Resources) -> MostUnderOne:
        """Of some jobs, how many of their machines may be under one; where all hosts were free, it could be met."""
        most = self._apart.choice([ANY_NUMBER, ANY_NUMBER, MostUnderOne(switch=1), MostUnderOne(1), MostUnderOne(2, 1)])
        seats = Seats(most.by_level)
        could = sum(gpus >= need.gpus_min and seats.take(self._domains[host]) for host, gpus in self._hosts.items())
        return most if 1 < need.nodes <= could else ANY_NUMBER

    def _let_pass(self) -> None:
        for node_id, node in list(self._nodes.items()):
            chance = self._chance.random()
            if node.state is NodeState.BOOTING and chance < self._fails:
                self._remove(node_id)
            elif node.state is NodeState.BOOTING and chance > 0.4:
                self._nodes[node_id] = replace(node, state=NodeState.READY, idle_since_ms=self._now_ms)
            elif node.state is NodeState.READY and chance < self._vanishes:
                self.lost += any(run.node_id == node_id for runs in self._runs.values() for run, _ in runs)
                self._remove(node_id)
        for job_id in list(self._runs):
            chance = self._chance.random()
            if chance < 0.15:
                del self._runs[job_id], self._jobs[job_id]
                self._going.pop(job_id, None)
            elif self._jobs[job_id].state is JobState.CHECKPOINTING and chance < 0.7:
                del self._runs[job_id]
                self._jobs[job_id] = replace(self._jobs[job_id], state=JobState.WAITING)

    def _remove(self, node_id: str) -> None:
        """A machine is gone: what ran on it waits, all of it."""
        del self._nodes[node_id]
        self._place.pop(node_id, None)
        self._going = {job_id: nodes for job_id, nodes in self._going.items() if node_id not in nodes}
        for job_id, runs in list(self._runs.items()):
            if any(run.node_id == node_id for run, _ in runs):
                del self._runs[job_id]
                self._jobs[job_id] = replace(self._jobs[job_id], state=JobState.WAITING)

    # As the control loop does it

    def _decide(self) -> None:
        seen = self._snapshot()
        leads = {runs[0][0].node_id: runs[0][0].run_id for runs in self._runs.values()}
        rented = [
            GangNode(node_id, job_id, self._host_of(node_id), leads=leads.get(node_id, ""))
            for node_id, job_id in self._rented_for.items()
            if node_id in self._nodes and job_id in self._jobs and is_gang(self._jobs[job_id])
        ]
        resting = {job_id: until for job_id, (_, until) in self._rests.items()}
        emptied = [replace(host, taken=()) for host in self._own_hosts()]
        pools = [EmptyPool("lab", tuple(offers_of([Pool("lab")], emptied, self._now_ms)))]
        gathered = gather(
            *(seen, rented),
            resting=resting, pools=pools, patience_ms=PATIENCE_MS, domains=self._domains, config=self._weighs,
            rule=self._rule,
        )  # fmt: skip
        self._kept_hosts = gathered.kept_hosts
        self._offered = {host: len(self._host_free(host)) for host in self._hosts}
        most = max((job.resources.nodes for job in self._jobs.values()), default=0)
        if len(gathered.kept_hosts) > most:
            self.breaches.append(f"{len(gathered.kept_hosts)} hosts are kept, and no job has so many machines")
        for job_id in gathered.given_up:
            times = self._rests.get(job_id, (0, 0))[0] + 1
            self._rests[job_id] = times, self._now_ms + min(60_000 << (times - 1), 900_000)
        for claim in gathered.claims:
            if isinstance(claim, AssignGang):
                self._assign_gang(claim)
            elif isinstance(claim, ProvisionGang):
                self._provision_gang(claim)
            elif isinstance(claim, Demote):
                self._ask_to_leave(claim)
            else:
                self._enact(claim)
        board = Board.of(gathered.snapshot)
        plan, self._state = self._policy.decide(board, self._state, self._config)
        for action in plan.actions:
            self._enact(action)

    def _assign_gang(self, claim: AssignGang) -> None:
        job = self._jobs[claim.job_id]
        nodes = [self._nodes[place.node_id] for place in claim.places]
        hosts = [self._host_of(node.node_id) for node in nodes if node.node_id in self._place]
        sites = {(node.provider, node.region) for node in nodes}
        if len(nodes) != job.resources.nodes or len(sites) != 1 or len(set(hosts)) != len(hosts):
            self.breaches.append(f"{job.job_id} begins on {sites}, {hosts}: {len(nodes)} of {job.resources.nodes}")
        self._check_apart(job.job_id, [host.partition("/")[0] for host in hosts] or [""] * len(nodes))
        for place in claim.places:
            self._begin(job, self._nodes[place.node_id], place.gpu_indices)
        self.gangs_begun += 1

        goes_to = self._going.pop(job.job_id, None)
        if goes_to is not None:
            self.moved += 1
            if {node.node_id for node in nodes} != goes_to:
                self.breaches.append(f"{job.job_id} left for {sorted(goes_to)}, and begins elsewhere")

    def _ask_to_leave(self, claim: Demote) -> None:
        """It saves, and has left at one of the next steps."""
        job = self._jobs[claim.job_id]
        its = {one for one, to in self._rented_for.items() if to == job.job_id and one in self._nodes}
        here = {run.node_id for run, _ in self._runs[job.job_id]}
        there = {one for one in its - here if self._nodes[one].tier is Tier.OWN}
        ready = {one for one in there if self._nodes[one].state is NodeState.READY}
        if job.state is not JobState.RUNNING or len(ready) != job.resources.nodes:
            self.breaches.append(f"{job.job_id} is asked to leave for {len(ready)} machines: it is {job.state}")
        if any(self._nodes[one].tier is Tier.OWN for one in here):
            self.breaches.append(f"{job.job_id} is to leave own machines")
        self._jobs[job.job_id] = replace(job, state=JobState.CHECKPOINTING)
        self._going[job.job_id] = ready

    def _provision_gang(self, claim: ProvisionGang) -> None:
        """All of them, or none where one is not to be had any more."""
        offers = list(claim.offers)
        at_hosts = [offer.host.partition("/")[0] for offer in offers if offer.host]
        in_cloud = sum(offer.provider == _CLOUD for offer in offers)
        if in_cloud > self._stock - self._in_cloud():
            return
        if len(set(at_hosts)) != len(at_hosts):
            self.breaches.append(f"{claim.job_id} is to have a host twice")
        its = [one for one, to in self._rented_for.items() if to == claim.job_id and one in self._nodes]
        waits = self._jobs[claim.job_id].state in PLACEABLE_JOB_STATES
        self._check_apart(claim.job_id, [*at_hosts, *(self._host_of(one).partition("/")[0] for one in its if waits)])
        self._check_switches(claim, at_hosts)
        for offer in offers:
            self._rent(offer, claim.job_id)

    def _check_apart(self, job_id: str, hosts: Sequence[str]) -> None:
        """What is rented for it, and what it begins on, is within its bounds."""
        seats = Seats(self._jobs[job_id].most_under_one.by_level)
        if not all(seats.take(self._domains.get(host, ("", ""))) for host in hosts):
            self.breaches.append(f"{job_id} may not have {sorted(hosts)} together")

    def _check_switches(self, claim: ProvisionGang, at_hosts: Sequence[str]) -> None:
        """Where none of its machines is there yet, and one switch, or one rack, had room for all, all are in one."""
        job = self._jobs[claim.job_id]
        need = job.resources
        kept = {host.partition("/")[0] for host in self._kept_hosts}
        room = [one for one, free in self._offered.items() if one not in kept and free >= need.gpus_min]
        promised = (
            ((2, "switches"), (1, "racks"))
            if self._rule is SwitchRule.FEWEST and job.most_under_one == ANY_NUMBER
            else ()
        )
        for level, name in promised:
            most = max(Counter(self._domains[host][:level] for host in room).values(), default=0)
            if len(at_hosts) == need.nodes <= most and len({self._domains[host][:level] for host in at_hosts}) > 1:
                self.breaches.append(f"{claim.job_id} is spread over {name}, of which one has {most} hosts free")
        self._offered = {host: free for host, free in self._offered.items() if host not in at_hosts}

    def _enact(self, action: Action) -> None:
        """As far as rows have not moved on since the snapshot."""
        match action:
            case Assign():
                job, node = self._jobs[action.job_id], self._nodes.get(action.node_id)
                if is_gang(job):
                    self.breaches.append(f"a policy has placed {job.job_id} on one machine")
                free = node is not None and set(action.gpu_indices) <= set(self._free(node))
                if node is not None and free and job.state in PLACEABLE_JOB_STATES:
                    self._begin(job, node, action.gpu_indices)
            case Provision():
                if action.offer.provider != _CLOUD or self._in_cloud() < self._stock:
                    self._rent(action.offer, action.for_job_id)
            case Release():
                if action.node_id in self._nodes and not self._on(action.node_id):
                    self._remove(action.node_id)
            case _:
                pass

    def _begin(self, job: JobView, node: NodeView, gpus: tuple[int, ...]) -> None:
        number = len(self._runs.get(job.job_id, ()))
        run_id = f"run_{self.begun:05}_{job.job_id}_{number}"
        run = RunView(run_id, (job.job_id,), node.node_id, node.tier, RunState.RUNNING, 1, self._now_ms, self._now_ms)
        self._runs.setdefault(job.job_id, []).append((run, tuple(gpus)))
        self._jobs[job.job_id] = replace(job, state=JobState.RUNNING)
        self.begun += 1

    def _rent(self, offer: Offer, job_id: str) -> None:
        host = offer.host.partition("/")[0]
        free = self._host_free(host)
        if offer.tier is Tier.OWN and len(free) < offer.gpu_count:
            return
        self._count += 1
        node_id = f"node_{self._count:05}"
        self._nodes[node_id] = NodeView(
            node_id=node_id, project_id=self._jobs[job_id].project_id, provider=offer.provider, tier=offer.tier,
            state=NodeState.BOOTING, row_version=1, gpu_type=offer.gpu_type, gpu_count=offer.gpu_count,
            gpu_memory_bytes=offer.gpu_memory_bytes, cpus=offer.cpus, memory_bytes=offer.memory_bytes, free_gpus=(),
            price_per_hour=offer.price_per_hour, requested_ms=self._now_ms, expected_ready_ms=self._now_ms,
            region=offer.region,
        )  # fmt: skip
        self._rented_for[node_id] = job_id
        if offer.tier is Tier.OWN:
            self._place[node_id] = host, tuple(free[: offer.gpu_count])

    # What there is

    def _snapshot(self) -> Snapshot:
        pool = Pool("lab")
        offers = [*offers_of([pool], self._own_hosts(), self._now_ms)]
        if self._in_cloud() < self._stock:
            offers.append(
                Offer(_CLOUD, "two", Tier.CONVENTIONAL, "A100", 2, 80 * _GIB, 16, 128 * _GIB, Money.usd("2"), 1, "east")
            )
        nodes = [replace(node, free_gpus=tuple(self._free(node))) for node in self._nodes.values()]
        nodes = [replace(node, idle_since_ms=None) if self._on(node.node_id) else node for node in nodes]
        runs = [run for of_job in self._runs.values() for run, _ in of_job]
        traits = (
            ProviderTraits(JOINED, Tier.OWN, _RULE, 1, 60_000, 1, False, True, is_networked=True),
            ProviderTraits(_CLOUD, Tier.CONVENTIONAL, _RULE, 1, 60_000, 1, False, False, is_networked=True),
        )
        return Snapshot(
            now_ms=self._now_ms,
            jobs=tuple(sorted(self._jobs.values(), key=lambda one: one.job_id)),
            runs=tuple(sorted(runs, key=lambda one: one.run_id)),
            nodes=tuple(sorted(nodes, key=lambda one: one.node_id)),
            offers=tuple(sorted(offers, key=lambda one: one.key)),
            traits=traits,
        )

    def _own_hosts(self) -> list[OwnHost]:
        return [
            OwnHost(
                host, "lab", 8 * count, 64 * _GIB * count,
                tuple(HostGpu(index, "A100", 80 * _GIB) for index in range(count)),
                tuple(index for at, gpus in self._place.values() if at == host for index in gpus),
            )
            for host, count in self._hosts.items()
        ]  # fmt: skip

    def _host_of(self, node_id: str) -> str:
        return f"{self._place[node_id][0]}/A100" if node_id in self._place else ""

    def _in_cloud(self) -> int:
        return sum(node.provider == _CLOUD for node in self._nodes.values())

    def _free(self, node: NodeView) -> list[int]:
        held = {index for _, gpus in self._on(node.node_id) for index in gpus}
        return [index for index in range(node.gpu_count) if index not in held]

    def _host_free(self, host: str) -> list[int]:
        taken = {index for at, gpus in self._place.values() if at == host for index in gpus}
        return [index for index in range(self._hosts.get(host, 0)) if index not in taken]

    def _on(self, node_id: str) -> list[tuple[RunView, tuple[int, ...]]]:
        return [it for of_job in self._runs.values() for it in of_job if it[0].node_id == node_id]

    # What must hold

    def _check(self) -> None:
        for node_id in self._nodes:
            held = [index for _, gpus in self._on(node_id) for index in gpus]
            if len(held) != len(set(held)):
                self.breaches.append(f"a GPU of {node_id} is two runs' at {self._now_ms}")
        for job_id, runs in self._runs.items():
            if len(runs) != self._jobs[job_id].resources.nodes:
                self.breaches.append(f"{job_id} has {len(runs)} of its machines")
        half = set()
        for job in self._jobs.values():
            if is_gang(job):
                here = {run.node_id for run, _ in self._runs.get(job.job_id, ())}
                its = [
                    self._nodes[one] for one, to in self._rented_for.items()
                    if to == job.job_id and one in self._nodes and one not in here
                    and not (here and self._nodes[one].tier is not Tier.OWN)  # where it was is for policies to end
                ]  # fmt: skip
                if its and all(node.state is NodeState.READY for node in its) and len(its) < job.resources.nodes:
                    half.add(job.job_id)
        self._half = {job_id: self._half.get(job_id, 0) + 1 for job_id in half}
        for job_id, decisions in self._half.items():
            if decisions == _MOST_HALF:
                self.breaches.append(f"{job_id} has had some of its machines, and none were coming, for too long")

    def check_rest(self) -> None:
        for job in self._jobs.values():
            self.breaches.append(f"{job.job_id} ({job.resources.nodes} x {job.resources.gpus_min}) never ran")
