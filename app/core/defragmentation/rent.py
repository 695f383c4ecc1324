"""What a vacated node saves and costs, in micro-dollars."""

from __future__ import annotations

from app.core.defragmentation.packed_fleet import PackedFleet

_SECONDS_PER_HOUR = 3_600


class Rent:
    """The rent still to be paid of every node, kept up to date with the releases that were accepted."""

    def __init__(self, fleet: PackedFleet, now_s: int, least_return: float) -> None:
        self._now_s, self._least_return = now_s, least_return
        self._micros = [_rent_micros(fleet, node, now_s) for node in range(len(fleet.nodes))]

    def judge(self, fleet: PackedFleet, node: int, begun: int) -> tuple[int, int, str] | None:
        """Saved and cost of the moves of the log from `begun` on, and why; None where they do not pay."""
        touched = {end for _, *ends in fleet.log[begun:] for end in ends}
        after = {one: _rent_micros(fleet, one, self._now_s) for one in touched}
        spared = self._micros[node] - after[node]
        longer = sum(after[one] - self._micros[one] for one in touched if one != node)
        moved = [fleet.tasks[task].move_cost_micros for task, _, _ in fleet.log[begun:]]
        cost_micros = longer + sum(moved)
        if spared <= max(1.0, self._least_return) * cost_micros or spared <= 0:
            return None
        for one, micros in after.items():
            self._micros[one] = micros
        return spared, cost_micros, _reason(fleet.nodes[node].id, spared, longer, moved)


def _rent_micros(fleet: PackedFleet, node: int, now_s: int) -> int:
    """From now until its last task is expected to end, or until what is owed anyway."""
    rented = fleet.nodes[node]
    ends_s = max((fleet.tasks[task].ends_s for task in fleet.on[node]), default=now_s)
    return rented.price_micros_per_hour * (max(ends_s, rented.paid_until_s, now_s) - now_s) // _SECONDS_PER_HOUR


def _reason(node_id: str, spared: int, longer: int, moved: list[int]) -> str:
    kept = f", and keeps other nodes for ${longer / 1e6:.2f} longer" if longer > 0 else ""
    plural = "" if len(moved) == 1 else "s"
    return (
        f"ending the rent of {node_id} now saves ${spared / 1e6:.2f}; it takes {len(moved)} move{plural} "
        f"at ${sum(moved) / 1e6:.2f}{kept}"
    )
