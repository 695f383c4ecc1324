"""What of a template is let in and is likely a mistake, in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from app.core.memory.catalogue import known_name, nearest_name

_NO_MODEL = '"model":null'


def warnings_of_text(template: str) -> list[str]:
    """Of a template as it is stored."""
    return [] if _NO_MODEL in template else warnings_of(json.loads(template))


def warnings_of(template: Mapping[str, Any]) -> list[str]:
    """One sentence for each. Whoever gives a model's numbers may call it whatever they like."""
    model = template.get("model")
    training = template.get("training")
    if not isinstance(model, dict) or model.get("config") or not isinstance(model.get("name"), str):
        return []
    if isinstance(training, dict) and training.get("exact"):
        return []
    told = _of_model(model["name"])
    return [] if told is None else [told]


@lru_cache(maxsize=1024)
def _of_model(name: str) -> str | None:
    if known_name(name) is not None:
        return None
    near = nearest_name(name)
    meant = f"the nearest that is known is {near!r}" if near else "none that is known is like it"
    return (
        f"template.model.name: {name!r} is not a model whose size is known, so nobody predicts the memory that the job "
        f"needs, nor keeps it from GPUs that are too small; {meant}; or say how much it takes: gpu.memory_gb"
    )
