"""The rows of a job as its bundle holds them: checked before they were sent, one JSON object per line."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allpass.recipe.settings import ADAPTER_FOLDER
from allpass.recipe.travelling import ENCODED_NAME

FACTS_NAME = "recipe.json"  # by it the agent knows a job of the recipe
TRAIN_NAME = "train.jsonl"
HELD_OUT_NAME = "held_out.jsonl"


@dataclass(frozen=True)
class Data:
    """`shape` says which fields rows have: prompt (and completion), messages, text, labelled (text and label),
    or pair and pair_messages (prompt, chosen and rejected).

    `labels`: all that there are, in the order of their numbers; empty unless labelled. `adapter`: the folder of one
    that was sent along, to go on from. `edition`: of the arithmetic that the job is to begin with; None: rows that were
    packed before there was more than one. `encoded`: the file of the same rows, encoded where they were submitted."""

    shape: str
    labels: tuple[str, ...]
    train: tuple[dict[str, Any], ...]
    held_out: tuple[dict[str, Any], ...]
    adapter: Path | None = None
    edition: int | None = None
    encoded: Path | None = None


def load(folder: Path) -> Data:
    """What `allpass.recipe.packing` put into the bundle."""
    facts = json.loads((folder / FACTS_NAME).read_text(encoding="utf-8"))
    adapter, encoded = folder / ADAPTER_FOLDER, folder / ENCODED_NAME
    return Data(
        shape=facts["shape"],
        labels=tuple(facts["labels"]),
        train=_lines(folder / TRAIN_NAME),
        held_out=_lines(folder / HELD_OUT_NAME),
        adapter=adapter if adapter.is_dir() else None,
        edition=facts.get("edition"),
        encoded=encoded if encoded.is_file() else None,
    )


def load_held_out(folder: Path, most: int) -> Data:
    """The first held-out rows alone, in the place of all."""
    facts = json.loads((folder / FACTS_NAME).read_text(encoding="utf-8"))
    found = _lines(folder / HELD_OUT_NAME, most)
    return Data(
        shape=facts["shape"],
        labels=tuple(facts["labels"]),
        train=found,
        held_out=found,
        edition=facts.get("edition"),
    )


def _lines(path: Path, most: int | None = None) -> tuple[dict[str, Any], ...]:
    if not path.exists():
        return ()
    with path.open(encoding="utf-8") as file:
        return tuple(json.loads(line) for line in itertools.islice(file, most))
