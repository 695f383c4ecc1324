"""How one account at Lambda is used."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_URL = "https://cloud.lambda.ai"


@dataclass(frozen=True, slots=True)
class LambdaOptions:
    """`ssh_key` is the name of a key that the account has: a launch must name exactly one, though nothing uses it.

    `regions`: only offers there; none: everywhere. `startup_ms` is the mean of a machine with one GPU. The two
    `..._every_ms` are the account's limits of 1 s and 12 s, with a margin for what the network does to the distance
    between two calls; they are kept across all processes that share the pace.
    """

    api_key: str
    ssh_key: str
    base_url: str = DEFAULT_URL
    regions: tuple[str, ...] = ()
    startup_ms: int = 255_590
    startup_deadline_ms: int = 1_800_000
    create_grace_ms: int = 60_000
    call_every_ms: int = 1_100
    launch_every_ms: int = 12_500
    timeout_s: float = 30.0
