"""Reservations: GPUs of a pool that a project keeps for a window, without a job (ADR 0107). Pure.

A reservation is a number of GPUs of one kind. While its window is open, single GPUs of the pool's hosts are kept for
its project: no guaranteed job of another project begins on them; spot jobs of anybody do, for these can be asked to
leave. Which GPUs: whole hosts as far as the number goes, those on which the fewest are in use by guaranteed jobs.
Nobody is made to leave by a reservation alone.

A quota of whole hosts is kept in the same way, piece by piece and without an end (ADR 0121): as a project's private
cluster in HiveD (OSDI 2020) it is bound to hosts of its own, lent to spot jobs while it is idle, and what fits a
private cluster of that size fits it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from app.core.model.pool import OwnHost, Pool
from app.core.pools import kinds_of

SHORTEST_MS, LONGEST_MS = 60_000, 31 * 86_400_000
FURTHEST_MS = 366 * 86_400_000
FOREVER_MS = 253_370_764_800_000  # the year 9999: a quota of hosts has no end
_FREE, _OWN, _OTHERS = 0, 1, 2

GpuKey = tuple[str, int]  # id of the host, and the GPU's index there
_Kind = tuple[str, str]  # pool, and kind of GPU


@dataclass(frozen=True, slots=True)
class GpuReservation:
    """`gpus` of kind `gpu_type` of a pool, from `from_ms` until `until_ms`. `piece`: so many of them at a time are on
    one host, and nothing less will do: a quota of whole hosts, without an end. None: however they fall.
    """

    reservation_id: str
    project_id: str
    pool: str
    gpu_type: str
    gpus: int
    from_ms: int
    until_ms: int
    piece: int | None = None


_ALWAYS = GpuReservation("", "", "", "", 0, 0, FOREVER_MS + 1)


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Who is on a GPU: jobs of a project. `is_spot`: all of these leave when they are asked to."""

    project_id: str
    is_spot: bool
    job_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeptGpus:
    """Which GPUs are kept from now on. `dropped`: of those that were, which are not there any more; `added`: new ones,
    by reservation; `short`: how many GPUs a reservation lacks, of those that lack any; `blocked`: how many of each
    reservation's are in use by guaranteed jobs of other projects, which go on."""

    dropped: Mapping[str, tuple[GpuKey, ...]] = field(default_factory=dict)
    added: Mapping[str, tuple[GpuKey, ...]] = field(default_factory=dict)
    short: Mapping[str, int] = field(default_factory=dict)
    blocked: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Why a reservation cannot be had: at most so many GPUs are left over its whole window."""

    left: int
    of: int
    reserved: int
    quotas: int


def same_kind(one: str, other: str) -> bool:
    """`RTX 4090` and `rtx4090` name one GPU."""
    return _plain(one) == _plain(other)


def room_for(
    asked: GpuReservation, others: Iterable[GpuReservation], pool: Pool, hosts: Iterable[OwnHost]
) -> NoRoom | None:
    """Why the pool cannot keep these too; None: it can. At every moment of the window what is reserved of a kind is at
    most what open hosts have of that kind; and all that is reserved, with all quotas of the pool, at most what may be
    used of it at once."""
    here = [host for host in hosts if host.pool == pool.name and host.is_open]
    meet = [one for one in others if one.pool == pool.name and _meet(one, asked)]
    of_kind = [one for one in meet if same_kind(one.gpu_type, asked.gpu_type)]
    kinds = [(kind, len(gpus)) for host in here for kind, gpus in kinds_of(host).items()]
    there = sum(number for kind, number in kinds if same_kind(kind, asked.gpu_type))
    total = _usable(pool, here)
    quotas = sum(gpus for _, gpus in pool.quotas)
    reserved_of_kind, reserved = most_at_once(of_kind, asked), most_at_once(meet, asked)
    left = max(0, min(there - reserved_of_kind, total - quotas - reserved))
    return None if asked.gpus <= left else NoRoom(left, there, reserved_of_kind, quotas)


def room_for_quotas(pool: Pool, reserved: Iterable[GpuReservation], hosts: Iterable[OwnHost]) -> NoRoom | None:
    """Why the pool's quotas in GPUs cannot be kept beside what is reserved of it at any moment, quotas of hosts
    included; None: they can, or nothing is reserved."""
    promised = [one for one in reserved if one.pool == pool.name]
    quotas = sum(gpus for _, gpus in pool.quotas)
    most, total = most_at_once(promised, _ALWAYS), _usable(pool, hosts)
    if not promised or quotas + most <= total:
        return None
    return NoRoom(max(0, total - most), total, most, quotas)


def most_at_once(reservations: Iterable[GpuReservation], window: GpuReservation) -> int:
    """The most GPUs that these keep together at one moment of the window."""
    edges: list[tuple[int, int]] = []
    for one in reservations:
        if _meet(one, window):
            edges += [(max(one.from_ms, window.from_ms), one.gpus), (one.until_ms, -one.gpus)]
    now = most = 0
    for _, change in sorted(edges):  # what ends at a moment is over by then: it sorts first
        now += change
        most = max(most, now)
    return most


def keep_gpus(
    open_now: Sequence[GpuReservation],
    kept: Mapping[str, Collection[GpuKey]],
    hosts: Iterable[OwnHost],
    uses: Mapping[GpuKey, GpuUse],
) -> KeptGpus:
    """Which GPUs are kept for each reservation whose window is open. What is kept stays so, as long as its host is
    open and has it: no GPU is ever kept for two. Those of hosts that are silent, or are left, are kept where there are
    no others, so that nothing else begins on them; they count as lacking."""
    search = _Search(hosts, uses)
    ranked = sorted(open_now, key=lambda one: (one.piece is None, one.from_ms, one.reservation_id))
    its = {one.reservation_id: search.confirm(one, kept.get(one.reservation_id, ())) for one in ranked}
    for one in ranked:
        now = its[one.reservation_id]
        now += search.choose(one, one.gpus - len(now))
    short = {one.reservation_id: one.gpus - len(its[one.reservation_id]) for one in ranked}
    for one in ranked:
        its[one.reservation_id] += search.fill(one, short[one.reservation_id], kept.get(one.reservation_id, ()))
    blocked = {
        one.reservation_id: sum(search.rank(one, key) == _OTHERS for key in its[one.reservation_id]) for one in ranked
    }
    before = {name: set(keys) for name, keys in kept.items()}
    return KeptGpus(
        dropped=_some({name: before.get(name, set()) - set(keys) for name, keys in its.items()}),
        added=_some({name: set(keys) - before.get(name, set()) for name, keys in its.items()}),
        short={name: number for name, number in short.items() if number},
        blocked={name: number for name, number in blocked.items() if number},
    )


class _Search:
    """The GPUs that are not kept for anybody, while one reservation after the other is served."""

    def __init__(self, hosts: Iterable[OwnHost], uses: Mapping[GpuKey, GpuUse]) -> None:
        self._uses = uses
        self._busy: set[GpuKey] = set()
        self._left: dict[_Kind, dict[str, set[int]]] = {}  # of open hosts: indices by host
        self._shut: dict[_Kind, dict[str, set[int]]] = {}  # of others
        for host in hosts:
            there = self._left if host.is_open else self._shut
            for kind, gpus in kinds_of(host).items():
                by_host = there.setdefault((host.pool, _plain(kind)), {})
                by_host[host.host_id] = {gpu.index for gpu in gpus}
                self._busy |= {(host.host_id, gpu.index) for gpu in gpus if gpu.is_busy}

    def confirm(self, one: GpuReservation, kept: Collection[GpuKey]) -> list[GpuKey]:
        """Of those that are kept, those that can be had; of a quota of hosts in whole pieces."""
        left = self._left.get(_kind_of(one), {})
        still = [key for key in sorted(kept) if key[1] in left.get(key[0], ())]
        still = (still if one.piece is None else _in_pieces(still, one.piece))[: one.gpus]
        for host_id, index in still:
            left[host_id].discard(index)
        return still

    def choose(self, one: GpuReservation, missing: int) -> list[GpuKey]:
        """So many more, or as many as there are: as much of them as possible on one host, again and again; of a quota
        of hosts a piece at a time."""
        found: list[GpuKey] = []
        left = self._left.get(_kind_of(one), {})
        least = one.piece or 1
        while missing > 0 and (most := max(map(len, left.values()), default=0)) >= least:
            number = min(missing, most) if one.piece is None else one.piece
            wide = [host_id for host_id, indices in left.items() if len(indices) >= number]
            best = min((self._chunk(one, host_id, left[host_id], number) for host_id in wide), key=lambda it: it[0])
            for host_id, index in best[1]:
                left[host_id].discard(index)
            found += best[1]
            missing -= number
        return found

    def fill(self, one: GpuReservation, missing: int, kept: Collection[GpuKey]) -> list[GpuKey]:
        """So many of hosts that are not open, those first that are kept already."""
        shut = self._shut.get(_kind_of(one), {}) if missing else {}
        here = [(host_id, index) for host_id, indices in shut.items() for index in indices]
        here = here if one.piece is None else _in_pieces(sorted(here), one.piece)
        found = sorted(here, key=lambda key: (key not in kept, key))[:missing]
        for host_id, index in found:
            shut[host_id].discard(index)
        return found

    def rank(self, one: GpuReservation, key: GpuKey) -> int:
        """Free GPUs and those of spot jobs first; then what the project has there already; then what it has to wait
        for."""
        use = self._uses.get(key)
        if key in self._busy:
            return _OTHERS
        if use is None or use.is_spot:
            return _FREE
        return _OWN if use.project_id == one.project_id else _OTHERS

    def _chunk(
        self, one: GpuReservation, host_id: str, indices: Collection[int], number: int
    ) -> tuple[tuple[int, int, int, str], list[GpuKey]]:
        """How good so many of the host's GPUs would be, and which."""
        ranked = sorted(((self.rank(one, (host_id, index)), index) for index in indices), key=_wanted(one))[:number]
        ranks = Counter(rank for rank, _ in ranked)
        own = ranks[_OWN] if one.piece is None else -ranks[_OWN]
        return (
            (ranks[_OTHERS], own, len(indices) - number, host_id),
            [(host_id, index) for _, index in ranked],
        )


def _wanted(one: GpuReservation) -> Callable[[tuple[int, int]], tuple[int, int]]:
    """In which order GPUs of a host are kept, by rank and index: what the project has there already is what a quota of
    hosts is for, and what a window comes on top of."""
    if one.piece is None:
        return lambda it: it
    return lambda it: (-1 if it[0] == _OWN else it[0], it[1])


def _usable(pool: Pool, hosts: Iterable[OwnHost]) -> int:
    """GPUs that may be used of the pool at once, as its hosts are now."""
    here = [host for host in hosts if host.pool == pool.name and host.is_open]
    total = sum(len(gpus) for host in here for gpus in kinds_of(host).values())
    return total if pool.most_gpus is None else min(total, pool.most_gpus)


def _in_pieces(keys: Sequence[GpuKey], piece: int) -> list[GpuKey]:
    """Of sorted ones, of each host as many as make whole pieces."""
    on = Counter(host_id for host_id, _ in keys)
    left = {host_id: number // piece * piece for host_id, number in on.items()}
    found = []
    for key in keys:
        if left[key[0]] > 0:
            left[key[0]] -= 1
            found.append(key)
    return found


def _kind_of(one: GpuReservation) -> _Kind:
    return one.pool, _plain(one.gpu_type)


def _some(found: Mapping[str, Collection[GpuKey]]) -> dict[str, tuple[GpuKey, ...]]:
    return {name: tuple(sorted(keys)) for name, keys in found.items() if keys}


def _meet(one: GpuReservation, other: GpuReservation) -> bool:
    return one.from_ms < other.until_ms and other.from_ms < one.until_ms


def _plain(gpu_type: str) -> str:
    return "".join(letter for letter in gpu_type.casefold() if letter.isalnum())
