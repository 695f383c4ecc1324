"""What a rehearsal may cost, decided before anything is rented. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allpass.wire.usage import Offer
from app.errors import InvalidInput

# Of the ceiling: a job that reaches its limit still saves and leaves, and what it saves travels.
_FOR_THE_JOB_PERCENT = 75
_MACHINES = 2  # one after the other
_HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class Spending:
    """`most_hourly_micros`: no dearer machine is rented; `job_micros`: where the job itself is stopped."""

    offer: Offer
    most_micros: int
    job_micros: int
    most_hourly_micros: int
    most_s: int

    @property
    def foreseen_micros(self) -> int:
        """If both machines take all the time there is."""
        return _cost(self.offer.price_per_hour, self.most_s)


def plan_spending(provider: str, offers: Sequence[Offer], *, most_micros: int, most_s: int) -> Spending:
    """The cheapest offer with one GPU whose whole time stays below the ceiling. Raises InvalidInput saying what would
    be enough."""
    single = [one for one in offers if one.gpu_count == 1 and one.cpu_architecture == "x86_64"]
    if not single:
        raise InvalidInput(f"{provider} offers no machine with one GPU now; try again later", param="provider")
    offer = min(single, key=lambda one: one.price_per_hour)
    job_micros = most_micros * _FOR_THE_JOB_PERCENT // 100
    most_hourly = job_micros * _HOUR_S // most_s
    if offer.price_per_hour > most_hourly:
        needed = -(-_cost(offer.price_per_hour, most_s) * 100 // _FOR_THE_JOB_PERCENT)
        raise InvalidInput(
            f"the cheapest machine of {provider} costs ${offer.price_per_hour / 1e6:.2f} an hour, and {most_s // 60} "
            f"minutes of it more than ${most_micros / 1e6:.2f} with a margin for the end; give --most-dollars "
            f"{needed / 1e6:.2f}, or fewer --most-minutes",
            param="most_dollars",
        )
    return Spending(offer, most_micros, job_micros, most_hourly, most_s)


def _cost(price_per_hour: int, seconds: int) -> int:
    return -(-price_per_hour * seconds // _HOUR_S)
