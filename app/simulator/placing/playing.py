"""Pods in random order onto an empty cluster, as in "Beware of Fragmentation" (Weng et al., section 6).

None leaves. A pod that fits nowhere is passed over for good. What a ranker expects are the pods of the workload, each
as often as it is there: the mix is known, the order is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random

from app.core.ranking import PodNeed, RankedPool, RankerName, ranking_of
from app.errors import InvalidInput
from app.simulator.placing.workload import PlacementWorkload


@dataclass(frozen=True, slots=True)
class Filled:
    """`allocated`: by how much was asked for so far, both as shares of the cluster's GPUs.

    `passed_over`: pods that fitted nowhere until the last of these points. `decisions`: pods that came.
    """

    allocated: Mapping[float, float]
    passed_over: int
    decisions: int


def arrivals(workload: PlacementWorkload, asked: float, seed: int) -> list[PodNeed]:
    """Pods that ask for at least so large a share of the cluster's GPUs: some of the workload's left out, or added
    again, at random. InvalidInput where no pod asks for a GPU.
    """
    chance = Random(seed)  # noqa: S311 - a simulation
    if not any(pod.gpus for pod in workload.pods):
        raise InvalidInput("pods: none asks for a GPU; give a workload with some that do", param="pods")
    goal_milli = asked * workload.gpu_milli
    pods = chance.sample(workload.pods, len(workload.pods))
    there_milli = sum(pod.taken_milli for pod in pods)
    while there_milli - pods[-1].taken_milli >= goal_milli:
        there_milli -= pods.pop().taken_milli
    while there_milli < goal_milli:
        pods.append(chance.choice(workload.pods))
        there_milli += pods[-1].taken_milli
    chance.shuffle(pods)
    return pods


def play(workload: PlacementWorkload, name: RankerName, pods: Iterable[PodNeed], points: Iterable[float]) -> Filled:
    """Until the last point is reached; a point that never is has what the end came to."""
    pool = RankedPool(workload.nodes, ranking_of(name, workload.nodes.values(), workload.pods))
    ahead, cluster_milli = sorted(points), workload.gpu_milli
    allocated: dict[float, float] = {}
    asked_milli = given_milli = passed_over = decisions = 0
    for need in pods:
        if len(allocated) == len(ahead):
            break
        place = pool.find(need)
        decisions += 1
        asked_milli += need.taken_milli
        if place is None:
            passed_over += 1
        else:
            pool.take(place)
            given_milli += need.taken_milli
        while len(allocated) < len(ahead) and asked_milli >= ahead[len(allocated)] * cluster_milli:
            allocated[ahead[len(allocated)]] = given_milli / cluster_milli
    for point in ahead[len(allocated) :]:
        allocated[point] = given_milli / cluster_milli
    return Filled(allocated, passed_over, decisions)
