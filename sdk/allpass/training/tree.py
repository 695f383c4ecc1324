"""Nested Python values as JSON plus named tensors, exactly: what goes in comes out, types included.

Of a tensor that is spread over several processes, each writes the part that it has, which comes back as a `Shard`.

JSON alone would turn tuples into lists, integer keys into strings and NaN into nothing. Such values are written as an
object with one key that begins with `$`.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, Callable


@dataclass(frozen=True)
class Shard:
    """This process's part of a tensor that is spread over several (a DTensor)."""

    part: Any


@dataclass(frozen=True)
class Parts:
    """What several processes have of a tensor that is spread over them: cut along its first dimension, in their order.
    A `Shard` has it in the place of one process's part, where the state of all of them was read."""

    of: "tuple[Any, ...]"

    @property
    def shape(self) -> "tuple[int, ...]":
        """Of the whole tensor."""
        return (sum(int(one.shape[0]) for one in self.of), *self.of[0].shape[1:])

    def rows(self, begin: int, end: int) -> Any:
        """These rows of the whole tensor. Raises ValueError where its parts do not belong together."""
        if len({(one.dtype, tuple(one.shape[1:])) for one in self.of}) > 1:
            raise ValueError("the parts of a tensor have other shapes, or are of other types")
        found, first = [], 0
        for one in self.of:
            last = first + int(one.shape[0])
            if max(begin, first) < min(end, last):
                found.append(one[max(begin, first) - first : min(end, last) - first])
            first = last
        if len(found) == 1:
            return found[0]
        import torch

        return torch.cat(found) if found else self.of[0][:0]


def encode(value: Any, tensors: "dict[str, Any]", path: str = "state") -> Any:
    """The JSON form of `value`; its tensors are added to `tensors` under names that the JSON refers to.

    Raises TypeError with the place of a value that has no such form.
    """
    if isinstance(value, (list, tuple)):
        items = [encode(item, tensors, f"{path}[{index}]") for index, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, dict):
        return _encode_dict(value, tensors, path)
    if isinstance(value, Shard):
        return {"$shard": _store(value.part, tensors)}
    if is_tensor(value):
        if is_spread(value):
            return {"$shard": _store(value.to_local(), tensors)}
        return {"$tensor": _store(value, tensors)}
    return _encode_scalar(value, path)


def decode(value: Any, tensors: "dict[str, Any]") -> Any:
    """The value that `encode` was given."""
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    tag = next(iter(value), "")
    if not tag.startswith("$"):
        return {key: decode(item, tensors) for key, item in value.items()}
    content = value[tag]
    if tag == "$tensor":
        return tensors[content]
    if tag == "$shard":
        return Shard(tensors[content])
    return _MAKERS[tag](decode(content, tensors))


_MAKERS: "dict[str, Callable[[Any], Any]]" = {
    "$float": float,
    "$tuple": tuple,
    "$dict": dict,
    "$counter": lambda pairs: Counter(dict(pairs)),
}


def _encode_scalar(value: Any, path: str) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a numpy scalar
        return _encode_scalar(value.item(), path)
    raise TypeError(f"{path} is a {type(value).__name__}: only pickle could store that; keep it out of the checkpoint")


def _encode_dict(value: "dict[Any, Any]", tensors: "dict[str, Any]", path: str) -> Any:
    if not isinstance(value, Counter) and all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: encode(item, tensors, f"{path}.{key}") for key, item in value.items()}
    pairs = [
        [encode(key, tensors, f"{path} key {key!r}"), encode(item, tensors, f"{path}[{key!r}]")]
        for key, item in value.items()
    ]
    return {"$counter" if isinstance(value, Counter) else "$dict": pairs}


def is_tensor(value: Any) -> bool:
    """Without importing torch: only who has torch can hand us a tensor."""
    if value is None or isinstance(value, (int, float, str)):
        return False
    return any(f"{kind.__module__}.{kind.__qualname__}" == "torch.Tensor" for kind in type(value).__mro__)


def is_spread(tensor: Any) -> bool:
    """Whether other processes have parts of this tensor."""
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "to_local")


def _store(tensor: Any, tensors: "dict[str, Any]") -> str:
    name = f"t{len(tensors)}"
    tensors[name] = tensor.detach()
    return name
