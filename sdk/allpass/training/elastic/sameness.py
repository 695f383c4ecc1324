"""What the processes of a training have to have alike, in few bytes that they can tell each other."""

from __future__ import annotations

import hashlib
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import torch

_MOST_BYTES = 64 * 1024 * 1024  # of parts that are looked at


def of_fixed(model: Any) -> str:
    """A digest of all that a model has beside the weights that are trained: by sums, which a GPU makes in no time.
    Buffers are left out that nobody would save: some are made on use."""
    digest = hashlib.sha256()
    for name, one in sorted(model.state_dict(keep_vars=True).items()):
        if isinstance(one, torch.Tensor) and not one.requires_grad:
            digest.update(f"{name} {tuple(one.shape)} {one.dtype} {_sum(one)}\n".encode())
    return digest.hexdigest()


def of_parts(parts: Sequence[Any]) -> str:
    """A digest of what the parts of a step are made of: tensors, numbers, words, and lists of them."""
    digest = hashlib.sha256()
    left = [_MOST_BYTES]
    _feed(digest, list(parts), left)
    return digest.hexdigest()[:16]


def changes_of_buffers(model: Any) -> Dict[str, Tuple[int, int]]:
    """Of each buffer that is saved: where it is, and how often it was written to. (Kernels of batch norms do not count
    what they write to running means; the count beside these does.)"""
    saved = model.state_dict(keep_vars=True).keys()
    return {name: (one.data_ptr(), one._version) for name, one in model.named_buffers() if name in saved}


def changed(before: Mapping[str, Tuple[int, int]], after: Mapping[str, Tuple[int, int]]) -> List[str]:
    """Those that were there before, and were written to since."""
    return [name for name, state in after.items() if name in before and before[name] != state]


def _sum(one: Any) -> str:
    if one.numel() == 0 or one.is_meta:
        return ""
    if one.is_complex() or one.is_quantized:
        return "?"
    with torch.no_grad():
        return repr(float(one.detach().sum(dtype=torch.float64)))


def _feed(digest: Any, value: Any, left: List[int]) -> None:
    if left[0] <= 0:
        return
    if isinstance(value, torch.Tensor):
        digest.update(f"{tuple(value.shape)} {value.dtype}".encode())
        if value.is_floating_point() or value.is_complex():
            _feed_bytes(digest, value.detach(), left)
        elif value.layout == torch.strided:
            _feed_bytes(digest, value, left)
    elif isinstance(value, dict):
        for key, one in value.items():
            digest.update(repr(key).encode())
            _feed(digest, one, left)
    elif isinstance(value, (list, tuple)):
        digest.update(f"{len(value)}[".encode())
        for one in value:
            _feed(digest, one, left)
    elif isinstance(value, (str, bytes, int, float, bool, type(None))):
        digest.update(repr(value).encode())
        left[0] -= 64
    elif hasattr(value, "__array__"):
        _feed(digest, torch.as_tensor(value), left)
    else:
        digest.update(type(value).__name__.encode())


def _feed_bytes(digest: Any, tensor: Any, left: List[int]) -> None:
    data = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()[: left[0]]
    left[0] -= len(data)
    digest.update(data)
