"""Which shapes may be offered now: their limits, the quotas of the namespace, and machines that wait in vain."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.ports.clock import Clock
from app.ports.provider import MachineStatus
from providers.kubernetes.options import NAME, KubeOptions, KubeShape
from providers.kubernetes.reading import KubeMachine, at

_GIB = 1024**3
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?")
_FACTORS = {"": Fraction(1), "m": Fraction(1, 1000)}
_FACTORS |= {letter: Fraction(1000**power) for power, letter in enumerate("kMGTP", 1)}
_FACTORS |= {f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTP", 1)}
_LIVE = frozenset({MachineStatus.BOOTING, MachineStatus.RUNNING, MachineStatus.STOPPED})


class ShapeRoom:
    """Remembers for a while which shapes had a machine that waited in vain, so that giving that machine up does not
    bring the next one at once."""

    def __init__(self, options: KubeOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._barred_until_ms: dict[str, int] = {}

    def offers(self, machines: Sequence[KubeMachine], quotas: Iterable[Any]) -> list[Offer]:
        """One for each shape that has room."""
        self._note_waiting(machines)
        limits = list(quotas)
        return [offer_of(shape, self._options) for shape in self._options.shapes if self._has(shape, machines, limits)]

    def _note_waiting(self, machines: Iterable[KubeMachine]) -> None:
        now_ms, most_ms = self._clock.now_ms(), self._options.max_wait_ms
        for each in machines:
            if each.waits_since_ms is not None and now_ms - each.waits_since_ms > most_ms:
                self._barred_until_ms[each.shape] = now_ms + most_ms

    def _has(self, shape: KubeShape, machines: Iterable[KubeMachine], quotas: Iterable[Any]) -> bool:
        if self._barred_until_ms.get(shape.name, 0) > self._clock.now_ms():
            return False
        live = sum(1 for each in machines if each.shape == shape.name and each.machine.status in _LIVE)
        if shape.most is not None and live >= shape.most:
            return False
        return all(_leaves_room(quota, shape) for quota in quotas)


def offer_of(shape: KubeShape, options: KubeOptions) -> Offer:
    """At no price: what its machines cost, and who may have them, says the pool of the shape's name."""
    return Offer(
        provider=NAME,
        offer_id=shape.name,
        tier=Tier.OWN,
        gpu_type=shape.gpu_type,
        gpu_count=shape.gpu_count,
        gpu_memory_bytes=shape.gpu_memory_gb * _GIB,
        cpus=shape.cpus,
        memory_bytes=shape.memory_gb * _GIB,
        price_per_hour=Money(0),
        startup_ms=options.startup_ms,
        region=shape.name,
    )


def _leaves_room(quota: Any, shape: KubeShape) -> bool:
    """Whether one more machine fits, as far as the quota tells; what cannot be read forbids nothing."""
    hard, used = at(quota, "status", "hard"), at(quota, "status", "used")
    if not isinstance(hard, Mapping) or at(quota, "spec", "scopes") or at(quota, "spec", "scopeSelector"):
        return True
    for name, wanted in _wanted(shape).items():
        most, have = quantity(hard.get(name)), quantity(at(used, name) or 0)
        if most is not None and have is not None and have + wanted > most:
            return False
    return True


def _wanted(shape: KubeShape) -> dict[str, Fraction]:
    gpus, cpus, memory = Fraction(shape.gpu_count), Fraction(shape.cpus), Fraction(shape.memory_gb * _GIB)
    one = dict.fromkeys(("pods", "count/pods", "count/jobs.batch", "count/secrets", "secrets"), Fraction(1))
    told = {"cpu": cpus, "requests.cpu": cpus, "memory": memory, "requests.memory": memory, "limits.memory": memory}
    return {**one, **told, f"requests.{shape.gpu_resource}": gpus, f"limits.{shape.gpu_resource}": gpus}


def quantity(text: Any) -> Fraction | None:
    """As Kubernetes writes numbers; None for what is none."""
    found = _QUANTITY.fullmatch(str(text))
    return None if found is None else Fraction(found[1]) * _FACTORS[found[2] or ""]
