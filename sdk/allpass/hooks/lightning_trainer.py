"""An unchanged Lightning `Trainer` reports, saves, stops and resumes by itself, at exactly its step.

    python train.py        # trainer = Trainer(...); trainer.fit(model, loader)

Both names of the library, `lightning` and `pytorch_lightning`, are served: they are two copies of one code. It fails
open, as the hook of Transformers does (`allpass.hooks.trainer`): what could not be resumed exactly is not moved, and
the log says why. Only the first training of a process is.
"""

from __future__ import annotations

import inspect
import os
import signal
import threading
from typing import Any, Callable, Dict, Optional, Tuple

from allpass.hooks.trainer import say

_LOOPS = ("setup_data", "on_advance_start", "on_advance_end", "epoch_progress", "epoch_loop", "max_epochs")
_EPOCH_LOOPS = (
    "on_run_start",
    "on_advance_end",
    "reset",
    "batch_progress",
    "_should_accumulate",
    "val_loop",
    "_results",
)
_FINDERS = ("LearningRateFinder", "BatchSizeFinder")
_begun = 0  # trainings of this process that were served


def serve(original: "Callable[..., Any]", args: "Tuple[Any, ...]", kwargs: "Dict[str, Any]") -> Any:
    """Call `original`, `Trainer.fit`, as a training that is moved, if it can be one."""
    watch = None
    try:
        call = inspect.signature(original).bind(*args, **kwargs)
        why = _why_not(args[0], call.arguments)
        if why is None:
            watch = _watch(args[0])
            watch.begin()
            call.arguments.update(watch.resumed(call.arguments))
            args, kwargs = call.args, call.kwargs
        elif why:
            say(f"this training is not moved by itself: {why}")
    except Exception as error:
        say(f"this training is not moved by itself, the hook failed: {error!r}")
        if watch is not None:
            watch.leave()
    try:
        return original(*args, **kwargs)
    finally:
        if watch is not None:
            watch.leave()


def _watch(trainer: Any) -> Any:
    global _begun  # noqa: PLW0603 - of one process
    before = signal.getsignal(signal.SIGTERM)
    from allpass import training
    from allpass.hooks.fitting import Fit

    _begun += 1
    return Fit(trainer, training.session(), before)


def _why_not(trainer: Any, given: "Dict[str, Any]") -> "Optional[str]":
    """In words, why this one is let be; empty where nobody wants to hear of it; None where it is served."""
    if any(type(one).__name__ in _FINDERS for one in trainer.callbacks):
        return ""
    if _begun:
        return "the script trains more than once, and the first training alone is; a move begins this one again"
    loop: Any = getattr(trainer, "fit_loop", None)
    is_known = all(hasattr(loop, name) for name in _LOOPS) and all(
        hasattr(loop.epoch_loop, name) for name in _EPOCH_LOOPS
    )
    model = given.get("model")
    reasons = (
        (not is_known or "ckpt_path" not in inspect.signature(type(trainer).fit).parameters, _UNKNOWN),
        (threading.current_thread() is not threading.main_thread(), "it does not run in the main thread"),
        (trainer.world_size > 1 or trainer.num_nodes > 1, "it trains in several processes"),
        (int(os.environ.get("WORLD_SIZE", "1")) > 1, "it trains in several processes"),
        (not getattr(model, "automatic_optimization", True), "the model steps its optimizers itself"),
        (bool(trainer.reload_dataloaders_every_n_epochs), "reload_dataloaders_every_n_epochs makes its data anew"),
        (bool(trainer.fast_dev_run) or trainer.barebones, ""),
    )
    return next((why for holds, why in reasons if holds), None)


_UNKNOWN = "this version of Lightning is unknown"
