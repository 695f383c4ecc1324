"""The paper's claims, each with its figure and ours by seed; and what is not played, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from app.core.eviction import EvictionRule
from app.core.ranking import RankerName
from app.simulator.defragmenting.figures import PoolFigures
from app.simulator.defragmenting.vacating import Looks
from app.simulator.reproduction.spotgpu.experiments import LOADS, LOCKED, RANKERS, SpotReproduced
from app.simulator.reproduction.spotgpu.months import MonthsQuestion
from app.simulator.reproduction.spotgpu.questions import (
    SWITCH_CASES,
    AllocationQuestion,
    EvictionQuestion,
    FleetFigures,
    FleetQuestion,
    PlacementQuestion,
    SnapshotQuestion,
    SwitchQuestion,
)

SpotUnit = Literal["x", "%", "s", "cases", "GPU h", "a day"]


@dataclass(frozen=True, slots=True)
class SpotClaim:
    """`ours`: by seed. `paper` is None for what the paper does not say, and stands beside its claims for comparison."""

    about: str
    paper: float | None
    ours: tuple[float, ...]
    unit: SpotUnit


@dataclass(frozen=True, slots=True)
class ClaimPart:
    """Claims that are played together. `why`: what has to be known before ours is held against the paper's."""

    title: str
    claims: tuple[SpotClaim, ...]
    why: str


NOT_PLAYED = (
    ("eviction in 13 s on average, 48 s at the 95th percentile, under 5 % killed",
     "a matter of real processes and disks: `benchmarks/eviction.py` measures it with some"),
    ("90 % of the hours of Standby used",
     "owners, their windows and the way back of their processes are not in the simulator"),
    ("+27 % for an all-reduce below one switch", "needs the network; here entropy stands for it"),
    ("optimal evictions by integer program", "as printed it is not linear; tests hold ours against enumeration"),
    ("kernels that run on several vendors' chips", "no part of Allpass"),
    ("pairs of prefill and decode", "serving, no part of Allpass"),
    ("CPU jobs beside GPU jobs", "the jobs that are played all ask for GPUs"),
)  # fmt: skip
_LOOKS = {Looks.WANTED: "as the control loop does", Looks.ALWAYS: "each hour"}
_WAITS = {"whole": "jobs of one whole host", "gangs": "jobs of several hosts", "small": "smaller jobs"}
_RULES = {
    EvictionRule.LITERAL: "the paper's rule",
    EvictionRule.LOST_WORK: "ours",
    EvictionRule.NEWEST: "the newest first",
}


def parts_of(found: SpotReproduced) -> list[ClaimPart]:
    """All that is played, in the order of the paper."""
    return [
        _whole_nodes(found),
        _months(found),
        _switches(found),
        _placement(found),
        _victims(found),
        _allocation(found),
    ]


def _whole_nodes(found: SpotReproduced) -> ClaimPart:
    claims = []
    fleets = [(question, answer) for question, answer in found.of(FleetQuestion)]
    largest = max(question.nodes for question, _ in fleets)
    for locked in LOCKED:
        mine = [answer for question, answer in fleets if question.locked == locked and question.nodes < largest]
        paper = 20.2 if locked == LOCKED[-1] else None
        claims.append(_fewer(f"partly used nodes fewer, {locked:.0%} of the tasks locked", paper, mine))
        ways = tuple(100 * one.vacated / max(1, one.occupied - one.bound) for one in mine)
        claims.append(SpotClaim(f"of the way to the packing bound, {locked:.0%} locked", None, ways, "%"))
    for locked in LOCKED:
        mine = [answer for question, answer in found.of(SnapshotQuestion) if question.locked == locked]
        claims.append(_fewer(f"partly used nodes fewer, the pool below, {locked:.0%} locked", None, mine))
    seconds = tuple(answer.seconds for question, answer in fleets if question.nodes == largest)
    claims.append(SpotClaim(f"one plan for {largest:,} nodes", 120.0, seconds, "s"))
    return ClaimPart(
        "Whole nodes by chains of moves (section 4.1)",
        tuple(claims),
        "The paper's figure is a running cluster's after two months, in which tasks went on to come and go (the next "
        "table). Ours is one plan for a drawn fleet of 4,000 nodes that nobody has tidied before, so the two are not "
        "like for like. The pool below is that of the last table, in the middle of its submissions: it has dozens of "
        "nodes, of which few are partly used. The time of the plan is one process's on the machine that played this, "
        "beside its other plays. The processor's part of it is about 1.6 s (`cpu_s` of `benchmarks/defrag.py`): 0.3 s "
        "for an index of nodes and tasks, 0.2 s for asking each node in each of 5 rounds whether anything on it is "
        "locked, and the rest for the search and its 17,000 moves, one by one in Python. On a machine that others use "
        "the rest is waiting.",
    )


def _fewer(about: str, paper: float | None, fleets: list[FleetFigures]) -> SpotClaim:
    ours = tuple(100 * (1 - one.partly_after / one.partly_before) if one.partly_before else 0.0 for one in fleets)
    return SpotClaim(about, paper, ours, "%")


def _months(found: SpotReproduced) -> ClaimPart:
    played: dict[Looks, list[PoolFigures]] = {looks: [] for looks in Looks}
    for question, answer in found.of(MonthsQuestion):
        played[question.looks].append(answer)
    without = played[Looks.NEVER]
    claims = [_shares("partly used hosts, nothing is vacated", (one.partly for one in without))]
    for looks, named in _LOOKS.items():
        mine = played[looks]
        fewer = (1 - one.partly / max(1e-9, before.partly) for one, before in zip(mine, without, strict=True))
        claims += [
            _shares(f"partly used hosts, {named}", (one.partly for one in mine)),
            _shares(f"partly used hosts fewer, {named}", fewer, 20.2),
        ]
    for name, about in _WAITS.items():
        for looks, named in {Looks.NEVER: "nothing is vacated", **_LOOKS}.items():
            waits = tuple(getattr(one, name).mean_s for one in played[looks])
            claims.append(SpotClaim(f"mean wait of {about}, {named}", None, waits, "s"))
    claims += _moves_of(played)
    return ClaimPart(
        "Two months of a pool, with and without (section 4.1)",
        tuple(claims),
        "Half of Philly's submissions of 60 days (`allpass trace generate` draws them from published figures), of 1 "
        "to 32 GPUs, on as many hosts of 8 GPUs as make 68 % of the GPUs asked for; 40 % of the jobs are locked. "
        "Shares are means over time, and waits those of jobs that came, after the first eighth of the time. What is "
        "vacated is planned and gone through by the functions and at the rate of the control loop: each hour, by at "
        "most 20 moves, two at once, each of which takes 20 s beside the training and a pause of 84 s (the service's "
        "settings where no move is measured yet; with 200 MB of state `benchmarks/migration.py` measures about a "
        "second). By schedule the control loop looks only while a job waits that whole hosts would let begin; each "
        "hour is what somebody has who asks for it every time. Smaller jobs wait longer: larger ones begin before "
        "them, and a host that is being vacated is closed to newcomers; how much is due to which was not measured. No "
        "move fails. The paper says neither how often it looked, nor by how many moves.",
    )


def _moves_of(played: Mapping[Looks, Sequence[PoolFigures]]) -> Iterator[SpotClaim]:
    for looks, named in _LOOKS.items():
        mine = played[looks]
        yield SpotClaim(f"moves a day, {named}", None, tuple(one.moves / one.days for one in mine), "a day")
        pause_s = tuple(one.paused_gpu_s / max(1, one.moves) for one in mine)
        yield SpotClaim(f"GPU-seconds of pause for a move, {named}", None, pause_s, "s")
        yield SpotClaim(f"pauses in all, {named}", None, tuple(one.paused_gpu_s / 3600 for one in mine), "GPU h")


def _shares(about: str, values: Iterator[float], paper: float | None = None) -> SpotClaim:
    return SpotClaim(about, paper, tuple(100 * one for one in values), "%")


def _switches(found: SpotReproduced) -> ClaimPart:
    answers = [answer for _, answer in found.of(SwitchQuestion)]
    literal, ours = (tuple(float(getattr(one, name)) for one in answers) for name in ("literal", "ours"))
    return ClaimPart(
        "Switches for a gang (section 4.1, Algorithm 2)",
        (
            SpotClaim(f"of {SWITCH_CASES} gangs, Algorithm 2 as printed is beaten in", 0.0, literal, "cases"),
            SpotClaim(f"of {SWITCH_CASES} gangs, ours is beaten in", None, ours, "cases"),
        ),
        "The paper calls Algorithm 2 optimal for one job. As printed it begins with the smallest switches, since "
        "these add the least entropy to what is taken so far. Beaten means that some other way to allocate, of all "
        "there are, has less entropy. Ours takes one switch where one suffices, else the largest first and a tight "
        "rest.",
    )


def _placement(found: SpotReproduced) -> ClaimPart:
    named = {RankerName.IDLE_GPUS: "fewest idle GPUs first, the paper's criterion", RankerName.OURS: "ours"}
    claims = []
    for name in RANKERS:
        ours = tuple(100 * answer for question, answer in found.of(PlacementQuestion) if question.ranker == name)
        claims.append(SpotClaim(f"GPUs given out: {named.get(name, name.value)}", None, ours, "%"))
    return ClaimPart(
        "Placing without eviction (section 4.2)",
        tuple(claims),
        "The paper gives no figure for its three criteria alone. Pods come one by one and stay, until they have asked "
        "for as many GPUs as there are. Without classes and past evictions its second and third criterion are ties. "
        "`gradient` is the published rule of another paper, and ours knows which pods are expected, as that does.",
    )


def _victims(found: SpotReproduced) -> ClaimPart:
    answers = list(found.of(EvictionQuestion))
    claims = []
    for load in LOADS:
        mine = [answer for question, answer in answers if question.load == load]
        for rule, named in _RULES.items():
            ratios = tuple(one[rule].completion_s / one[EvictionRule.RANDOM].completion_s for one in mine)
            paper = 0.76 if rule is EvictionRule.LITERAL else None
            claims.append(SpotClaim(f"completion of spot jobs, {named}, {load:.0%} load", paper, ratios, "x"))
        wasted = tuple(100 * one[EvictionRule.RANDOM].wasted for one in mine)
        claims.append(SpotClaim(f"GPU time wasted by random victims, {load:.0%} load", None, wasted, "%"))
    return ClaimPart(
        "Whom to end for a guaranteed job (section 4.2)",
        tuple(claims),
        "Ratios to random victims of the same seed; the paper does not say at which load its figure was taken. Spot "
        "jobs save every ten minutes, and half of them within the grace, so an eviction loses minutes of jobs that "
        "take hours. What random victims waste is all the GPU time that a better choice could save. Each choice also "
        "changes the order in which later jobs find places, for better or worse: where the deviation over the seeds "
        "is as large as the distance from 1, a mean says nothing.",
    )


def _allocation(found: SpotReproduced) -> ClaimPart:
    answers = [answer for _, answer in found.of(AllocationQuestion)]

    def claim(about: str, paper: float, values: Iterator[float], unit: SpotUnit) -> SpotClaim:
        return SpotClaim(about, paper, tuple(values), unit)

    return ClaimPart(
        "How much of the pool is used (section 4.2)",
        (
            claim("GPUs in use, guaranteed jobs alone", 68.0, (100 * one.alone for one in answers), "%"),
            claim("GPUs in use, with spot jobs", 93.0, (100 * one.both for one in answers), "%"),
            claim("wait of guaranteed jobs, median", 1.0, (one.figures.waiting_median_s for one in answers), "s"),
            claim(
                "wait of guaranteed jobs, 90th percentile", 101.0, (one.figures.waiting_p90_s for one in answers), "s"
            ),
        ),
        "The paper's two shares are one moment with two demands, no before and after. Here guaranteed jobs ask for 68 "
        "% of the pool between the first and the last submission (that is put in), and about as many spot jobs come "
        "besides. The pool is empty at the first submission, and what waits for whole nodes until after the last one "
        "does not count: so both shares are below what was asked for. Waits include those for spot jobs that leave, "
        "within a grace of 60 s, and not the start of anything. In a pool of dozens of nodes there are hours in which "
        "guaranteed jobs alone ask for more than there is; the paper's has thousands.",
    )
