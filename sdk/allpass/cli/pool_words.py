"""How `allpass pool` shows pools and the hosts in them."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from allpass.cli import screen, words
from allpass.cli.screen import Cell

if TYPE_CHECKING:
    from allpass.wire.pools import Pool, PoolHost

_STYLES = {"open": "green", "ready": "green", "draining": "yellow", "leaving": "yellow", "closed": "yellow"}


def tell_pool(found: Pool, *, as_json: bool) -> None:
    if as_json:
        screen.print_json(found)
        return
    facts = [
        ("pool", f"{found.name} ({found.state})"),
        ("launcher", found.launcher),
        ("price", words.price(found.price_per_gpu_hour) + " per GPU" + _spot(found)),
        ("projects", ", ".join(found.projects) or "all"),
        ("hours", found.hours or "always"),
        ("limit", "all GPUs" if found.most_gpus is None else f"{found.most_gpus} GPUs at once"),
    ]
    if found.grace_s is not None:
        facts.append(("grace", f"{words.duration(found.grace_s)} for jobs that leave for another one"))
    if found.quotas or found.host_quotas:
        facts.append(("quotas", ", ".join([*_gpu_quotas(found), *_host_quotas(found)])))
    if found.labels:
        facts.append(("labels", " ".join(f"{name}={value}" for name, value in found.labels.items())))
    if found.drains_at is not None:
        facts.append(("empty by", words.moment(found.drains_at)))
    screen.print_facts(facts)


def _gpu_quotas(found: Pool) -> list[str]:
    return [f"{project} {gpus}" for project, gpus in sorted(found.quotas.items())]


def _host_quotas(found: Pool) -> list[str]:
    """With what is not the project's own now."""
    told = []
    for project, quotas in sorted(found.host_quotas.items()):
        for one in quotas:
            lacks = [f"{one.short_gpus} GPUs are missing"] if one.short_gpus else []
            lacks += [f"{one.blocked_gpus} are still used by guaranteed jobs of others"] if one.blocked_gpus else []
            told.append(
                f"{project} {one.hosts}x{one.gpus}x{one.gpu_type}" + (f" ({', '.join(lacks)})" if lacks else "")
            )
    return told


def pool_row(one: Pool) -> list[Cell | str]:
    state = Cell(one.state, _STYLES.get(one.state, "red"))
    price = words.price(one.price_per_gpu_hour)
    if one.spot_share < 1:
        price += f", spot {words.price(_spot_price(one))}"
    return [one.name, state, str(len(one.hosts)), _use_of(one.hosts), price, one.launcher, one.hours or "always"]


def host_row(one: PoolHost, *, labels: bool = False) -> list[Cell | str]:
    """`labels`: with a column of them."""
    state = one.state if one.why is None else f"{one.state}: {one.why}"
    heard = max(0.0, (datetime.now(timezone.utc) - one.heard_at).total_seconds())
    return [
        one.name,
        one.id,
        Cell(state, _STYLES.get(one.state, "red")),
        _use_of([one]),
        f"{words.duration(heard)} ago",
        *([" ".join(f"{name}={value}" for name, value in one.labels.items())] if labels else []),
    ]


def _spot(one: Pool) -> str:
    return f"; spot jobs {words.price(_spot_price(one))} ({one.spot_share:.6g} of it)" if one.spot_share < 1 else ""


def _spot_price(one: Pool) -> int:
    return round(one.price_per_gpu_hour * one.spot_share)


def _use_of(hosts: list[PoolHost]) -> str:
    """`2 of 8 A100`, by kind."""
    total: dict[str, int] = {}
    used: dict[str, int] = {}
    for host in hosts:
        for gpu in host.gpus:
            total[gpu.type] = total.get(gpu.type, 0) + 1
            used[gpu.type] = used.get(gpu.type, 0) + (gpu.index in host.used or gpu.busy)
        if not host.gpus and host.cpus:
            total["CPU hosts"] = total.get("CPU hosts", 0) + 1
            used["CPU hosts"] = used.get("CPU hosts", 0) + bool(host.used)
    return ", ".join(f"{used[kind]} of {number} {kind}" for kind, number in sorted(total.items())) or "-"
