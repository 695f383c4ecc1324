"""Who may have a place that is taken back: the one rule, for offers and for nodes, under every policy (ADR 0110).

Places that are lent, kept for somebody, or bid for (`spot_only`) are for spot jobs. Of these, what is bid for is taken
without a word: no grace, no save. So it is not for a job that would begin again from nothing, however cheap it is.
"""

from __future__ import annotations

from typing import Final

from app.core import queue
from app.core.model.job import JobState
from app.core.model.offer import Offer
from app.core.model.snapshot import JobView, NodeView

NUMBER_OF_LEVELS: Final = 3


def is_of_its_class(job: JobView, place: Offer | NodeView) -> bool:
    """Whether the job may begin there, move there, or share it: whether its level is that of the place, or above."""
    return not place.spot_only or (may_be_interrupted(job) if place.interruptible else queue.is_spot(job))


def level_of_job(job: JobView) -> int:
    """How far down the job may go: it may have the places of its level, and of all below."""
    return int(queue.is_spot(job)) + may_be_interrupted(job)


def level_of_place(place: Offer | NodeView) -> int:
    """Of a place for anybody 0; of one that is lent, or kept for somebody, 1; of one that was bid for 2."""
    return int(place.spot_only) + place.interruptible


def may_be_interrupted(job: JobView) -> bool:
    """Whether the job may be on a machine that its company takes back without a word."""
    return queue.is_spot(job) and not begins_from_nothing(job)


def begins_from_nothing(job: JobView) -> bool:
    """Whether all that the job does would be lost with its machine, as far as anybody knows: jobs of its app never
    save, its checkpoints are refused, or it has lost a place already and has none. One that has not begun may be one
    that saves, and jobs of the built-in recipe do; a job that is never seen to save has lost one place to a bid at
    most."""
    has_shown = job.has_never_saved and job.state is JobState.WAITING and job.recipe is None
    return job.never_saves or job.unsaved or has_shown
