"""The habits of RunPod that can be switched, and the faults of its own kind.

Which fact each one plays is in docs/guides/runpod.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from providers.emulators.faults import FaultKind
from providers.emulators.switches import Value

GONE_IS_404, GONE_IS_TERMINATED = "404", "TERMINATED"
OPS = ("gpus", "gpu", "create", "list", "get", "delete", "action")

NO_CAPACITY = "no_capacity"  # a create is refused though the catalog has stock; args.words: `disk` for the other reason
GHOST = "ghost"  # a create names a pod that never exists
NEVER_READY = "never_ready"  # provisioning for ever
BOOT_SLOW = "boot_slow"  # it starts `ms` later
FAILS = "fails"  # it comes to the status ERROR, and never runs
PRICE_MOVES = "price_moves"  # it costs args.percent (10) more than the catalog says
BAD_GPUS = "bad_gpus"  # its GPUs are not what was ordered: see `nvidia_smi.WRONGS`
PARTIAL_LIST = "partial_list"  # a listing lacks the newest `args.hide` pods

_CREATE = frozenset({"create"})
KINDS: Mapping[str, FaultKind] = {
    NO_CAPACITY: FaultKind(ops=_CREATE, args={"words": str}),
    GHOST: FaultKind(ops=_CREATE),
    NEVER_READY: FaultKind(ops=_CREATE),
    BOOT_SLOW: FaultKind(ops=_CREATE, needs_ms=True),
    FAILS: FaultKind(ops=_CREATE),
    PRICE_MOVES: FaultKind(ops=_CREATE, args={"percent": int}),
    BAD_GPUS: FaultKind(ops=_CREATE, args={"wrong": str}, needed=frozenset({"wrong"})),
    PARTIAL_LIST: FaultKind(ops=frozenset({"list"}), args={"hide": int}),
}
SWITCHES: Mapping[str, Value] = {
    "rate_limits": True,  # 60 calls a minute, times the speed
    "gone_is": GONE_IS_404,  # what GET says of a pod that was deleted: 404 or TERMINATED
    "balance_is_low": False,  # every create is refused with 402
    "start_finds_gpus": False,  # a stopped pod can be started again; else its GPUs are somebody else's
    "read_only_key": False,  # the key may look, and nothing else
}
WORDS: Mapping[str, str] = {
    "instances": "There are no longer any instances available with the requested specifications. Please refresh and "
    "try again.",
    "disk": "There are no longer any instances available with enough disk space.",
    "gpus": "There are not enough free GPUs on the host machine to start this pod.",
}
