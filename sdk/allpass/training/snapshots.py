"""A copy of the training's state in host memory, taken as fast as memory allows: all that a save makes the training
wait for."""

from __future__ import annotations

import ctypes
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, List, Tuple

from allpass.training.tree import Shard, is_spread, is_tensor

_PART_BYTES = 8 * 1024 * 1024
_THREADS = 4
Moves = List[Tuple[int, int, int]]  # to, from, bytes


class HostCopies:
    """Copies trees of tensors into host memory that is used again: fresh memory costs several times the copy."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: "list[list[Any]]" = []  # guarded by the lock; sets of buffers, in the order of a tree

    def take(self, tree: Any) -> "tuple[Any, Callable[[], None]]":
        """The tree with copies in the place of its tensors, and what gives their memory back."""
        with self._lock:
            buffers = self._free.pop() if self._free else []
        copying = _Copying(buffers)
        copied = copying.copy(tree)
        copying.finish()

        def give_back() -> None:
            with self._lock:
                if len(self._free) < 2:
                    self._free.append(copying.taken)

        return copied, give_back


def size_of(tree: Any) -> int:
    """Bytes of the tensors in it, of which this process has a part where they are spread."""
    if is_tensor(tree):
        own = tree.to_local() if is_spread(tree) else tree
        return int(own.numel() * own.element_size())
    items = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return sum(map(size_of, items))


class _Copying:
    """One copy of one tree, into `buffers` where they fit. What lies in plain memory is copied by `finish`, by several
    threads that meet once, at its end: PyTorch's own meet at every tensor."""

    def __init__(self, buffers: "list[Any]") -> None:
        self._buffers = buffers
        self._moves: Moves = []
        self._waits_for_gpus = False
        self.taken: "list[Any]" = []

    def copy(self, value: Any) -> Any:
        if is_tensor(value):
            return Shard(self._copy_tensor(value.to_local())) if is_spread(value) else self._copy_tensor(value)
        if isinstance(value, dict):
            copied = {key: self.copy(item) for key, item in value.items()}
            return copied if type(value) is dict else _like(value, copied)
        if isinstance(value, (list, tuple)):
            items = [self.copy(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        return value

    def finish(self) -> None:
        """From now on the copies are complete."""
        parts = [
            (target + start, source + start, min(_PART_BYTES, size - start))
            for target, source, size in self._moves
            for start in range(0, size, _PART_BYTES)
        ]
        count = min(_THREADS, os.cpu_count() or 1, len(parts))
        if count > 1:
            with ThreadPoolExecutor(count) as pool:
                list(pool.map(_move, [parts[number::count] for number in range(count)]))
        else:
            _move(parts)
        if self._waits_for_gpus:
            import torch

            torch.cuda.synchronize()

    def _copy_tensor(self, tensor: Any) -> Any:
        source = tensor.detach()
        number = len(self.taken)
        buffer = _buffer(source, self._buffers[number] if number < len(self._buffers) else None)
        self.taken.append(buffer)
        if source.device.type == "cpu" and source.is_contiguous() and not source.is_neg() and not source.is_conj():
            self._moves.append((buffer.data_ptr(), source.data_ptr(), source.numel() * source.element_size()))
        else:
            self._waits_for_gpus = self._waits_for_gpus or source.is_cuda
            buffer.copy_(source, non_blocking=True)
        return buffer


def _move(parts: Moves) -> None:
    for target, source, size in parts:
        ctypes.memmove(target, source, size)


def _like(value: Any, copied: "dict[Any, Any]") -> Any:
    """A Counter or another dict, of which nothing in it is a tensor in practice."""
    try:
        return type(value)(copied)
    except TypeError:  # a defaultdict
        return copied


def _buffer(tensor: Any, known: Any) -> Any:
    import torch

    if known is not None and known.shape == tensor.shape and known.dtype == tensor.dtype:
        return known
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
