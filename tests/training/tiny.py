"""Models that are made on the spot, as `examples/tiny_model.py` makes them, and rows as a bundle has them."""

from __future__ import annotations

import json
import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.training.scripts import EXAMPLES
from workers.trainer import rows

_MADE = runpy.run_path(str(EXAMPLES / "tiny_model.py"))
byte_tokenizer, llama, bert = _MADE["byte_tokenizer"], _MADE["llama"], _MADE["bert"]


def shared_llama(folder: Path) -> str:
    """One that other users may read, as user code on machines is: weights are written for their owner only."""
    model: str = llama(folder)
    for file in folder.iterdir():
        file.chmod(0o644)
    return model


def write_rows(
    folder: Path,
    shape: str,
    train: Sequence[Mapping[str, Any]],
    held_out: Sequence[Mapping[str, Any]] = (),
    labels: Sequence[str] = (),
    **facts: Any,
) -> Path:
    """Rows as a bundle has them, with more `facts` of them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / rows.FACTS_NAME).write_text(json.dumps({"shape": shape, "labels": list(labels), **facts}))
    for name, some in ((rows.TRAIN_NAME, train), (rows.HELD_OUT_NAME, held_out)):
        (folder / name).write_text("".join(json.dumps(dict(row)) + "\n" for row in some))
    return folder
