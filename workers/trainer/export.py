"""What a training leaves: the adapter in PEFT's own format or the whole model, the tokenizer, and a summary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workers.trainer.model import Prepared

SUMMARY_NAME = "training.json"


def write(folder: Path, prepared: Prepared, summary: Mapping[str, Any]) -> None:
    """Fill `folder`. The same model gives the same bytes in every process."""
    model = prepared.model
    for config in getattr(model, "peft_config", {}).values():
        for name in ("target_modules", "modules_to_save"):
            names = getattr(config, name, None)
            if isinstance(names, (set, list)):  # PEFT would write a set in the order that this process has it in
                setattr(config, name, sorted(names))
    model.save_pretrained(folder)
    prepared.tokenizer.save_pretrained(folder)
    (folder / SUMMARY_NAME).write_text(json.dumps(summary, indent=2, sort_keys=True) + "\n", encoding="utf-8")
