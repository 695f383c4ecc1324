"""Which machine of a job on several this is, as Allpass says in its environment."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Optional


class Seat(NamedTuple):
    """`rank`: of the machine, 0 leads, and is reached at `address` and `port`. `key`: what only machines of this
    run know."""

    nodes: int
    rank: int
    address: str
    port: int
    key: str

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Optional[Seat]:
        """None for a job on one machine. Raises ValueError, naming the variable, for what makes no sense."""
        if environment.get("ALLPASS_NODES", "1") in ("", "1"):
            return None
        nodes = _whole(environment, "ALLPASS_NODES", 1, 2**16)
        rank = _whole(environment, "ALLPASS_NODE_RANK", 0, nodes - 1)
        address = environment.get("MASTER_ADDR", "")
        if not address:
            raise ValueError("MASTER_ADDR is missing: it says where the first machine of the job is reached")
        port = _whole(environment, "MASTER_PORT", 1, 2**16 - 1)
        key = environment.get("ALLPASS_NODES_KEY", "")
        if not key:
            raise ValueError("ALLPASS_NODES_KEY is missing: machines of one run know each other by it")
        return None if nodes == 1 else cls(nodes, rank, address, port, key)


def _whole(environment: Mapping[str, str], name: str, least: int, most: int) -> int:
    told = environment.get(name, "")
    if not (told.isascii() and told.isdigit() and least <= int(told[:9]) <= most):
        raise ValueError(f"{name} is {told[:50]!r}: a number from {least} to {most} was expected")
    return int(told)
