"""`--pool lab:2x8xH100@0.40`: pools of machines of one's own, as a command line names them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from app.core.gpu_names import family_of
from app.core.model.money import MICROS_PER_USD, Money
from app.core.model.offer import ARM64, cpu_architecture
from app.core.model.pool import OwnHost, Pool
from app.errors import InvalidInput
from app.simulator.own.machines import OwnMachines, SimulatedPool, host_of

NONE = "none"
JOINT = "+"  # between the pools of one word
_POOL = re.compile(
    r"(?:(?P<name>[^:@+]*):)?(?:(?P<hosts>\d{1,6})x)?(?P<gpus>\d{1,6})x(?P<type>[A-Za-z][\w .-]{0,60})"
    r"(?:@\$?(?P<usd>\d{1,6}(?:\.\d{1,6})?))?"
)
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
_MOST_POOLS, _MOST_HOSTS, _MOST_GPUS, _MOST_USD = 16, 256, 64, 1_000
_HOW = (
    "write [NAME:][HOSTSx]GPUSxTYPE[@USD], for instance 8xA100, or lab:2x8xH100@0.40 for two hosts at $0.40 a GPU-hour"
)


def joined_words(words: Iterable[str]) -> str:
    """Several `--pool` as one word."""
    return JOINT.join(words)


def read_pools(text: str) -> OwnMachines | None:
    """The pools of a word, whose hosts are there from the beginning to the end; None: `none`. Raises InvalidInput."""
    if text == NONE:
        return None
    words = text.split(JOINT)
    if len(words) > _MOST_POOLS:
        raise _refused(text, f"names {len(words)} pools", f"name {_MOST_POOLS} at most")
    pools: dict[str, SimulatedPool] = {}
    hosts: list[OwnHost] = []
    for number, word in enumerate(words, 1):
        pool, own = _read_pool(word.strip(), f"pool-{number}")
        if pool.name in pools:
            raise _refused(word, f"is a second pool {pool.name}", "give each another name")
        pools[pool.name] = SimulatedPool(pool)
        hosts += own
    return OwnMachines.for_good(tuple(pools.values()), hosts)


def _read_pool(word: str, usual_name: str) -> tuple[Pool, list[OwnHost]]:
    found = _POOL.fullmatch(word)
    if found is None:
        raise _refused(word, "is no pool", _HOW)
    name = found["name"] if found["name"] is not None else usual_name
    many, gpus, gpu_type = int(found["hosts"] or 1), int(found["gpus"]), found["type"].strip()
    if not _NAME.fullmatch(name):
        raise _refused(word, f"names the pool {name!r}", "take lower-case letters, digits and -, 40 at most")
    if not 1 <= many <= _MOST_HOSTS:
        raise _refused(word, f"has {many} hosts", f"give 1 to {_MOST_HOSTS}; for more, name several pools")
    if not 1 <= gpus <= _MOST_GPUS:
        raise _refused(word, f"has {gpus} GPUs in a host", f"give 1 to {_MOST_GPUS}, as HOSTSxGPUSxTYPE")
    if family_of(gpu_type) is None:
        raise _refused(word, f"has GPUs {gpu_type!r}, which nobody knows", "name for instance A100, H100 or RTX 4090")
    if cpu_architecture(gpu_type) == ARM64:
        why = f"has GPUs {gpu_type!r}, whose hosts are Arm, where no job of a trace goes"
        raise _refused(word, why, "name GPUs of x86 hosts")
    usd = float(found["usd"] or 0)
    if usd > _MOST_USD:
        raise _refused(word, f"costs ${usd:g} a GPU-hour", f"give {_MOST_USD} at most")
    pool = Pool(name, price=Money(round(usd * MICROS_PER_USD)))
    return pool, [host_of(f"{name}-{number:03d}", name, gpus, gpu_type) for number in range(1, many + 1)]


def _refused(word: str, why: str, fix: str) -> InvalidInput:
    return InvalidInput(f"--pool: {word!r:.120} {why}; {fix}", param="pool")
