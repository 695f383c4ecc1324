"""What a simulation's own machines have shown about how long machines live; kept as the service keeps it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.core.machine_lives import Lived, MachineLives, fading
from app.core.model.node import Tier
from app.core.model.snapshot import NodeView

Kind = tuple[str, Tier, str, bool]  # provider, tier, type of GPU, and whether it is bid for


@dataclass(slots=True)
class _Seen:
    at_ms: int
    lived_ms: float = 0.0
    failures: float = 0.0

    def add(self, lived_ms: int, failures: int, now_ms: int) -> None:
        share = fading(now_ms - self.at_ms)
        self.lived_ms, self.failures = self.lived_ms * share + lived_ms, self.failures * share + failures
        self.at_ms = now_ms


class MachineHistory:
    """Of the machines that are gone, by kind."""

    def __init__(self) -> None:
        self._seen: dict[Kind, _Seen] = {}

    def ended(self, view: NodeView, lived_ms: int, *, failed: bool, now_ms: int) -> None:
        """A machine is gone, after so long."""
        seen = self._seen.setdefault(_kind(view), _Seen(now_ms))
        seen.add(lived_ms, int(failed), now_ms)

    def lives(self, present: Iterable[tuple[NodeView, int]], now_ms: int) -> MachineLives:
        """With those that are `present`, and how long they have lived."""
        rows = []
        for kind, seen in self._seen.items():
            seen.add(0, 0, now_ms)
            rows.append(_lived(kind, seen.lived_ms, seen.failures))
        rows += [_lived(_kind(view), float(lived_ms), 0.0) for view, lived_ms in present]
        return MachineLives(rows)


def _kind(view: NodeView) -> Kind:
    return view.provider, view.tier, view.gpu_type, view.interruptible


def _lived(kind: Kind, lived_ms: float, failures: float) -> Lived:
    provider, tier, gpu_type, interruptible = kind
    return Lived(provider, tier, gpu_type, "", lived_ms, failures, interruptible)
