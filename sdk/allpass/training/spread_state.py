"""Training states of which several processes wrote a part each (`training_state-2-of-4`), read by any number of them.

Tensors that are spread (FSDP2) are cut along their first dimension: all parts in the order of the processes are the
whole tensor. Files are mapped where that can be, so of what others wrote only what is taken is read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Iterator, Mapping, Tuple

from allpass.training.safe_file import read_tensors
from allpass.training.torch_state import STATE_NAME, load_into, load_weights, own_part, trainable_weights
from allpass.training.tree import Parts, decode

_MOST_PROCESSES = 4096
_FIRST = re.compile(rf"{STATE_NAME}-1-of-([1-9][0-9]*)")


def part_name(own: int, count: int) -> str:
    """Of the files of one of `count` processes; `own` begins with 0."""
    return f"{STATE_NAME}-{own + 1}-of-{count}"


def names_in(folder: Path) -> "Tuple[str, ...]":
    """The files of a state, without their endings, in the order of the processes. Raises ValueError where there is
    none, or one process's part of it is missing."""
    if (folder / f"{STATE_NAME}.json").is_file():
        return (STATE_NAME,)
    there = {path.stem for path in folder.glob(f"{STATE_NAME}-*.json")}
    counts = [int(found.group(1)) for found in map(_FIRST.fullmatch, there) if found]
    if len(counts) != 1 or counts[0] > _MOST_PROCESSES:
        raise ValueError(f"{folder} holds no training state of one process, or of all of several")
    names = tuple(part_name(own, counts[0]) for own in range(counts[0]))
    missing = [name for name in names if name not in there]
    if missing:
        raise ValueError(f"{folder} holds a part of a training state: {missing[0]}.json is missing")
    return names


def load_spread(folder: Path) -> Any:
    """The state in `folder`, as `load_tree` gives it, with `Parts` where tensors are spread. What each process has of
    its own (random generators) is the first one's. Raises ValueError where the parts are of different trainings."""
    names = names_in(folder)
    trees = [json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in names]
    files = [read_tensors(folder / f"{name}.safetensors") for name in names]
    alike = all(tree.get(kind) == trees[0].get(kind) for tree in trees for kind in ("step", "weights", "optimizer"))
    if not alike or any(file.keys() != files[0].keys() for file in files):
        raise ValueError(f"{folder} holds parts of different training states")
    spread = set(_spread_in(trees[0]))
    named = {
        name: Parts(tuple(file[name] for file in files)) if name in spread else files[0][name] for name in files[0]
    }
    return decode(trees[0], named)


def resume_spread(folder: Path, model: Any, parts: Mapping[str, Any]) -> Any:
    """Give the model and `parts` (optimizer, scheduler, scaler; None where there is none) the state in `folder`,
    whoever wrote it, and return it. Where the model is spread, this process takes what it has of each tensor."""
    state = load_spread(folder)
    load_weights(model, state["weights"])
    load_into({**state, "optimizer": _of(state["optimizer"], parts.get("optimizer"))}, folder, **parts)
    return state


def own_weights(model: Any, weights: Mapping[str, Any]) -> "dict[str, Any]":
    """Of weights as they were saved, what this process has of each: a `Shard` where the model is spread."""
    own = trainable_weights(model)
    return {name: own_part(value, own[name]) if name in own else value for name, value in weights.items()}


def _of(saved: Any, optimizer: Any) -> Any:
    if saved is None or optimizer is None:
        return saved
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    of = dict(zip(numbers, parameters))
    state = {
        number: {name: own_part(value, of[number]) for name, value in one.items()} if number in of else one
        for number, one in saved["state"].items()
    }
    return {**saved, "state": state}


def _spread_in(skeleton: Any) -> "Iterator[str]":
    """Names of the tensors that are spread."""
    if isinstance(skeleton, list):
        for item in skeleton:
            yield from _spread_in(item)
    elif isinstance(skeleton, dict):
        for key, item in skeleton.items():
            if key == "$shard":
                yield item
            else:
                yield from _spread_in(item)
