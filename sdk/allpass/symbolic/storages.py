"""Bytes of every live storage, and their peaks by phase."""

from __future__ import annotations

import weakref
from typing import Any, Iterable

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_BLOCK_BYTES = 512  # CUDA's caching allocator gives whole blocks
_FLASH_BACKWARD = "_scaled_dot_product_flash_attention_backward"


class LiveBytes(TorchDispatchMode):  # type: ignore[misc, no-untyped-call, unused-ignore]  # torch may be untyped
    """Watches storages from the operator that makes them until nobody holds them.

    What a CUDA kernel allocates for the time that it runs is counted beside its results, where it is known.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]  # torch may be untyped
        self.live = 0
        self.peaks: "dict[str, int]" = {}
        self._phase = "before"
        self._watched: "dict[int, weakref.ref[Any]]" = {}

    def watch(self, tensors: "Iterable[torch.Tensor]") -> None:
        """Count these storages too: they were there before."""
        for tensor in tensors:
            self._see(tensor)

    def enter(self, phase: str) -> None:
        self._phase = phase
        self._mark(0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in tree_leaves(out):
            if isinstance(each, torch.Tensor):
                self._see(each)
        beside = _scratch_bytes(func, args)
        if beside:
            self._mark(beside)
        return out

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._watched:
            return
        size = -(-storage.nbytes() // _BLOCK_BYTES) * _BLOCK_BYTES

        def gone(_: Any, key: int = key, size: int = size) -> None:
            if self._watched.pop(key, None) is not None:
                self.live -= size

        self._watched[key] = weakref.ref(storage, gone)
        self.live += size
        self._mark(0)

    def _mark(self, beside: int) -> None:
        self.peaks[self._phase] = max(self.peaks.get(self._phase, 0), self.live + beside)


def _scratch_bytes(func: Any, args: Any) -> int:
    if func is torch.ops.aten._softmax_backward_data.default:
        return int(args[0].numel() * args[0].element_size())  # gradient times output, in the gradient's type
    if func.overloadpacket.__name__ == _FLASH_BACKWARD:
        query, key = args[1], args[2]
        sums = query.numel() * 4  # of the queries' gradients, in float32
        spread = 2 * query.numel() * query.element_size() if key.shape[1] != query.shape[1] else 0
        return int(sums + spread)  # keys' and values' gradients for every head of the queries
    return 0
