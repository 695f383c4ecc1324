"""Runs the built-in recipe on several played GPUs: the first process here, the others forked from one that has loaded
all they need."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.training.recipes import Course

CHOSEN: Mapping[str, Any] = MappingProxyType({"micro_batch": 2, "checkpointing": False})


@dataclass
class OnGpus(Course):
    """Each part on so many GPUs: of more parts than are named, on as many as the last. `training`: what of the cut the
    owner has chosen, in the job's template."""

    counts: tuple[int, ...] = (1,)
    training: dict[str, Any] = field(default_factory=lambda: dict(CHOSEN))

    def _environment(self, place: Path, resume_from: Path | None) -> dict[str, str]:
        found = super()._environment(place, resume_from)
        count = self.counts[min(len(self.parts), len(self.counts)) - 1]
        return {**found, **template_of(place, count, self.training)}


def template_of(folder: Path, count: int, training: Mapping[str, Any] = CHOSEN) -> dict[str, str]:
    """What tells a job so, in its environment."""
    path = folder / "template.json"
    path.write_text(json.dumps({"gpu": {"count": count}, "training": dict(training)}))
    return {"ALLPASS_TEMPLATE_FILE": str(path)}
