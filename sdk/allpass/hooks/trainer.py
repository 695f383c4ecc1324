"""An unchanged Transformers `Trainer` (or what is made of it: TRL, Axolotl, LLaMA-Factory) reports, saves, stops and
resumes by itself, at exactly its step.

    python train.py        # trainer = Trainer(...); trainer.train()

While `train()` runs, checkpoints that the script asks for are announced when they are complete, and others are made in
a place of ours, of which neither the script nor its callbacks see anything. Asked to stop, the process leaves right
there with code 75, at a step that all processes have agreed on.

It fails open: what goes wrong with us is told once, and the training goes on. What could not be resumed exactly is not
moved, and the log says why. Only the first training of a process is served, for nothing could tell the others apart.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import Any, Callable, Dict, Optional, Tuple

Original = Callable[..., Any]

_NEEDED = ("_save_checkpoint", "_maybe_log_save_evaluate", "_get_output_dir", "_load_rng_state", "add_callback")
_begun = 0  # trainings of this process that were served
_handlers: "Optional[Tuple[Any, Any]]" = None  # of SIGTERM: ours, and what was there before


def serve(original: Original, args: "Tuple[Any, ...]", kwargs: "Dict[str, Any]") -> Any:
    """Call `original`, `Trainer.train`, as a training that is moved, if it can be one."""
    trainer, *rest = args
    args = tuple(rest)
    watch, is_served = None, False
    try:
        why = _why_not(original, trainer, args, kwargs)
        if why is None:
            watch = _watch(trainer)
            prepared = watch.prepared(args, kwargs)
            if prepared is not None:
                (args, kwargs), is_served = prepared, True
        elif why:
            say(f"this training is not moved by itself: {why}")
    except Exception as error:
        say(f"this training is not moved by itself, the hook failed: {error!r}")
        die_of_sigterm()
    if watch is not None and not is_served:
        die_of_sigterm()
        watch.leave()
    try:
        return original(trainer, *args, **kwargs)
    finally:
        if watch is not None:
            watch.leave()


def say(text: str) -> None:
    with contextlib.suppress(OSError):  # a script may have closed it
        os.write(2, f"allpass: {text}\n".encode("utf-8", "replace"))  # nothing is left in a buffer of the script's


def _watch(trainer: Any) -> Any:
    global _begun, _handlers  # noqa: PLW0603 - one process, one signal handler
    before = signal.getsignal(signal.SIGTERM)
    from allpass import training

    session = training.session()  # from now on SIGTERM is a request
    if signal.getsignal(signal.SIGTERM) is not before:
        _handlers = (signal.getsignal(signal.SIGTERM), before)
    from allpass.hooks.watching import Watch

    _begun += 1
    return Watch(trainer, session)


def _why_not(original: Original, trainer: Any, args: "Tuple[Any, ...]", kwargs: "Dict[str, Any]") -> "Optional[str]":
    """In words, why this one is let be; empty where nobody wants to hear of it; None where it is served."""
    import inspect

    if any(type(one).__name__ == "AllpassCallback" for one in trainer.callback_handler.callbacks):
        return ""
    if _begun:
        die_of_sigterm()
        return "the script trains more than once, and the first training alone is; a move begins this one again"
    is_known = "resume_from_checkpoint" in inspect.signature(original).parameters
    is_search = kwargs.get("trial") is not None or (len(args) > 1 and args[1] is not None)
    is_main = threading.current_thread() is threading.main_thread()
    reasons = (
        (
            not is_known or not all(hasattr(trainer, name) for name in _NEEDED),
            "this version of transformers is unknown",
        ),
        (not is_main, "it does not run in the main thread"),
        (is_search, "it is one of a hyperparameter search"),
        (getattr(trainer.args, "save_only_model", False), "save_only_model=True leaves out what is needed to resume"),
        (getattr(trainer.args, "ignore_data_skip", False), "ignore_data_skip=True begins the data anew when resuming"),
    )
    return next((why for holds, why in reasons if holds), None)


def die_of_sigterm() -> None:
    """What follows cannot be saved: SIGTERM does what it did before."""
    if _handlers is not None and signal.getsignal(signal.SIGTERM) is _handlers[0]:
        signal.signal(signal.SIGTERM, _handlers[1] or signal.SIG_DFL)
