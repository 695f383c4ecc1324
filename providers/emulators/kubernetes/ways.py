"""What a test can switch and what can go wrong in the emulated cluster. Each is described in the guide's table."""

from __future__ import annotations

from collections.abc import Mapping

from providers.emulators.faults import FaultKind
from providers.emulators.gpu_faults import BAD_GPUS, bad_gpus
from providers.emulators.switches import Value

_VERBS = ("create", "get", "list", "watch", "patch", "delete")
_PLURALS = ("jobs", "pods", "secrets", "resourcequotas", "events", "nodes")
OPS = (*(f"{verb}_{plural}" for verb in _VERBS for plural in _PLURALS), "evict", "log", "describe", "other")

EXPIRED = "expired"  # 410 Gone: a list cannot go on, a watch says so as an event
CUT = "cut"  # a watch breaks off without a word after the next event that it tells
DENIED = "denied"  # an admission webhook refuses it; args.message
NEVER_READY = "never_ready"  # its pod is never scheduled
PULL_ERROR = "pull_error"  # its image cannot be pulled
PARTIAL_LIST = "partial_list"  # a list lacks `args.hide` objects
MALFORMED = "malformed"  # a list holds one more object, which makes no sense

_WATCHES = frozenset(f"watch_{plural}" for plural in _PLURALS)
_LISTS = frozenset(f"list_{plural}" for plural in _PLURALS)
_CREATES = frozenset(f"create_{plural}" for plural in _PLURALS)
_JOBS = frozenset({"create_jobs"})
KINDS: Mapping[str, FaultKind] = {
    EXPIRED: FaultKind(ops=_WATCHES | _LISTS),
    CUT: FaultKind(ops=_WATCHES),
    DENIED: FaultKind(ops=_CREATES, args={"message": str}),
    NEVER_READY: FaultKind(ops=_JOBS),
    PULL_ERROR: FaultKind(ops=_JOBS),
    BAD_GPUS: bad_gpus("create_jobs"),
    PARTIAL_LIST: FaultKind(ops=_LISTS, args={"hide": int}, needed=frozenset({"hide"})),
    MALFORMED: FaultKind(ops=_LISTS),
}
SWITCHES: Mapping[str, Value] = {
    "page_limit": 0,  # a list gives no more objects at once, whatever is asked for; 0: as asked
    "kueue_admits": True,  # jobs with a queue are let in at once; False: they stay suspended
    "forbidden": "",  # a verb and a plural, e.g. "create jobs": refused by RBAC
    "crowd": 0,  # so many pods of others are in the namespace `default`
    "bookmark_every_ms": 60_000,
}
