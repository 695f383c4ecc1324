"""Algorithm 1 of the Frenzy paper, line by line, over lists: what the index has to equal."""

from __future__ import annotations

from collections.abc import Sequence

from app.core.placement import ClusterNode, GpuNeed, NodeShare


def literal(machines: Sequence[ClusterNode], needs: Sequence[GpuNeed]) -> tuple[GpuNeed, tuple[NodeShare, ...]] | None:
    """HAS: the first plan for which enough idle GPUs of sufficient memory exist, and where its GPUs are taken.

    Line 15 is mended to `>=`. Nodes without idle GPUs are left out; fewest idle GPUs first, ties by (GPU memory, node
    id).
    """
    memory = {machine.node_id: machine.memory_bytes for machine in machines}
    idle = {machine.node_id: machine.idle for machine in machines}
    available = [memory[node] for node in idle for _ in range(idle[node])]
    chosen = None
    for need in needs:
        if sum(1 for size in available if size >= need.memory_bytes) >= need.gpus:
            chosen = need
            break
    if chosen is None:
        return None
    left, allocation = chosen.gpus, []
    while left > 0:
        fit = min(memory[node] for node in idle if idle[node] > 0 and memory[node] >= chosen.memory_bytes)
        ranked = [node for node in idle if idle[node] > 0 and memory[node] >= fit]
        ranked.sort(key=lambda node: (idle[node], memory[node], node))
        for node in ranked:
            if idle[node] >= left:
                allocation.append(NodeShare(node, left))
                idle[node] -= left
                left = 0
                break
        else:
            node = ranked[-1]
            allocation.append(NodeShare(node, idle[node]))
            left -= idle[node]
            idle[node] = 0
    return chosen, tuple(allocation)


def ours(machines: Sequence[ClusterNode], need: GpuNeed) -> tuple[NodeShare, ...] | None:
    """Our ranker over lists: the whole job on one node, else on several of one place, all by sorting."""
    fitting = [
        machine
        for machine in machines
        if machine.idle > 0 and machine.memory_bytes >= need.memory_bytes and need.gpu_type in {None, machine.gpu_type}
    ]
    whole = [machine for machine in fitting if machine.idle >= need.gpus]
    if whole:
        best = min(whole, key=lambda one: (one.memory_bytes, one.idle, one.price_micros, one.node_id))
        return (NodeShare(best.node_id, need.gpus),)
    candidates = []
    for place in {machine.place for machine in fitting} - {None}:
        members = [machine for machine in fitting if machine.place == place]
        if sum(machine.idle for machine in members) < need.gpus:
            continue
        shares, price, left = [], 0, need.gpus
        while left > 0:
            enough = [one for one in members if one.idle >= left]
            if enough:
                machine = min(enough, key=lambda one: (one.memory_bytes, one.idle, one.price_micros, one.node_id))
            else:
                machine = min(members, key=lambda one: (-one.idle, one.memory_bytes, one.price_micros, one.node_id))
            count = min(left, machine.idle)
            shares.append(NodeShare(machine.node_id, count))
            price += machine.price_micros * count
            left -= count
            members.remove(machine)
        candidates.append((len(shares), price, place, tuple(shares)))
    return min(candidates)[3] if candidates else None  # type: ignore[type-var]  # tuples whose firsts differ
