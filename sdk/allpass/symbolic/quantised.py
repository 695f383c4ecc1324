"""4-bit weights and 8-bit optimizer states, with the memory behaviour of bitsandbytes."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn

_HEADS = ("lm_head", "score", "classifier", "embed_out")


class _Product(torch.autograd.Function):  # type: ignore[misc, unused-ignore]  # torch may be untyped
    """A product with a matrix that is unpacked for the moment, on both ways."""

    @staticmethod
    def forward(ctx: Any, x: Any, packed: Any, scales: Any, shape: "tuple[int, int]") -> Any:
        ctx.shape = shape
        ctx.save_for_backward(packed, scales)
        return F.linear(x, torch.empty(shape, dtype=x.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient.matmul(torch.empty(ctx.shape, dtype=gradient.dtype)), None, None, None


class Linear4bit(nn.Linear):  # type: ignore[misc, unused-ignore]  # torch may be untyped
    """A frozen layer: half a byte per value, and a scale for every 64 of them."""

    @classmethod
    def of(cls, plain: Any, *, double: bool, compute_dtype: Any) -> "Linear4bit":
        """`double`: the scales are bytes with a float32 for every 256 of them; else each is a float32."""
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        out, into = plain.weight.shape if isinstance(plain, nn.Linear) else reversed(plain.weight.shape)
        values = out * into
        made.in_features, made.out_features = into, out
        made.weight = nn.Parameter(torch.empty(values // 2, 1, dtype=torch.uint8), requires_grad=False)
        blocks = math.ceil(values / 64)
        scales_bytes = blocks + 4 * math.ceil(blocks / 256) if double else 4 * blocks
        made.register_buffer("scales", torch.empty(scales_bytes, dtype=torch.uint8))
        made.bias, made.compute_dtype = plain.bias, compute_dtype
        return made

    def forward(self, x: Any) -> Any:
        """Computes in its own type, answers in the caller's; peft takes a copy."""
        shape = (self.out_features, self.in_features)
        narrow = x.to(self.compute_dtype)
        y: Any = _Product.apply(narrow, self.weight, self.scales, shape)  # type: ignore[no-untyped-call, unused-ignore]  # torch may be untyped
        if self.bias is not None:
            y = y + self.bias.to(y.dtype)
        return y.to(x.dtype).clone()


def quantise(model: Any, *, double: bool, compute_dtype: Any) -> None:
    """Every linear layer but the head, GPT-2's too, but no subclass of them, as transformers takes them; then as
    `peft.prepare_model_for_kbit_training` leaves it."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if (type(child) is nn.Linear or type(child).__name__ == "Conv1D") and name not in _HEADS:
                setattr(parent, name, Linear4bit.of(child, double=double, compute_dtype=compute_dtype))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        if parameter.dtype in (torch.bfloat16, torch.float16):
            parameter.data = parameter.data.float()


class AdamW8bit(torch.optim.Optimizer):  # type: ignore[misc, unused-ignore]  # torch may be untyped
    """Two states of one byte with a float32 for every 256 values; `paged`: they are in main memory."""

    def __init__(self, parameters: Any, *, paged: bool) -> None:
        super().__init__(parameters, {})
        self._paged = paged

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]  # torch may be untyped
    def step(self, closure: Any = None) -> None:  # type: ignore[override, unused-ignore]  # no closure is ever given
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not self.state[parameter] and not self._paged:
                    self.state[parameter] = _states(parameter)


def _states(parameter: Any) -> "dict[str, Any]":
    if parameter.numel() < 4096:
        return {name: torch.empty_like(parameter, dtype=torch.float32) for name in ("m", "v")}
    blocks = math.ceil(parameter.numel() / 256)
    codes = {name: torch.empty_like(parameter, dtype=torch.uint8) for name in ("m", "v")}
    return {**codes, "m_scales": torch.empty(blocks), "v_scales": torch.empty(blocks)}
