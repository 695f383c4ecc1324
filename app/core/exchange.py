"""What the machines of one training tell each other in every step, and how long that takes. Pure.

Of the built-in recipe each process adds up a share of the gradients of every part, in one order, and tells the others
what it comes to (ADR 0134). Scripts of users are taken to do what NCCL does: rings, which pass through each machine
once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median_low
from typing import Literal

from app.core.memory.architecture import Architecture
from app.core.memory.training import Training
from app.core.roofline import talk_bytes, trained_values

ASSUMED_BITS_PER_S = 10_000_000_000
"""Of a network that nobody has measured: what servers have at least, 10 Gbit/s."""

MOST_MEETINGS = 20
"""Trainings whose measurements count for a site: the newest. A network that was replaced is believed after a few."""

NetworkSource = Literal["measured", "stated", "assumed"]
Runner = Literal["recipe", "script"]


@dataclass(frozen=True, slots=True)
class Network:
    """Between the machines of a site, one way. `meetings`: trainings before which it was measured."""

    bits_per_s: int = ASSUMED_BITS_PER_S
    source: NetworkSource = "assumed"
    meetings: int = 0


@dataclass(frozen=True, slots=True)
class Exchange:
    """`bytes_per_step`: that each machine takes in from the others, for one step of the optimizer."""

    bytes_per_step: int
    network: Network

    @property
    def ms(self) -> float:
        """Of each step, where nothing is computed meanwhile."""
        return self.bytes_per_step * 8_000 / self.network.bits_per_s


@dataclass(frozen=True, slots=True)
class Meeting:
    """How fast one further machine of a training reached the first one, before any code ran. `training`: which."""

    training: str
    bits_per_s: int


def network_of(meetings: Iterable[Meeting], stated_bits_per_s: int | None = None) -> Network:
    """Of a site, by what was measured there, the newest first: the middle of the slowest ways of its newest trainings,
    as every step waits for the slowest. What is stated counts before that; where nothing is known it is assumed."""
    if stated_bits_per_s is not None:
        return Network(stated_bits_per_s, "stated")
    slowest: dict[str, int] = {}
    for one in meetings:
        if one.bits_per_s > 0 and (one.training in slowest or len(slowest) < MOST_MEETINGS):
            slowest[one.training] = min(one.bits_per_s, slowest.get(one.training, one.bits_per_s))
    if not slowest:
        return Network()
    return Network(median_low(slowest.values()), "measured", len(slowest))


def _of_all_split(model: Architecture, training: Training, machines: int) -> int:
    """Weights pass through each machine twice for each part, gradients once for their norms; and from each process of
    other machines each of its own takes its share of every part's gradients."""
    of_others = trained_values(model, training) * training.weight_item * (machines - 1) / machines
    here = training.gpus // machines
    return round(of_others * (training.accumulation * (2 + here) + 1))


def bytes_between(model: Architecture, training: Training, machines: int, runner: Runner) -> int:
    """That each machine takes in for a step. `training` is laid out over the GPUs of all machines."""
    if runner == "script":
        return round(talk_bytes(model, training))
    here = training.gpus // machines
    if training.splits_all:
        return _of_all_split(model, training, machines)
    item = training.weight_item if training.method == "full" else 4  # adapters are kept in float32
    # A share of each part of the others in every round, which takes as long where its parts run out; and their sums.
    shares = (training.accumulation + 1) * (training.gpus - here) * here
    return round(shares * trained_values(model, training) * item / training.gpus)


def saved_under_one_switch(bytes_per_step: int, near: Iterable[int], far: Iterable[int]) -> float | None:
    """Of each step, in milliseconds, where all machines reach each other as those under the switch of the first one do.
    `near`, `far`: bits a second from the first machine to those under its switch, and to the others, as measured before
    this very training. None where one of the two is not known."""
    slowest_near = min((speed for speed in near if speed > 0), default=None)
    slowest_far = min((speed for speed in far if speed > 0), default=None)
    if slowest_near is None or slowest_far is None:
        return None
    return max(0.0, bytes_per_step * 8_000 * (1 / slowest_far - 1 / slowest_near))
