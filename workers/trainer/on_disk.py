"""Tensors whose memory is a file without a name: the kernel keeps of them what there is room for."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

_ALIGNMENT = 64


def _as_it_is(tensor: Any) -> Any:
    return tensor


def on_disk(tensors: Mapping[str, Any], folder: Path, whole: Callable[[Any], Any] = _as_it_is) -> dict[str, Any]:
    """Copies, one after the other; the file is gone when nothing refers to them. `whole`: makes each of them whole when
    its turn has come. Raises OSError where the disk has no room for all of them, before the first."""
    places, end = {}, 0
    for name, tensor in tensors.items():
        places[name] = end
        end += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
    if not end:
        return {name: whole(tensor).detach().to("cpu", copy=True) for name, tensor in tensors.items()}
    if not hasattr(os, "posix_fallocate"):
        raise OSError("this system cannot set room on a disk aside")
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, end)  # a mapped page without room would end the process
        memory = mmap.mmap(file.fileno(), end)
    return {name: _copied(whole(tensor).detach(), memory, places[name]) for name, tensor in tensors.items()}


def _copied(tensor: Any, memory: mmap.mmap, place: int) -> Any:
    if not tensor.numel():
        return tensor.to("cpu", copy=True)
    kept = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=place).view(tensor.shape)
    return kept.copy_(tensor)
