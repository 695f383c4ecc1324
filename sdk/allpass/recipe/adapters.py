"""An adapter that a fine-tuning goes on from: read and checked where it is submitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allpass.errors import InvalidInput
from allpass.recipe.settings import ADAPTER_FOLDER
from allpass.recipe.shapes import find_json

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
LARGEST_BYTES = 90 * 1024 * 1024  # of weights that are sent along: a bundle has a limit
_ITS_OWN = ("lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "use_rslora", "use_dora")


@dataclass(frozen=True)
class Adapter:
    """`settings`: what the recipe has to know of it. `files`: by their path in the bundle; none of one of the hub."""

    settings: Mapping[str, Any]
    files: Mapping[str, bytes]
    base_model: str | None


def read_adapter(settings: Mapping[str, Any]) -> Adapter | None:
    """The adapter that the settings name, if they do.

    Raises InvalidInput for what is no LoRA adapter in PEFT's format, for one that is too large to be sent, and for
    settings that are the adapter's own.
    """
    name = settings.get("adapter")
    if name is None:
        return None
    for field in _ITS_OWN:
        if field in settings:
            message = f"{field}: {settings[field]!r} is given, but the adapter {name!r} has its own"
            raise InvalidInput(message, hint=f"leave {field} or adapter out")
    config = find_json(str(name), CONFIG_NAME)
    is_folder = Path(str(name)).is_dir()
    if config is None:
        where = f"has no {CONFIG_NAME} that can be read" if is_folder else "is neither a folder nor known at the hub"
        raise InvalidInput(f"adapter: {name!r} {where}", hint="the folder that `allpass download` made")
    if config.get("peft_type") != "LORA":
        kind = config.get("peft_type")
        raise InvalidInput(f"adapter: {name!r} is of the kind {kind!r}", hint="an adapter of the kind 'LORA'")
    files = _files(Path(str(name))) if is_folder else {}
    base = config.get("base_model_name_or_path")
    return Adapter(_facts(str(name), config), files, base if isinstance(base, str) else None)


def _facts(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Only what the plan and the summary speak of: PEFT reads the rest on the machine."""
    found = {
        "lora_rank": config.get("r"),
        "lora_alpha": config.get("lora_alpha"),
        "lora_dropout": config.get("lora_dropout", 0.0),
        "lora_targets": config.get("target_modules"),
        "use_rslora": bool(config.get("use_rslora")),
        "use_dora": bool(config.get("use_dora")),
    }
    rank, alpha = found["lora_rank"], found["lora_alpha"]
    if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= 65_536:
        raise InvalidInput(f"adapter: {name!r} says r: {rank!r}, which is no rank", hint="an adapter with a rank")
    if not isinstance(alpha, int):  # PEFT allows parts of one; the machine reads it from the adapter itself
        del found["lora_alpha"]
    if not isinstance(found["lora_targets"], list) or not found["lora_targets"]:
        del found["lora_targets"]  # all-linear, or a pattern
    return found


def _files(folder: Path) -> dict[str, bytes]:
    weights = folder / WEIGHTS_NAME
    try:
        size_bytes = weights.stat().st_size
        if size_bytes > LARGEST_BYTES:
            size = f"{size_bytes / 2**20:.0f} MiB, and {LARGEST_BYTES // 2**20} MiB can be sent along"
            hint = "put it into a repository of the hub, and name that"
            raise InvalidInput(f"adapter: {weights} has {size}", hint=hint)
        return {
            f"{ADAPTER_FOLDER}/{CONFIG_NAME}": (folder / CONFIG_NAME).read_bytes(),
            f"{ADAPTER_FOLDER}/{WEIGHTS_NAME}": weights.read_bytes(),
        }
    except OSError as error:
        raise InvalidInput(
            f"adapter: {weights} cannot be read: {error.strerror}", hint="save it as safetensors"
        ) from error
