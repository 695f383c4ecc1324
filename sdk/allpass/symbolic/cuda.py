"""Makes the fake CPU behave as CUDA does where that decides what is allocated.

Fake tensors are of the CPU: in a CPU build of torch, autograd ends the process over fake tensors of CUDA. Functions are
replaced for good, since a mode is not active while checkpointing computes a layer again on the way back; so this is
for a process that does nothing else.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

_HALF = (torch.bfloat16, torch.float16)
_kernel = "flash"


def choose_kernel(attention: str) -> None:
    """`flash` or `efficient`: which kernel torch's fused attention takes."""
    global _kernel  # noqa: PLW0603 - the replaced function has no other way to know
    _kernel = attention


def install() -> None:
    """Once per process, before transformers is imported."""
    _leave_contents_out()
    F.scaled_dot_product_attention = _attention
    F.dropout = _dropout
    F.softmax = _softmax
    _leave_masks_out()
    # what autocast computes in float32 on CUDA, but not on a CPU
    for owner, names in (
        (torch, ("pow", "rsqrt", "softmax", "log_softmax", "exp", "sum", "cumsum")),
        (torch.Tensor, ("pow", "__pow__", "rsqrt", "softmax", "sum", "exp")),
        (F, ("layer_norm", "softmax", "log_softmax", "cross_entropy")),
    ):
        for name in names:
            setattr(owner, name, _in_float32(getattr(owner, name)))


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    if torch.is_autocast_enabled("cpu"):
        kind = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(kind), key.to(kind), value.to(kind)
    if attn_mask is None and query.dtype in _HALF and _kernel == "flash":
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        return flash(query, key, value, dropout_p, is_causal, scale=scale)[0]
    if enable_gqa and key.shape[1] != query.shape[1]:
        times = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros(attn_mask.shape, dtype=query.dtype)
        attn_mask = attn_mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    return efficient(query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale)[0]


def _softmax(input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    """To float32 in one kernel, without a float32 copy of what it reads."""
    if dtype is torch.float32 and input.dtype in _HALF:
        return torch._softmax(input, dim, True)
    return torch.softmax(input, dim, dtype=dtype)


def _dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """With a mask of one byte for each value."""
    return torch.native_dropout(input, p, True)[0] if training and p > 0 else input


def _in_float32(function: "Callable[..., Any]") -> "Callable[..., Any]":
    @functools.wraps(function)
    def wider(*args: Any, **kwargs: Any) -> Any:
        if torch.is_autocast_enabled("cpu"):
            args = tuple(x.float() if isinstance(x, torch.Tensor) and x.dtype in _HALF else x for x in args)
        return function(*args, **kwargs)

    return wider


def _leave_contents_out() -> None:
    """What weights begin with decides nothing, and some ways to draw it look at values, which are not there."""
    for name in dir(torch.nn.init):
        if name.endswith("_") and not name.startswith("_"):
            setattr(torch.nn.init, name, lambda tensor, *args, **kwargs: tensor)


def _leave_masks_out() -> None:
    """A batch without padding needs no mask for fused kernels. On fake tensors transformers cannot see that there is
    no padding, and would make one of sequence times sequence."""
    try:
        from transformers import masking_utils
    except ImportError:  # versions before it decide by what they are given
        return
    masking_utils.find_packed_sequence_indices = lambda position_ids: None
    masks = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
    masks["sdpa"] = lambda *args, **kwargs: None
