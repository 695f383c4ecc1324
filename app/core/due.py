"""Whether a job is done by its deadline on what could be rented, where GPUs differ in how fast they train."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from app.core.gpu_speeds import GpuSpeeds, time_permille
from app.core.model.offer import Offer
from app.core.model.snapshot import JobView
from app.core.remaining import OUTLIVED_DENOMINATOR, OUTLIVED_NUMERATOR, predicted_ms, remaining_ms

_SURE = 1_000 * OUTLIVED_NUMERATOR // OUTLIVED_DENOMINATOR  # permille: it may take as much longer as is believed
_LIKELY = 1_000
_WHOLE = 1_000_000


@dataclass(frozen=True, slots=True)
class Due:
    """What a job has left by its times, and until its deadline. `runs`: the first gets less as time passes."""

    speeds: GpuSpeeds
    left_ms: int
    until_ms: int
    runs: bool = False

    def is_sure_on(self, offer: Offer) -> bool:
        """Whether the job is in time there, also if it takes as much longer than predicted as predictions are believed
        in (`remaining`)."""
        return self._spare(offer, _SURE) >= 0

    def is_in_time(self, gpu_type: str, begins_ms: int) -> bool:
        """Whether it is if the prediction is right, on GPUs of this type where it begins in so much time."""
        return self._spare_on(gpu_type, begins_ms, _LIKELY) >= 0

    def first_in_time(self, offers: Iterable[Offer]) -> Offer | None:
        """The first on which it surely is; else the first on which it is if the prediction is right; None: it will be
        late."""
        likely = None
        for offer in offers:
            if self.is_sure_on(offer):
                return offer
            if likely is None and self._spare(offer, _LIKELY) >= 0:
                likely = offer
        return likely

    def changes_ms(self, gpu_type: str, begins_ms: int) -> Iterator[int]:
        """In how much time alone either answer becomes another; not before."""
        for margin in (_SURE, _LIKELY):
            spare, slope = self._spare_on(gpu_type, begins_ms, margin), -_WHOLE
            if self.runs:
                slope += margin * time_permille(self.speeds, gpu_type)
            if slope and (spare >= 0) == (slope < 0):
                yield max(1, abs(spare) * _WHOLE // abs(slope))

    def _spare(self, offer: Offer, margin: int) -> int:
        return self._spare_on(offer.gpu_type, begins_ms(offer), margin)

    def _spare_on(self, gpu_type: str, begins_ms: int, margin: int) -> int:
        """Milliseconds to spare, a negative number if none are."""
        return self.until_ms - begins_ms - self.left_ms * margin * time_permille(self.speeds, gpu_type) // _WHOLE


def begins_ms(offer: Offer) -> int:
    """From the request until the first step there, as far as is learned."""
    return offer.startup_ms + offer.arrival_ms


def due_of(job: JobView, now_ms: int, left_ms: int | None) -> Due | None:
    """None for a job whose GPUs are all as fast, and where nobody knows how long it runs. `left_ms`: of one that runs,
    what it has still to run."""
    if job.speeds is None:
        return None
    until_ms = job.deadline_ms - now_ms
    if left_ms is not None:
        return Due(job.speeds, left_ms, until_ms, runs=True)
    if predicted_ms(job, None, now_ms) is None:
        return None
    return Due(job.speeds, remaining_ms(job, None, now_ms), until_ms)


def quicker_ones(offers: Iterable[Offer], speeds: GpuSpeeds) -> tuple[Offer, ...]:
    """In their order, those that train faster or begin sooner than every one before them: no other could be the first
    in time."""
    found: list[tuple[Offer, int, int]] = []
    for offer in offers:
        permille, soon_ms = time_permille(speeds, offer.gpu_type), begins_ms(offer)
        if all(permille < its or soon_ms < at_ms for _, its, at_ms in found):
            found.append((offer, permille, soon_ms))
    return tuple(offer for offer, _, _ in found)
