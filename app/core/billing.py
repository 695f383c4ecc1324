"""Money over time: what a machine costs, and who pays for which stretch of it.

Two sums are told apart, because a ledger line can never be taken back:

* `cost` is what the provider will ask for a closed interval: started units, the minimum, rounded once.
* `accrued` is the part of it that is certain while the machine still runs: elapsed time at the price, without the
  rounding up of the last unit and without the minimum. `accrued(t) <= cost(t)` for every t, and both only grow.

The live meter writes `accrued`, at most up to the last moment at which the machine is *known* to have run (its newest
heartbeat or listing), never up to "now": a machine that died unseen is not charged for the silence. The last reading
adds what is missing to `cost` at the provider's own end time. So every sum of lines equals the bill exactly, however
often the meter was read. Only when the provider's figure is below what it had already earned by its price and our
proof of life (a clock that runs ahead of ours, a refund) is the ledger above the bill; nothing is then written, and
`MeterReading.overmetered` tells the difference so that the caller can put it on record.

What spot jobs alone hold they pay a share of (`app.core.spot_share`). Such a line says what is paid and what is not,
the discount; its part of the bill is both together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from app.core.model.money import MS_PER_HOUR, ZERO, Money
from app.core.model.node import BillingRule
from app.core.spot_share import FULL, SpotShare, paid_of, share_at


class Payer(StrEnum):
    """Who pays for a stretch of a node's time."""

    RUN = "run"  # a run held the GPUs
    BOOT = "boot"  # before the node's agent called home
    IDLE = "idle"  # ready, and nobody held these GPUs
    ORPHAN = "orphan"  # a machine that nobody owned


@dataclass(frozen=True, slots=True)
class Occupancy:
    """GPUs of the node held for one job of one run, in [from_ms, to_ms); `to_ms` None: still held.

    `companion_of`: the run in whose process this one trains, on the very same GPUs. `tokens`: what it has processed
    since the meter was last read. `is_spot`: its job gives the GPUs back when a guaranteed one needs them.
    """

    run_id: str
    job_id: str
    gpus: int
    from_ms: int
    to_ms: int | None = None
    companion_of: str | None = None
    tokens: int = 0
    is_spot: bool = False

    @property
    def process(self) -> str:
        """The run that began the process. Who shares it holds the same GPUs, which are counted once."""
        return self.run_id if self.companion_of is None else self.companion_of


@dataclass(frozen=True, slots=True)
class StandbyTime:
    """From this instant until a run holds the node again (`to_ms`; None: not yet) its GPUs are lent to others. `parts`:
    of its price, in millionths, what is not paid for that."""

    from_ms: int
    to_ms: int | None
    parts: int


@dataclass(frozen=True, slots=True)
class Meter:
    """A node as the meter sees it. `metered` is the sum of all lines written so far, up to `metered_until_ms`, with
    their discounts: at the full price. `spot_shares`: what spot jobs pay of it, and since when. `carried`: see
    `paid_of`.

    `billed_from_ms` is the provider's own time. `ready_ms` None: its agent has not called home (all is boot).
    """

    rule: BillingRule
    price_per_hour: Money
    gpu_count: int
    billed_from_ms: int
    ready_ms: int | None = None
    rented_for_job_id: str | None = None
    metered_until_ms: int | None = None  # None: never read
    metered: Money = ZERO
    orphan: bool = False  # of nobody: nothing of it is anybody's run or boot
    spot_shares: tuple[SpotShare, ...] = ()
    carried: int = 0
    standbys: tuple[StandbyTime, ...] = ()


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """What is paid for [from_ms, to_ms), and the discount that a spot job has, or the rebate of one that stands by:
    together more than nothing. `run` lines name run and job; `boot` lines the job it was rented for."""

    payer: Payer
    run_id: str | None
    job_id: str | None
    from_ms: int
    to_ms: int
    amount: Money
    discount: Money = ZERO


@dataclass(frozen=True, slots=True)
class MeterReading:
    """New lines, and the meter's totals once they are written. `overmetered` is not zero only on a last reading."""

    lines: tuple[LedgerLine, ...]
    metered_until_ms: int
    metered: Money
    overmetered: Money = ZERO
    carried: int = 0


def cost(rule: BillingRule, price_per_hour: Money, from_ms: int, to_ms: int) -> Money:
    """What the provider asks for [from_ms, to_ms): started units, at least the minimum, rounded half up once.

    An empty interval costs nothing. Never decreases as `to_ms` grows.
    """
    elapsed_ms = to_ms - from_ms
    if elapsed_ms <= 0:
        return ZERO
    units = -(-max(elapsed_ms, rule.minimum_ms) // rule.unit_ms)
    return _at_price(price_per_hour, units * rule.unit_ms)


def first_unit(rule: BillingRule, price_per_hour: Money) -> Money:
    """The least that a machine costs once it has been rented: its first billing unit, or the minimum."""
    return cost(rule, price_per_hour, 0, 1)


def accrued(price_per_hour: Money, from_ms: int, to_ms: int) -> Money:
    """The certain part of `cost` while the machine still runs: elapsed time at the price, rounded half up once."""
    return _at_price(price_per_hour, max(0, to_ms - from_ms))


def serverless_equivalent(rule: BillingRule, price_per_hour: Money, running_ms: int) -> Money:
    """What `running_ms` of user code would have cost in one piece at this price and rule: the bill not paid."""
    return cost(rule, price_per_hour, 0, running_ms)


def split(
    meter: Meter,
    occupancies: Sequence[Occupancy],
    *,
    until_ms: int,
    final: bool = False,
    billed: Money | None = None,
) -> MeterReading:
    """Ledger lines for the stretch since the meter was last read, cut where a holder comes or goes.

    `until_ms`: a moment at which the machine is known to have run; on the `final` reading the provider's own end
    time. `billed`: the provider's own total, when it tells one; it is used on the final reading only, in place of
    `cost`. `occupancies` must hold all that touch the stretch, those that end where it begins included; others do no
    harm. Processes share a stretch by GPUs held and free GPUs are `idle`; runs of one process share its part by the
    tokens that each has processed, equally where none has any, and a run that is alone pays for all of it. Shares are
    exact (largest remainder). The rounding up of the last unit and the minimum fall to whoever had the machine last.
    Lines of nothing are left out. Of a stretch in which spot jobs hold GPUs, and no other job does, the share that
    counts then is paid, for its boot and its free GPUs as well; of one in which its job stands by, and nobody holds it,
    what is left beside the rebate.
    """
    since_ms = meter.billed_from_ms if meter.metered_until_ms is None else meter.metered_until_ms
    due = _due(meter, until_ms, billed) if final else None
    lines: list[LedgerLine] = []
    metered, carried = meter.metered.micros, meter.carried
    cuts = _cuts(meter, occupancies, since_ms, until_ms, final)
    for index, (from_ms, to_ms) in enumerate(cuts):
        target = accrued(meter.price_per_hour, meter.billed_from_ms, to_ms).micros
        if due is not None:
            target = due if index == len(cuts) - 1 else min(target, due)
        amount = max(0, target - metered)
        due_here = _share(meter, occupancies, from_ms, to_ms, amount)
        parts = _parts(meter, occupancies, _witness_ms(from_ms, to_ms))
        if parts != FULL:
            due_here, carried = _discounted(due_here, parts, carried)
        lines.extend(due_here)
        metered += amount
    over = 0 if due is None else max(0, metered - due)
    return MeterReading(tuple(lines), max(since_ms, until_ms), Money(metered), Money(over), carried)


def apportion(amount: int, weights: Sequence[int]) -> list[int]:
    """Split a whole amount by weights, exactly: floors first, then one each to the largest remainders.

    Ties go to the earlier place. Every part is within one of its exact share. Raises ValueError when the weights
    are not non-negative with a positive sum.
    """
    whole = sum(weights)
    if whole <= 0 or min(weights) < 0:
        raise ValueError(f"weights {list(weights)} must be non-negative with a positive sum")
    parts = [amount * weight // whole for weight in weights]
    missing = amount - sum(parts)
    by_remainder = sorted(range(len(weights)), key=lambda place: (-(amount * weights[place] % whole), place))
    for place in by_remainder[:missing]:
        parts[place] += 1
    return parts


def _at_price(price_per_hour: Money, duration_ms: int) -> Money:
    return Money((2 * price_per_hour.micros * duration_ms + MS_PER_HOUR) // (2 * MS_PER_HOUR))


def _due(meter: Meter, until_ms: int, billed: Money | None) -> int:
    if billed is not None:
        return billed.micros
    return cost(meter.rule, meter.price_per_hour, meter.billed_from_ms, until_ms).micros


def _cuts(
    meter: Meter, occupancies: Sequence[Occupancy], since_ms: int, until_ms: int, final: bool
) -> list[tuple[int, int]]:
    """Stretches within which the set of payers does not change.

    The last reading needs one even when no time has passed since the one before: the rounding up has to go
    somewhere.
    """
    if until_ms <= since_ms:
        return [(until_ms, until_ms)] if final else []
    edges = {since_ms, until_ms}
    held = (edge for one in occupancies for edge in (one.from_ms, one.to_ms))
    standing = (edge for one in meter.standbys for edge in (one.from_ms, one.to_ms))
    for moment in (meter.ready_ms, *(one.from_ms for one in meter.spot_shares), *standing, *held):
        if moment is not None and since_ms < moment < until_ms:
            edges.add(moment)
    return list(pairwise(sorted(edges)))


def _share(meter: Meter, occupancies: Sequence[Occupancy], from_ms: int, to_ms: int, amount: int) -> list[LedgerLine]:
    if amount == 0:
        return []
    witness_ms = _witness_ms(from_ms, to_ms)
    if meter.orphan:
        return [LedgerLine(Payer.ORPHAN, None, None, from_ms, to_ms, Money(amount))]
    if meter.ready_ms is None or witness_ms < meter.ready_ms:
        return [LedgerLine(Payer.BOOT, None, meter.rented_for_job_id, from_ms, to_ms, Money(amount))]
    held: dict[str, list[Occupancy]] = defaultdict(list)
    for one in sorted(occupancies, key=lambda one: (one.process, one.run_id, one.job_id)):
        if _holds(one, witness_ms):
            held[one.process].append(one)
    gpus = [max(one.gpus for one in runs) for runs in held.values()]
    # More held than there is (clocks of two processes a few ms apart) leaves nothing idle; a meter must go on.
    *parts, idle = apportion(amount, [*gpus, max(0, meter.gpu_count - sum(gpus))])
    lines = [
        LedgerLine(Payer.RUN, one.run_id, one.job_id, from_ms, to_ms, Money(micros))
        for runs, part in zip(held.values(), parts, strict=True)
        for one, micros in zip(runs, apportion(part, _tokens_of(runs)), strict=True)
        if micros
    ]
    if idle:
        lines.append(LedgerLine(Payer.IDLE, None, None, from_ms, to_ms, Money(idle)))
    return lines


def _witness_ms(from_ms: int, to_ms: int) -> int:
    """The moment at which a stretch is looked at: of an empty one that just before it."""
    return from_ms if from_ms < to_ms else from_ms - 1


def _parts(meter: Meter, occupancies: Sequence[Occupancy], at_ms: int) -> int:
    """What is paid of the price then. Beside a job that is guaranteed a spot job has to give back nothing: a machine
    is left as a whole. So it pays what that one does."""
    holders = [one for one in occupancies if _holds(one, at_ms)]
    if not holders and not meter.orphan:
        return FULL - _rebate(meter, at_ms)
    is_spot = bool(holders) and not meter.orphan and all(one.is_spot for one in holders)
    return share_at(meter.spot_shares, at_ms) if is_spot else FULL


def _rebate(meter: Meter, at_ms: int) -> int:
    """In millionths of the price, while the job that had it stands by."""
    lends = (one.parts for one in meter.standbys if one.from_ms <= at_ms and (one.to_ms is None or at_ms < one.to_ms))
    return min(max(0, max(lends, default=0)), FULL)


def _discounted(lines: Sequence[LedgerLine], parts: int, carried: int) -> tuple[list[LedgerLine], int]:
    found = []
    for line in lines:
        paid, carried = paid_of(line.amount.micros, parts, carried)
        found.append(replace(line, amount=Money(paid), discount=Money(line.amount.micros - paid)))
    return found, carried


def _tokens_of(runs: Sequence[Occupancy]) -> list[int]:
    tokens = [one.tokens for one in runs]
    return tokens if any(tokens) else [1] * len(tokens)


def _holds(held: Occupancy, at_ms: int) -> bool:
    return held.from_ms <= at_ms and (held.to_ms is None or at_ms < held.to_ms)
