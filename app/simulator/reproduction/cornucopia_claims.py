"""What the Cornucopia paper says of its evaluation, each claim with the paper's words and how ours is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from app.simulator.elastic.workload import MixedOptions
from app.simulator.reproduction.cornucopia_plays import ElasticPlay, PlayedCornucopia

Unit = Literal["s", "%", "x"]
Measure = Callable[[PlayedCornucopia, int, str], float | None]
BASELINE = "tiresias"


@dataclass(frozen=True, slots=True)
class CornucopiaClaim:
    """`measure` takes what was played, the number of GPUs and the policy that stands for Cornucopia; None where there
    is nothing to compare with. `part` is what it needs of the evaluation. `paper` is empty where it is silent."""

    about: str
    paper: str
    unit: Unit
    part: str
    measure: Measure


def figures_of(
    found: PlayedCornucopia, gpus: int, policy: str, mislabelled: float = 0.0, inelastic: float = 0.0
) -> Mapping[str, Any]:
    """Of one play without costs. Raises KeyError where it was not played."""
    return found.figures[ElasticPlay(gpus, policy, MixedOptions(found.seed, mislabelled, inelastic))]


def _interactive(key: str, scale: float = 1.0, mislabelled: float = 0.0) -> Measure:
    return lambda found, gpus, policy: float(figures_of(found, gpus, policy, mislabelled)["interactive"][key]) * scale


def _shorter_wait(found: PlayedCornucopia, gpus: int, policy: str) -> float | None:
    before = figures_of(found, gpus, BASELINE)["interactive"]["mean_first_gpu_s"]
    after = figures_of(found, gpus, policy)["interactive"]["mean_first_gpu_s"]
    return 100 * (1 - float(after / before)) if before else None


def _shorter(found: PlayedCornucopia, gpus: int, policy: str) -> float:
    return 100 * (
        1 - float(figures_of(found, gpus, policy)["mean_jct_s"] / figures_of(found, gpus, BASELINE)["mean_jct_s"])
    )


def _against_usual(mislabelled: float = 0.0, inelastic: float = 0.0) -> Measure:
    return lambda found, gpus, policy: float(
        figures_of(found, gpus, policy, mislabelled, inelastic)["mean_jct_s"]
        / figures_of(found, gpus, policy)["mean_jct_s"]
    )


def _inflation(found: PlayedCornucopia, gpus: int, policy: str) -> float:
    return float(figures_of(found, gpus, policy)["mean_slowdown"])


CLAIMS: tuple[CornucopiaClaim, ...] = (
    CornucopiaClaim(
        "interactive jobs, mean time to the first GPU", "below 1 s", "s", "policies", _interactive("mean_first_gpu_s")
    ),
    CornucopiaClaim("interactive jobs that have a GPU at once", "most", "%", "policies", _interactive("at_once", 100)),
    CornucopiaClaim("that time, less than with Tiresias by", "90 %", "%", "policies", _shorter_wait),
    CornucopiaClaim("mean completion, less than with Tiresias by", "77 % at best", "%", "policies", _shorter),
    CornucopiaClaim("mean of completion over duration", "below 1 with plenty of GPUs", "x", "policies", _inflation),
    CornucopiaClaim(
        "5 % of batch labelled interactive: time to the first GPU",
        "below 1 s",
        "s",
        "labels",
        _interactive("mean_first_gpu_s", mislabelled=0.05),
    ),
    CornucopiaClaim(
        "10 % of batch labelled interactive: time to the first GPU",
        "below 1 s",
        "s",
        "labels",
        _interactive("mean_first_gpu_s", mislabelled=0.10),
    ),
    CornucopiaClaim(
        "10 % of batch labelled interactive: mean completion against none",
        "",
        "x",
        "labels",
        _against_usual(mislabelled=0.10),
    ),
    CornucopiaClaim(
        "10 % of each class of sizes not elastic: mean completion against none",
        "",
        "x",
        "sizes",
        _against_usual(inelastic=0.10),
    ),
)


def claims_of(found: PlayedCornucopia) -> list[CornucopiaClaim]:
    """Those whose plays were made."""
    return [one for one in CLAIMS if one.part in found.parts]
