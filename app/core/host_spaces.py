"""What hosts of pools would offer if the spot jobs on them left. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from app.core.model.offer import Offer
from app.core.model.pool import OwnHost, Pool
from app.core.pools import kinds_of, offers_of


@dataclass(frozen=True, slots=True)
class HostSpace:
    """GPUs of one kind on a host of a pool. `free` now; `offers`: what it would offer if every node in `nodes`, each
    with its number of GPUs and runs that may leave, were gone."""

    place: str
    free: int
    offers: tuple[Offer, ...]
    nodes: Mapping[str, int]


def host_spaces(
    pools: Sequence[Pool], hosts: Sequence[OwnHost], nodes: Mapping[str, tuple[str, Sequence[int]]], now_ms: int
) -> list[HostSpace]:
    """`nodes`: those on which every run may leave, by their ids, with their host and their GPUs of it."""
    spaces: list[HostSpace] = []
    for host in hosts:
        here = {node_id: indices for node_id, (host_id, indices) in nodes.items() if host_id == host.host_id}
        if here:
            spaces += _spaces_of(pools, hosts, host, here, now_ms)
    return spaces


def _spaces_of(
    pools: Sequence[Pool], hosts: Sequence[OwnHost], host: OwnHost, here: Mapping[str, Sequence[int]], now_ms: int
) -> Iterator[HostSpace]:
    given = {index for indices in here.values() for index in indices}
    emptied = replace(host, taken=tuple(one for one in host.taken if one not in given))
    others = [one for one in hosts if one.host_id != host.host_id]
    freed = _by_place(offers_of(pools, [*others, emptied], now_ms))
    own = of_nobody(host, here)
    free = _by_place(offers_of(pools, hosts, now_ms))
    for place, offers in sorted(freed.items()):
        if place.partition("/")[0] != host.host_id:
            continue
        kind = offers[0].gpu_type
        of_kind = {gpu.index for gpu in kinds_of(host)[kind]}
        nodes = {node_id: len(own[node_id]) for node_id, indices in here.items() if of_kind.issuperset(indices)}
        nodes = {node_id: gpus for node_id, gpus in nodes.items() if gpus}
        if nodes:
            yield HostSpace(place, max((one.gpu_count for one in free.get(place, ())), default=0), offers, nodes)


def _by_place(offers: Sequence[Offer]) -> dict[str, tuple[Offer, ...]]:
    found: dict[str, tuple[Offer, ...]] = {}
    for offer in offers:
        if not offer.spot_only:
            found[offer.host] = (*found.get(offer.host, ()), offer)
    return found


def of_nobody(host: OwnHost, nodes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Which GPUs are anybody's once each of these nodes is gone: what is lent goes back to who has lent it."""
    return {node_id: tuple(one for one in indices if one not in host.lent) for node_id, indices in nodes.items()}
