"""The habits of Lambda that can be switched, and the faults of its own kind.

Which fact each one plays is in docs/guides/lambda.md.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from providers.emulators.faults import FaultKind
from providers.emulators.gpu_faults import BAD_GPUS, bad_gpus
from providers.emulators.switches import Value

FIRST_SSH_KEY = "allpass"  # the account has it from the beginning
GONE_IS_404, GONE_IS_TERMINATED = "404", "terminated"
OPS = ("types", "launch", "list", "get", "rename", "terminate", "restart", "keys", "other")

NO_CAPACITY = "no_capacity"  # a launch is refused though its region was just listed; args.places: what the words name
NEVER_READY = "never_ready"  # the launch succeeds, the machine never leaves booting
BOOT_SLOW = "boot_slow"  # it boots `ms` later
CLOUD_INIT_FAILS = "cloud_init_fails"  # it becomes active, and its user data never runs
CLOUD_INIT_SLOW = "cloud_init_slow"  # it becomes active, and its user data (a shell script) runs `ms` later
UNHEALTHY = "unhealthy"  # it becomes unhealthy `ms` after it was active
PARTIAL_LIST = "partial_list"  # a listing lacks the newest `args.hide` machines
REFUSE_TERMINATE = "refuse_terminate"  # with args.code, else global/unknown, though nothing speaks against it

_LAUNCH = frozenset({"launch"})
KINDS: Mapping[str, FaultKind] = {
    NO_CAPACITY: FaultKind(ops=_LAUNCH, args={"places": list}),
    NEVER_READY: FaultKind(ops=_LAUNCH),
    BOOT_SLOW: FaultKind(ops=_LAUNCH, needs_ms=True),
    CLOUD_INIT_FAILS: FaultKind(ops=_LAUNCH),
    CLOUD_INIT_SLOW: FaultKind(ops=_LAUNCH, needs_ms=True),
    UNHEALTHY: FaultKind(ops=_LAUNCH, needs_ms=True),
    PARTIAL_LIST: FaultKind(ops=frozenset({"list"}), args={"hide": int}),
    BAD_GPUS: bad_gpus("launch"),
    REFUSE_TERMINATE: FaultKind(ops=frozenset({"terminate"}), args={"code": str}),
}
SWITCHES: Mapping[str, Value] = {
    "rate_limits": True,  # one call a second, one launch in twelve, times the speed
    "refuse_terminate_while_booting": False,
    "gone_is": GONE_IS_404,  # what GET says of a machine that has left the list: 404 or terminated
    "private_ips": True,  # False: machines launched from now on never get a private address
    "cloud_init_fails_ppm": 0,  # of a million machines, so many never run their user data
    "gpu_quota": 0,  # GPUs that the account may have at once; 0: no limit
    "account_inactive": False,
}


def chance(seed: int, what: str, number: int, ppm: int) -> bool:
    """Whether this strikes the machine with this number: the same answer for the same seed."""
    return random.Random(f"{seed}/{what}/{number}").randrange(1_000_000) < ppm  # noqa: S311 - a model, not a secret
