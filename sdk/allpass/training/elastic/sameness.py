"""What the processes of a training have to have alike, in few bytes that they can tell each other."""

from __future__ import annotations

import hashlib
import sys
from typing import Any, Dict, FrozenSet, List, Mapping, Sequence, Tuple

import torch

_MOST_BYTES = 64 * 1024 * 1024  # of parts that are looked at
_PLAIN = frozenset("biufcSUmM")  # kinds of arrays that are their bytes: all but objects
Changes = Mapping[str, Tuple[int, int]]


def of_fixed(model: Any) -> str:
    """A digest of all that a model has beside the weights that are trained: by sums, which a GPU makes in no time.
    Buffers are left out that nobody would save: some are made on use."""
    digest = hashlib.sha256()
    for name, one in sorted(model.state_dict(keep_vars=True).items()):
        if isinstance(one, torch.Tensor) and not one.requires_grad:
            digest.update(f"{name} {tuple(one.shape)} {one.dtype} {_sum(one)}\n".encode())
    return digest.hexdigest()


def of_parts(parts: Sequence[Any]) -> str:
    """A digest of what the parts of a step are made of: tensors, arrays, numbers, words, and lists of them. Of anything
    else, only its kind."""
    digest = hashlib.sha256()
    _feed(digest, list(parts), [_MOST_BYTES])
    return digest.hexdigest()[:16]


def saved_buffers(model: Any) -> FrozenSet[str]:
    """Their names; those that are made on use are not saved, and are nobody's concern."""
    saved = model.state_dict(keep_vars=True)
    return frozenset(name for name, _ in model.named_buffers() if name in saved)


def changes_of(model: Any, buffers: FrozenSet[str]) -> Dict[str, Tuple[int, int]]:
    """Where each of these is, and how often it was written to. (Kernels of batch norms do not count what they write to
    running means; the count beside these does.)"""
    return {name: (one.data_ptr(), one._version) for name, one in model.named_buffers() if name in buffers}


def changed(before: Changes, after: Changes) -> List[str]:
    """Those that were there before, and were written to since."""
    return [name for name, state in after.items() if name in before and before[name] != state]


def _sum(one: Any) -> str:
    """Of types that cannot be added up, nothing: these come from files."""
    if one.numel() == 0 or one.is_meta:
        return ""
    try:
        with torch.no_grad():
            return repr(float(one.detach().sum(dtype=torch.float64)))
    except (RuntimeError, NotImplementedError, TypeError):
        return "?"


def _feed(digest: Any, value: Any, left: List[int]) -> None:
    if left[0] <= 0:
        return
    if isinstance(value, torch.Tensor):
        digest.update(f"{tuple(value.shape)} {value.dtype}".encode())
        if value.layout == torch.strided and not value.is_quantized:
            plain = value.detach().cpu().contiguous().reshape(-1)
            _feed_bytes(digest, plain.view(torch.uint8).numpy().tobytes(), left)
    elif isinstance(value, dict):
        for key, one in value.items():
            _feed(digest, key, left)
            _feed(digest, one, left)
    elif isinstance(value, (list, tuple)):
        digest.update(f"{len(value)}[".encode())
        for one in value:
            _feed(digest, one, left)
    elif isinstance(value, (str, bytes)):
        _feed_bytes(digest, repr(value).encode(), left)
    elif isinstance(value, (int, float, bool, type(None))):
        digest.update(f"{value!r};".encode())
        left[0] -= 16
    elif hasattr(value, "__array__"):
        _feed_array(digest, value, left)
    else:
        digest.update(type(value).__name__.encode())


def _feed_array(digest: Any, value: Any, left: List[int]) -> None:
    """Of numpy, or of whatever turns into one of its arrays."""
    numpy = sys.modules.get("numpy")
    array = None if numpy is None else numpy.asarray(value)
    if array is None or array.dtype.kind not in _PLAIN:
        digest.update(type(value).__name__.encode())
        return
    digest.update(f"{array.shape} {array.dtype}".encode())
    _feed_bytes(digest, array.tobytes(), left)


def _feed_bytes(digest: Any, data: bytes, left: List[int]) -> None:
    digest.update(data[: left[0]])
    left[0] -= len(data)
