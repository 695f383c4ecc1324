"""What symbolic runs of the real module showed, and what is believed of it beside the tables.

A symbolic run speaks for one layout on one GPU. It is told by the user, so the tables hold it from below: what they
expect at least stays, whatever it says. For a model that the tables do not know, there is nothing to hold it by.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from app.core.memory.fit import Estimate, Range, estimate_of_peak, verdict
from app.core.memory.plans import divisors
from app.core.memory.predict import Peak
from app.core.memory.semantics import DEFAULT, Semantics
from app.core.memory.training import Training

EXACT_UNCERTAINTY = 0.02
"""Of `allocated`: an operator's own workspaces are not seen, nor gradients that CUDA sums in place."""


@dataclass(frozen=True, slots=True)
class ExactPeak:
    """Peak bytes by phase of a step on one GPU. `accumulates`: in a micro-batch after the first of its step."""

    micro_batch: int
    checkpointing: bool
    accumulates: bool
    forward: int
    backward: int
    optimizer: int

    def speaks_for(self, training: Training) -> bool:
        """Whether this is that layout's."""
        mine = self.micro_batch, self.checkpointing, self.accumulates
        return can_be_run(training) and mine == (training.batch, training.checkpointing, training.accumulation > 1)


@dataclass(frozen=True, slots=True)
class Exact:
    """All runs of one model and training, in the words of its configuration."""

    parameters: int
    peaks: tuple[ExactPeak, ...]

    def of(self, training: Training) -> ExactPeak | None:
        """The run of this very layout."""
        return next((peak for peak in self.peaks if peak.speaks_for(training)), None)


@dataclass(frozen=True, slots=True)
class ExactEstimate:
    """An estimate that a symbolic run decided. `tables`: what they say alone, where they know the model. `raised`: it
    said less than they expect at least, which was taken."""

    estimated: Estimate
    tables: Range | None
    raised: bool = False


def can_be_run(training: Training) -> bool:
    """Whether symbolic runs speak for such a layout: nothing is split over GPUs."""
    return training.sharding == "none" and training.tensor_parallel == 1


def decide(exact: Exact, training: Training, tables: Estimate, semantics: Semantics = DEFAULT) -> ExactEstimate | None:
    """The estimate of a layout that was run symbolically; None where it was not, and the tables stand alone."""
    told = exact.of(training)
    if told is None:
        return None
    peak = _peak(told, semantics)
    floor = tables.allocated.low
    raised = peak.allocated < floor
    if raised:
        peak = replace(peak, backward=floor)
    return ExactEstimate(estimate_of_peak(peak, EXACT_UNCERTAINTY), tables.allocated, raised)


def is_near(estimated: Estimate, capacity_bytes: int) -> bool:
    """Whether a symbolic run could change the verdict, coming out anywhere within the uncertainty of this estimate."""
    ends = (estimated.allocated.low, estimated.allocated.high)
    found = {
        verdict(estimate_of_peak(Peak(0, end, 0, 0), EXACT_UNCERTAINTY), capacity_bytes) for end in ends if end > 0
    }
    return len(found | {verdict(estimated, capacity_bytes)}) > 1


def layouts_alone(exact: Exact, training: Training, batch: int) -> Iterator[tuple[Training, ExactEstimate]]:
    """Every layout on one GPU of a model that the tables do not know, the largest micro-batch first: as it was run, or
    on the line through two runs with other micro-batches."""
    for checkpointing in (True,) if training.checkpointing else (False, True):
        for micro in reversed(divisors(batch)):
            layout = replace(training, batch=micro, accumulation=batch // micro, checkpointing=checkpointing)
            told = exact.of(layout)
            doubt = EXACT_UNCERTAINTY
            if told is None:
                told, doubt = _between(exact.peaks, layout), DEFAULT.uncertainty
            if told is not None:
                yield layout, ExactEstimate(estimate_of_peak(_peak(told, DEFAULT), doubt), None)


def _between(peaks: Iterable[ExactPeak], layout: Training) -> ExactPeak | None:
    """Each phase is linear in the micro-batch, but for what does not depend on it."""
    alike = {
        peak.micro_batch: peak
        for peak in peaks
        if (peak.checkpointing, peak.accumulates) == (layout.checkpointing, layout.accumulation > 1)
    }
    if len(alike) < 2:
        return None
    low, high = (alike[micro] for micro in sorted(alike)[-2:])
    steps, width = layout.batch - low.micro_batch, high.micro_batch - low.micro_batch

    def at(first: int, second: int) -> int:
        return max(0, first + (second - first) * steps // width)

    return ExactPeak(
        layout.batch,
        layout.checkpointing,
        low.accumulates,
        at(low.forward, high.forward),
        at(low.backward, high.backward),
        max(low.optimizer, high.optimizer),
    )


def _peak(told: ExactPeak, semantics: Semantics) -> Peak:
    beside = semantics.workspace_bytes
    return Peak(0, told.forward + beside, told.backward + beside, told.optimizer + beside)
