"""The whole state of a PyTorch training run, without pickle and bit for bit.

Tensors go to a safetensors file, everything else (numbers, names, nesting) to JSON beside it: both can be read by
anybody and execute nothing. torch and numpy are imported when a function needs them.

    save_training_state(folder, step=step, weights=trainable_weights(model), optimizer=optimizer)
    ...
    state = load_training_state(folder, optimizer=optimizer)
    load_weights(model, state.weights)
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

from allpass.training.safe_file import read_tensors, write_tensors
from allpass.training.tree import Parts, Shard, decode, encode, is_spread, is_tensor

STATE_NAME = "training_state"


@dataclass(frozen=True)
class TrainingState:
    """What `load_training_state` found: finished steps, weights (tensors by name) and the caller's own `data`."""

    step: int
    weights: "dict[str, Any]"
    data: Any


def save_training_state(
    folder: Path,
    *,
    step: int,
    weights: Mapping[str, Any],
    optimizer: Any = None,
    scheduler: Any = None,
    data: Any = None,
) -> None:
    """Write step, weights, the state of optimizer and scheduler, every random generator, and `data` (the position in
    the data set, say) into `folder`. Raises TypeError naming a value that only pickle could store."""
    save_tree(folder, training_tree(step=step, weights=weights, optimizer=optimizer, scheduler=scheduler, data=data))


def training_tree(
    *,
    step: int,
    weights: Mapping[str, Any],
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    data: Any = None,
) -> "dict[str, Any]":
    """What `save_training_state` writes, as a tree that refers to the live tensors."""
    return {
        "step": int(step),
        "weights": dict(weights),
        "optimizer": None if optimizer is None else optimizer.state_dict(),
        "scheduler": None if scheduler is None else scheduler.state_dict(),
        "scaler": None if scaler is None else scaler.state_dict(),
        "rng": capture_rng(),
        "data": data,
    }


def load_training_state(folder: Path, *, optimizer: Any = None, scheduler: Any = None) -> TrainingState:
    """Read what `save_training_state` wrote, load it into optimizer and scheduler, and set every random generator.

    Call it last before the training loop: whatever draws random numbers afterwards changes the course of the run.
    Raises ValueError when the checkpoint lacks a state that is asked for.
    """
    state = load_tree(folder)
    load_into(state, folder, optimizer=optimizer, scheduler=scheduler)
    restore_rng(state["rng"])
    return TrainingState(step=state["step"], weights=state["weights"], data=state["data"])


def load_into(state: Mapping[str, Any], folder: Path, **targets: Any) -> None:
    """Give each target (optimizer=..., scheduler=..., scaler=...) that is not None its state. Raises ValueError when
    the checkpoint lacks one."""
    for name, target in targets.items():
        if target is None:
            continue
        if state.get(name) is None:
            raise ValueError(f"the checkpoint in {folder} was saved without {name}: pass it when saving")
        saved = state[name]
        target.load_state_dict(_spread(saved, target) if name == "optimizer" else saved)


def _spread(saved: Any, optimizer: Any) -> Any:
    """The optimizer's state with this process's parts as parts of spread tensors, laid out as their parameters are."""
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    of = dict(zip(numbers, parameters))
    state = {
        number: {name: _as_spread(value, of[number]) for name, value in one.items()} if number in of else one
        for number, one in saved["state"].items()
    }
    return {**saved, "state": state}


def _as_spread(value: Any, like: Any) -> Any:
    if not isinstance(value, Shard):
        return value
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        value.part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def trainable_weights(model: Any) -> "dict[str, Any]":
    """The parameters that training changes, by name (with LoRA: the adapters alone), and all buffers that count."""
    weights = {name: value for name, value in model.named_parameters() if value.requires_grad}
    persistent = set(model.state_dict().keys())
    weights.update({name: value for name, value in model.named_buffers() if name in persistent})
    return weights


def load_weights(model: Any, weights: Mapping[str, Any]) -> None:
    """Copy saved weights into the model's own tensors. Raises ValueError when names or shapes are not the model's."""
    import torch

    own = trainable_weights(model)
    if own.keys() != weights.keys():
        differing = sorted(own.keys() ^ weights.keys())
        raise ValueError(f"these weights are another model's: {len(differing)} names differ, such as {differing[0]!r}")
    with torch.no_grad():
        for name, saved in weights.items():
            value = own_part(saved, own[name])
            if isinstance(value, Shard):
                own[name], value = own[name].to_local(), value.part
            if own[name].shape != value.shape or own[name].dtype != value.dtype:
                raise ValueError(
                    f"{name}: the checkpoint holds {value.dtype} {tuple(value.shape)}, "
                    f"the model {own[name].dtype} {tuple(own[name].shape)}"
                )
            own[name].copy_(value)


def own_part(value: Any, like: Any) -> Any:
    """Of a tensor as it was saved, whole or in the parts of several processes, what this process has of `like`: a
    `Shard` where that is spread, along its first dimension. Raises ValueError where it is spread in another way, and
    where parts of several processes have another shape."""
    if isinstance(value, Shard) and not isinstance(value.part, Parts):
        return value  # this process's already
    if not isinstance(value, Shard) and not (is_spread(like) and is_tensor(value) and value.shape == like.shape):
        return value
    parts = value.part if isinstance(value, Shard) else Parts((value,))
    if tuple(parts.shape) != tuple(like.shape):
        raise ValueError(f"the checkpoint holds {tuple(parts.shape)}, the model {tuple(like.shape)}")
    if not is_spread(like):
        return parts.rows(0, like.shape[0])
    if like.device_mesh.ndim != 1 or not like.placements[0].is_shard(0):
        raise ValueError(f"this tensor is spread as {like.placements}; only parts along the first dimension are read")
    each = -(-like.shape[0] // like.device_mesh.size())
    begin = min(each * like.device_mesh.get_local_rank(), like.shape[0])
    return Shard(parts.rows(begin, begin + like.to_local().shape[0]))


def capture_rng() -> "dict[str, Any]":
    """The state of every random generator in use: Python's, numpy's (when imported), torch's, and each GPU's."""
    import torch

    numpy = sys.modules.get("numpy")
    return {
        "python": random.getstate(),
        "numpy": _numpy_state(numpy) if numpy is not None else None,
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_rng(state: Mapping[str, Any]) -> None:
    """Set the generators to what `capture_rng` saw. States of GPUs that this machine lacks are left aside."""
    import torch

    random.setstate(state["python"])
    if state["numpy"] is not None:
        import numpy as np

        saved = state["numpy"]
        key = np.array(saved["key"], dtype=np.uint32)
        np.random.set_state((saved["kind"], key, saved["position"], saved["has_gauss"], saved["gauss"]))
    torch.set_rng_state(state["torch"])
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for device, cuda_state in enumerate(state["cuda"][:available]):
        torch.cuda.set_rng_state(cuda_state, device)


def save_tree(folder: Path, tree: Any, name: str = STATE_NAME) -> None:
    """Write any nesting of dicts, lists, tuples, tensors, numbers, strings and None as `<name>.json` and
    `<name>.safetensors`. Raises TypeError naming the place of anything else."""
    tensors: "dict[str, Any]" = {}
    skeleton = encode(tree, tensors)
    write_tensors(Path(folder) / f"{name}.safetensors", tensors)
    text = json.dumps(skeleton, allow_nan=False, separators=(",", ":"))
    (Path(folder) / f"{name}.json").write_text(text, encoding="utf-8")


def load_tree(folder: Path, name: str = STATE_NAME) -> Any:
    """What `save_tree` wrote; tensors come back on the CPU."""
    skeleton = json.loads((Path(folder) / f"{name}.json").read_text(encoding="utf-8"))
    return decode(skeleton, read_tensors(Path(folder) / f"{name}.safetensors"))


def _numpy_state(numpy: Any) -> "dict[str, Any]":
    kind, key, position, has_gauss, gauss = numpy.random.get_state()
    return {"kind": kind, "key": key.tolist(), "position": position, "has_gauss": has_gauss, "gauss": gauss}
