"""What a team's own machines offer now: every free GPU once, at its owner's price, to whom and when its owner says.

Pure. Offers of one kind of GPU on one host share what is free there (`Offer.shared_gpus`): a plan that takes one leaves
so much less for the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.model.pool import CPU, CPU_FOR_ALL, DAY_MINUTES, JOINED, WEEK_MINUTES, HostGpu, Hours, OwnHost, Pool
from app.core.spot_share import at_share
from app.errors import InvalidInput

STARTUP_MS = 1_000
# So long before its hours end a pool gives nothing more: whoever came would be asked to leave at once, and might be
# sent to the GPU beside the one that it leaves. As long as a machine that ends is left ahead of it by default: the
# margin of lifetimes, the start of the slowest other machine, and what is prepared there.
CLOSING_MS = 1_200_000
_MINUTE_MS = 60_000
_THURSDAY = 3 * DAY_MINUTES  # the day on which the clock of Unix begins
_MOST_SHARES = 8
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WINDOW = re.compile(r"(?:([a-z]{3})(?:-([a-z]{3}))? +)?(\d{1,2}):(\d\d) *- *(\d{1,2}):(\d\d)")
_HOW = "write it as 'mon-fri 20:00-08:00, sat-sun 00:00-24:00', in UTC"


def read_hours(text: str) -> tuple[Hours, ...]:
    """The hours that a text names; empty for an empty one. Raises InvalidInput that says how they are written."""
    return tuple(one for part in text.lower().split(",") if part.strip() for one in _read_window(part.strip()))


def _read_window(text: str) -> list[Hours]:
    found = _WINDOW.fullmatch(text)
    if found is None:
        raise InvalidInput(f"hours: {text!r:.80} are no hours; {_HOW}", param="hours")
    first, last, *clock = found.groups()
    if any(day not in _DAYS for day in (first or "mon", last or "mon")):
        raise InvalidInput(f"hours: {text!r:.80} has a day that is none of {', '.join(_DAYS)}; {_HOW}", param="hours")
    from_hour, from_minute, to_hour, to_minute = map(int, clock)
    begins, ends = 60 * from_hour + from_minute, 60 * to_hour + to_minute
    if max(from_minute, to_minute) > 59 or max(begins, ends) > DAY_MINUTES or begins == ends:
        raise InvalidInput(f"hours: {text!r:.80} has a time that is none, or ends as it begins; {_HOW}", param="hours")
    length = ends - begins if ends > begins else ends - begins + DAY_MINUTES
    at = 0 if first is None else _DAYS.index(first)
    days = 7 if first is None else (_DAYS.index(last or first) - at) % 7 + 1
    starts = [(at + day) % 7 * DAY_MINUTES + begins for day in range(days)]
    return [Hours(start, start + length) for start in starts]


def is_open(pool: Pool, now_ms: int) -> bool:
    """Whether the pool takes jobs at this moment."""
    return pool.drains_ms is None and _is_within_hours(pool, now_ms)


def gives(pool: Pool, now_ms: int) -> bool:
    """Whether the pool is open, and will be for long enough to be worth coming to."""
    closes_ms = closes_in_ms(pool, now_ms)
    return is_open(pool, now_ms) and (closes_ms is None or closes_ms > CLOSING_MS)


def closes_in_ms(pool: Pool, now_ms: int) -> int | None:
    """How long the hours of a pool go on, those that follow without a gap included; None outside of them, and where
    they never end."""
    at = end = _minute_of_week(now_ms)
    while (reached := _covered_until(pool, end)) > end:
        end = reached
        if end >= at + WEEK_MINUTES:
            return None
    return None if end == at else (end - at) * _MINUTE_MS - now_ms % _MINUTE_MS


def ends_ms(pool: Pool, now_ms: int) -> int | None:
    """When what runs in the pool has to be gone, as far as is known: it drains, or its hours are over."""
    closes_ms = closes_in_ms(pool, now_ms)
    closed_ms = None if _is_within_hours(pool, now_ms) else now_ms
    known = (pool.drains_ms, closed_ms, None if closes_ms is None else now_ms + closes_ms)
    return min((one for one in known if one is not None), default=None)


def _is_within_hours(pool: Pool, now_ms: int) -> bool:
    at = _minute_of_week(now_ms)
    return not pool.hours or _covered_until(pool, at) > at


def _minute_of_week(now_ms: int) -> int:
    return (now_ms // _MINUTE_MS + _THURSDAY) % WEEK_MINUTES


def _covered_until(pool: Pool, minute: int) -> int:
    """Until when the longest of the hours goes on that covers this minute; the minute itself where none does. Hours
    are of each week: those of the week before may reach into this one."""
    last_week = minute - minute % WEEK_MINUTES - WEEK_MINUTES
    moved = ((one, last_week + week * WEEK_MINUTES) for one in pool.hours for week in range(2))
    ends = (by + one.to_minute for one, by in moved if by + one.from_minute <= minute < by + one.to_minute)
    return max(ends, default=minute)


def kinds_of(host: OwnHost) -> dict[str, tuple[HostGpu, ...]]:
    """The GPUs of a host by what jobs call their kind; where it has none, shares of its processors."""
    if not host.gpus:
        number = max(1, min(_MOST_SHARES, host.cpus // 2))
        share = host.memory_bytes // number
        kind = CPU_FOR_ALL if host.for_all else CPU
        return {kind: tuple(HostGpu(index, kind, share) for index in range(number))}
    names = sorted({gpu.name for gpu in host.gpus})
    return {name: tuple(gpu for gpu in host.gpus if gpu.name == name) for name in names}


def free_of(host: OwnHost, kind: str, *, for_spot: bool = False, kept_for: str = "") -> tuple[HostGpu, ...]:
    """The GPUs of this kind that nobody has and nobody was promised; for spot jobs also those that are lent or kept for
    somebody, and for the project `kept_for` those that are kept for it. These come first: what is nobody's is left to
    others."""
    free = [gpu for gpu in kinds_of(host).get(kind, ()) if gpu.index not in host.taken and not gpu.is_busy]
    if for_spot:
        first = [gpu for gpu in free if is_held(host, gpu.index)]
    else:
        its = {index for index, project_id in host.kept.items() if kept_for and project_id == kept_for}
        first = [gpu for gpu in free if gpu.index in its and gpu.index not in host.lent]
    usable = first + [gpu for gpu in free if not is_held(host, gpu.index)]
    return tuple(usable[: max(0, len(usable) - host.awaited.get(shared_host(host.host_id, kind), 0))])


def is_held(host: OwnHost, index: int) -> bool:
    """Whether a GPU is lent by somebody, or kept for somebody."""
    return index in host.lent or index in host.kept


def shared_host(host_id: str, kind: str) -> str:
    """What offers of one kind of GPU on one host name as their host."""
    return f"{host_id}/{kind}"


def offers_of(pools: Iterable[Pool], hosts: Iterable[OwnHost], now_ms: int) -> list[Offer]:
    """What hosts that have joined offer: of each kind of GPU one, two, four, ... and all that are free, with as much of
    the host's processors and memory as they are of its GPUs."""
    known = {pool.name: pool for pool in pools if pool.launcher == JOINED and gives(pool, now_ms)}
    joined = list(hosts)
    here = [host for host in joined if host.is_open and host.pool in known]
    used = used_gpus(joined)  # those that are to leave, or are not heard of, still have what was given out
    found: list[Offer] = []
    for host in here:
        pool = known[host.pool]
        left = None if pool.most_gpus is None else max(0, pool.most_gpus - used.get(pool.name, 0))
        for kind in kinds_of(host):
            found += _of_kind(pool, host, kind, left)
            if host.lent or host.kept:
                found += _held_of_kind(pool, host, kind, left)
            for project_id in sorted(set(host.kept.values())):
                found += _kept_of_kind(pool, host, kind, left, project_id)
    return found


def used_gpus(hosts: Iterable[OwnHost]) -> dict[str, int]:
    """How many GPUs of each pool are given out, promised, lent or kept."""
    used: dict[str, int] = {}
    for host in hosts:
        used[host.pool] = (
            used.get(host.pool, 0) + len({*host.taken, *host.lent, *host.kept}) + sum(host.awaited.values())
        )
    return used


def _of_kind(pool: Pool, host: OwnHost, kind: str, left: int | None) -> list[Offer]:
    """Of what nobody has. `left`: how many more of the pool may be used."""
    free = free_of(host, kind)
    return _offers(pool, host, kind, free, len(free) if left is None else min(len(free), left))


def _held_of_kind(pool: Pool, host: OwnHost, kind: str, left: int | None) -> list[Offer]:
    """What spot jobs may have there beside others: GPUs that are lent or kept, with those that are free. They come
    before the host's other offers."""
    usable = free_of(host, kind, for_spot=True)
    return [
        replace(
            offer,
            offer_id=offer_id_of(host.host_id, offer.gpu_count, kind, spot_only=True),
            spot_only=True,
            startup_ms=offer.startup_ms - 1,
        )
        for offer in _with_held(pool, host, kind, usable, left)
    ]


def _kept_of_kind(pool: Pool, host: OwnHost, kind: str, left: int | None, project_id: str) -> list[Offer]:
    """What a project may have there that has reserved some of it: that, with what is free."""
    if pool.projects and project_id not in pool.projects:
        return []
    usable = free_of(host, kind, kept_for=project_id)
    return [
        replace(
            offer,
            offer_id=offer_id_of(host.host_id, offer.gpu_count, kind, kept_for=project_id),
            projects=(project_id,),
            startup_ms=offer.startup_ms - 1,
        )
        for offer in _with_held(pool, host, kind, usable, left)
    ]


def _with_held(pool: Pool, host: OwnHost, kind: str, usable: Sequence[HostGpu], left: int | None) -> list[Offer]:
    """None where nothing of it is held: then the host's other offers are the same. What is held counts for the pool's
    limit already."""
    held = sum(is_held(host, gpu.index) for gpu in usable)
    free = len(usable) - held
    return _offers(pool, host, kind, usable, held + (free if left is None else min(free, left))) if held else []


def _offers(pool: Pool, host: OwnHost, kind: str, free: Sequence[HostGpu], number: int) -> list[Offer]:
    return [cut_of(pool, host, kind, count, free, number) for count in _sizes(number)]


def cut_of(pool: Pool, host: OwnHost, kind: str, count: int, gpus: Sequence[HostGpu], free: int) -> Offer:
    """A node of so many GPUs of this kind, cut from the host: with as much of its processors and memory as they are of
    its GPUs. `gpus`: those that it may get; `free`: how many are free there."""
    total = len(host.gpus) or len(kinds_of(host)[kind])
    return Offer(
        provider=JOINED,
        offer_id=offer_id_of(host.host_id, count, kind),
        tier=Tier.OWN,
        gpu_type=kind,
        gpu_count=count,
        gpu_memory_bytes=min(gpu.memory_bytes for gpu in gpus),
        cpus=max(1, host.cpus * count // total),
        memory_bytes=host.memory_bytes * count // total,
        price_per_hour=Money(pool.price.micros * count),
        startup_ms=STARTUP_MS + pool.preference,
        region=pool.name,
        host=shared_host(host.host_id, kind),
        shared_gpus=free,
        projects=pool.projects,
    )


def offer_id_of(host_id: str, count: int, kind: str, *, spot_only: bool = False, kept_for: str = "") -> str:
    """What an offer of so many GPUs of a kind on a host is called. `kept_for`: the project that has reserved some."""
    kept = f"~{kept_for}" if kept_for else ""
    return f"{host_id}-{count}x{kind}" + ("~spot" if spot_only else kept)


def _sizes(most: int) -> list[int]:
    return sorted({1 << power for power in range(most.bit_length())} | {most}) if most else []


def governed(offers: Sequence[Offer], pools: Iterable[Pool], used: Mapping[str, int], now_ms: int) -> list[Offer]:
    """Offers of other launchers as their pools have them: the pool of an offer is the one that is named as its region.
    `used`: how many GPUs of each pool are given out. Those without a pool are left as they are."""
    known = {(pool.launcher, pool.name): pool for pool in pools}
    found: list[Offer] = []
    for offer in offers:
        pool = known.get((offer.provider, offer.region)) if offer.tier is Tier.OWN else None
        if pool is None:
            found.append(offer)
        elif gives(pool, now_ms) and _has_left(pool, offer, used):
            price = Money(pool.price.micros * offer.gpu_count)
            found.append(replace(offer, price_per_hour=price, projects=pool.projects))
    return found


def _has_left(pool: Pool, offer: Offer, used: Mapping[str, int]) -> bool:
    return pool.most_gpus is None or used.get(pool.name, 0) + offer.gpu_count <= pool.most_gpus


SharesNow = Mapping[tuple[str, str], int]  # by launcher and name of pools where spot jobs pay less than the price


def parts_of(shares: SharesNow, offer: Offer) -> int | None:
    """What spot jobs pay of the offer's price, in millionths; None: what other jobs pay."""
    return shares.get((offer.provider, offer.region)) if offer.tier is Tier.OWN else None


def places_for(offers: Iterable[Offer], shares: SharesNow, *, spot: bool) -> list[Offer]:
    """What is promised to a job of either class: what any job may have; to a spot job also what it has to leave when
    somebody else wants it, all at what spot jobs pay."""
    if not spot:
        return [one for one in offers if not one.spot_only]
    paid = ((one, spot_price(shares, one)) for one in offers)
    return [one if micros is None else replace(one, price_per_hour=Money(micros)) for one, micros in paid]


def spot_price(shares: SharesNow, offer: Offer) -> int | None:
    """In micro-dollars, for the whole offer and an hour; None: it is the offer's price."""
    parts = parts_of(shares, offer)
    return None if parts is None else at_share(offer.price_per_hour.micros, parts)
