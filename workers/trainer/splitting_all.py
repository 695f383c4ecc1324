"""A full fine-tuning split over all processes (FSDP): each has a share of every weight, its gradient and its states.

What comes out is what one GPU would give, bit for bit, as of everything that the recipe does (ADR 0127): weights that
are put together are copies, gradients are summed for each share in the order of a step's parts, and an optimizer that
looks at each number by itself does the same with a share. Processes go through the model in step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from allpass.training.elastic.ranks import Ranks
from allpass.training.elastic.summing import Summing

T = TypeVar("T")


class SplitModel:
    """The model of `prepare`, as it is asked: with what belongs to no layer put together, in all processes at once."""

    def __init__(self, whole: Any, row: nn.ModuleList, ranks: Ranks, device: Any) -> None:
        """Raises ValueError for weights of several types within a layer, and where torch adds gradients in an order of
        its own."""
        if not hasattr(FSDPModule, "set_custom_reduce_scatter"):
            raise ValueError(f"sharded: torch {torch.__version__} is too old to split a full fine-tuning; take 2.13")
        _check_types(whole, row)
        mesh = init_device_mesh(device.type, (ranks.count,))
        self._sums: list[_InOrder] = []
        for layer in row:
            self._add(layer, mesh, ranks.count)
        self._asked = _Asked(whole)
        self._add(self._asked, mesh, ranks.count)
        ranks.is_in_step = True

    def ask(self, ask: Callable[[], T]) -> T:
        """What it says, which calls the model. Where that is to be differentiated it has a `total`, which it is done
        by, and weights are apart again after the way back."""
        _, found = self._asked(ask)
        if not torch.is_grad_enabled():
            cast(FSDPModule, self._asked).reshard()
        return cast(T, found)

    def summing(self, parameters: Sequence[Any], count: int) -> Summing:
        """The gradients of a step, of which each process gets its shares. `count`: of processes."""
        return _Shares(self._sums, parameters, count)

    def _add(self, module: Any, mesh: Any, count: int) -> None:
        split = fully_shard(module, mesh=mesh)
        self._sums.append(_InOrder(count))
        split.set_custom_reduce_scatter(self._sums[-1])
        split.set_gradient_divide_factor(1.0)
        split.set_force_sum_reduction_for_comms(True)


class _Asked(nn.Module):
    """Its forward is whatever is asked: FSDP puts together what belongs to no layer, and knows by `total` when the way
    back begins."""

    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, ask: Callable[[], Any]) -> tuple[Any, Any]:
        found = ask()
        return getattr(found, "total", None), found


class _InOrder:
    """What FSDP has a `ReduceScatter` for: the sum of one layer's gradients, of which this process has a share. The
    parts of a round are added in their order to what is there, as autograd does where one process takes one part after
    the other. `present`: parts of this round; processes beyond have gone along."""

    def __init__(self, count: int) -> None:
        self.present = count
        self._count = count
        self._sum: Any = None
        self._is_new = True
        self._sent: int | None = None  # numbers that go out, once there is room for them

    def begin(self) -> None:
        """Nothing is summed any more."""
        self._sum, self._is_new = None, True

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Any:
        """Asked for what goes out, then for what comes of it: that is the sum itself, again and again, so that the
        gradients, which lie in it, take no other memory."""
        if self._sent is None:
            self._sent = int(size[0])
            return torch.empty(*size, dtype=dtype, device=device)
        share, self._sent = self._sent // self._count, None
        if self._sum is None:
            self._sum = torch.empty(share, dtype=dtype, device=device)
        if (share, share) != (int(size[0]), self._sum.numel()):
            raise ValueError("sharded: some rows leave weights of this model without a gradient; leave it out")
        return self._sum

    def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False) -> None:
        told = torch.empty_like(input_tensor)
        distributed.all_to_all_single(told, input_tensor, group=group)
        for share in told.view(self._count, -1)[: self.present]:
            if self._is_new:
                output_tensor.copy_(share)
                self._is_new = False
            else:
                output_tensor.add_(share)


class _Shares(Summing):
    def __init__(self, sums: Sequence[_InOrder], parameters: Sequence[Any], count: int) -> None:
        self._sums = sums
        self._parameters = parameters
        self._count = count
        self._gradients: list[Any] = [None] * len(parameters)
        for one in sums:  # a step before may not have been taken
            one.begin()

    def begin(self, number: int, parts: int) -> None:
        first = number - number % self._count
        for one in self._sums:
            one.present = min(self._count, parts - first)
        for parameter in self._parameters:
            parameter.grad = None

    def keep(self) -> None:
        self._gradients = [one.grad for one in self._parameters]

    def leave_out(self) -> None:
        """What others have added lies in the same memory."""
        self.keep()

    def finish(self) -> None:
        for one, gradient in zip(self._parameters, self._gradients, strict=True):
            one.grad = gradient
        for sums in self._sums:
            sums.begin()


def clip(parameters: Sequence[Any], most: float) -> Any:
    """As `torch.nn.utils.clip_grad_norm_`, to the bit, of gradients that are spread: each is put together for its norm,
    one after the other, since a sum of the shares' is another one in its last bits."""
    gradients = [one.grad for one in parameters if one.grad is not None]
    norms = [_norm(one) for one in gradients]
    total = torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())
    factor = torch.clamp(most / (total + 1e-6), max=1.0)
    for one in gradients:
        one.to_local().mul_(factor)
    return total


def _norm(gradient: Any) -> Any:
    whole = gradient.full_tensor()
    return torch._foreach_norm([whole])[0] if whole.is_cuda else torch.linalg.vector_norm(whole)


def _check_types(whole: Any, row: nn.ModuleList) -> None:
    """Gradients of a layer go out as one, and so do those of what is in none."""
    layers = [list(layer.parameters()) for layer in row]
    within = {id(one) for layer in layers for one in layer}
    for unit in (*layers, [one for one in whole.parameters() if id(one) not in within]):
        types = sorted({str(one.dtype) for one in unit})
        if len(types) > 1:
            raise ValueError(f"sharded: this model has weights of {' and '.join(types)} within a layer; leave it out")
