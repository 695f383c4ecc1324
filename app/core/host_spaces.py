"""What hosts of pools would offer if the spot jobs on them left. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from app.core.model.offer import Offer
from app.core.model.pool import OwnHost, Pool
from app.core.pools import kinds_of, offers_of


@dataclass(frozen=True, slots=True)
class HostSpace:
    """GPUs of one kind on a host of a pool. `free` now; `offers`: what it would offer if every node in `nodes`, each
    with its number of GPUs, were gone: its runs may leave, or nobody is on it. `project_id`: for whose jobs alone;
    empty: for all. `is_reserved`: all of it is kept for that project, so that spot jobs leave it at once."""

    place: str
    free: int
    offers: tuple[Offer, ...]
    nodes: Mapping[str, int]
    project_id: str = ""
    is_reserved: bool = False


NodesOnHosts = Mapping[str, tuple[str, Sequence[int]]]  # by id: the host, and the GPUs of it


def host_spaces(pools: Sequence[Pool], hosts: Sequence[OwnHost], nodes: NodesOnHosts, now_ms: int) -> list[HostSpace]:
    """`nodes`: those on which every run may leave, or nobody is. What is kept for a project is in a space of its own,
    with what is free beside it; all others see nothing of it."""
    spaces: list[HostSpace] = []
    for host in hosts:
        for project_id in sorted({"", *host.kept.values()}):
            hidden = {one.host_id: _kept_for_others(one, project_id) for one in hosts}
            spaces += _spaces_of(pools, hosts, host, nodes, now_ms, hidden, project_id)
    return spaces


def reserved_spaces(
    pools: Sequence[Pool], hosts: Sequence[OwnHost], nodes: NodesOnHosts, now_ms: int
) -> list[HostSpace]:
    """Of what is kept for a project that alone: nobody else has a claim to it, whatever quotas and limits are."""
    pools = [replace(pool, most_gpus=None) for pool in pools]
    spaces: list[HostSpace] = []
    for host in hosts:
        alone = replace(host, awaited={})
        every = {gpu.index for gpus in kinds_of(host).values() for gpu in gpus}
        for project_id in sorted(set(host.kept.values())):
            hidden = {host.host_id: every - {index for index, whose in host.kept.items() if whose == project_id}}
            found = _spaces_of(pools, [alone], alone, nodes, now_ms, hidden, project_id)
            spaces += [replace(one, is_reserved=True) for one in found]
    return spaces


def _kept_for_others(host: OwnHost, project_id: str) -> set[int]:
    return {index for index, whose in host.kept.items() if whose != project_id}


def _without(host: OwnHost, given: Iterable[int], hidden: Mapping[str, Iterable[int]]) -> OwnHost:
    """With what is given free again, and what is hidden out of reach."""
    taken = {*host.taken} - {*given} | {*hidden.get(host.host_id, ())}
    return replace(host, taken=tuple(sorted(taken)), kept={})


def _spaces_of(
    pools: Sequence[Pool],
    hosts: Sequence[OwnHost],
    host: OwnHost,
    nodes: NodesOnHosts,
    now_ms: int,
    hidden: Mapping[str, set[int]],
    project_id: str,
) -> Iterator[HostSpace]:
    """Of one of the hosts. `hidden`: by host, GPUs that are out of reach."""
    here = {node_id: indices for node_id, (host_id, indices) in nodes.items() if host_id == host.host_id}
    if not here:
        return
    given = {index for indices in here.values() for index in indices}
    others = [_without(one, (), hidden) for one in hosts if one.host_id != host.host_id]
    freed = _by_place(offers_of(pools, [*others, _without(host, given, hidden)], now_ms))
    own = of_nobody(host, here)
    free = _by_place(offers_of(pools, [*others, _without(host, (), hidden)], now_ms))
    for place, offers in sorted(freed.items()):
        if place.partition("/")[0] != host.host_id:
            continue
        of_kind = {gpu.index for gpu in kinds_of(host)[offers[0].gpu_type]}
        usable = {node_id: set(own[node_id]) - hidden.get(host.host_id, set()) for node_id in here}
        left = {node_id: len(usable[node_id]) for node_id, indices in here.items() if of_kind.issuperset(indices)}
        left = {node_id: gpus for node_id, gpus in left.items() if gpus}
        if left:
            free_now = max((one.gpu_count for one in free.get(place, ())), default=0)
            yield HostSpace(place, free_now, offers, left, project_id)


def _by_place(offers: Sequence[Offer]) -> dict[str, tuple[Offer, ...]]:
    found: dict[str, tuple[Offer, ...]] = {}
    for offer in offers:
        if not offer.spot_only:
            found[offer.host] = (*found.get(offer.host, ()), offer)
    return found


def of_nobody(host: OwnHost, nodes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Which GPUs are anybody's once each of these nodes is gone: what is lent goes back to who has lent it."""
    return {node_id: tuple(one for one in indices if one not in host.lent) for node_id, indices in nodes.items()}
