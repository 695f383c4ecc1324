"""How a fine-tuning by the built-in recipe is told to cut its steps on the GPU that it got."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allpass.recipe.packing import SCRIPT_NAME
from allpass.recipe.settings import CUT


def laid_out(parameters: Any, entrypoint: str, template: Mapping[str, Any], layout: Any) -> Any:
    """The parameters, with what their owner has left open as it was planned for this run. Among the parameters, since
    trainers know these from before there were plans: machines outlive upgrades."""
    if entrypoint != SCRIPT_NAME or not isinstance(parameters, dict) or not layout:
        return parameters
    stated = template.get("training") or {}
    found = {name: layout[name] for name in CUT if name in layout and stated.get(name) is None}
    return {**found, **parameters}
