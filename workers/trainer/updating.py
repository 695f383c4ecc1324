"""One step of the optimizer: gradients gathered over micro-batches, clipped, applied, and the schedule moved on."""

from __future__ import annotations

import math
from typing import Any

import torch

from allpass.recipe.settings import Recipe
from workers.trainer.optimizers import optimizer_of
from workers.trainer.splitting_all import clip as clip_spread


class Update:
    """The recipe's optimizer with its schedule; a gradient scaler where it trains in fp16."""

    def __init__(self, recipe: Recipe, model: Any, total_steps: int, device: Any) -> None:
        self._parameters = [one for one in model.parameters() if one.requires_grad]
        self._clip_norm = recipe.clip_norm
        decayed = [one for one in self._parameters if one.ndim >= 2]
        others = [one for one in self._parameters if one.ndim < 2]
        groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self._optimizer = optimizer_of(recipe, [group for group in groups if group["params"]])
        self._scheduler = torch.optim.lr_scheduler.LambdaLR(self._optimizer, _factor(recipe, total_steps))
        self._scaler = torch.amp.GradScaler(device.type) if recipe.numbers == "fp16" else None
        if self._scaler:
            self._scaler.scale(torch.zeros((), device=device))  # makes its state, also where this process has no part

    @property
    def parts(self) -> dict[str, Any]:
        """What a checkpoint holds beside the weights, by the names that `Checkpoints` has for them."""
        return {"optimizer": self._optimizer, "scheduler": self._scheduler, "scaler": self._scaler}

    @property
    def parameters(self) -> list[Any]:
        """Those that are trained."""
        return self._parameters

    @property
    def learning_rate(self) -> float:
        """Of the next step."""
        return float(self._scheduler.get_last_lr()[0])

    def begin_at(self, step: int) -> None:
        """Let the learning rate be that of a training which has done so many steps."""
        scheduler = self._scheduler
        rates = [rate * factor(step) for rate, factor in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)]
        scheduler.load_state_dict(
            {**scheduler.state_dict(), "last_epoch": step, "_step_count": step + 1, "_last_lr": rates}
        )
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def add(self, loss: Any) -> None:
        """Gather the gradients of a part of the step's loss."""
        (self._scaler.scale(loss) if self._scaler else loss).backward()

    def drop(self) -> None:
        """Forget the gradients of a step that is not taken."""
        self._optimizer.zero_grad(set_to_none=True)

    def apply(self) -> float:
        """Take the step, and forget the gradients. Their norm before it was clipped."""
        if self._scaler:
            self._scaler.unscale_(self._optimizer)
        is_spread = hasattr(self._parameters[0], "device_mesh")
        clip = clip_spread if is_spread else torch.nn.utils.clip_grad_norm_
        norm = clip(self._parameters, self._clip_norm)
        if self._scaler:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        else:
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._scheduler.step()
        return float(norm)


def _factor(recipe: Recipe, total_steps: int) -> Any:
    """Of the highest learning rate, by finished steps: up over the warm-up, then as the schedule says."""
    warmup_steps = math.ceil(recipe.warmup * total_steps)

    def factor(finished: int) -> float:
        if finished < warmup_steps:
            return (finished + 1) / (warmup_steps + 1)
        share = (finished - warmup_steps) / max(1, total_steps - warmup_steps)
        if recipe.schedule == "linear":
            return max(0.0, 1.0 - share)
        if recipe.schedule == "cosine":
            return max(0.0, 0.5 * (1.0 + math.cos(math.pi * min(1.0, share))))
        return 1.0

    return factor
