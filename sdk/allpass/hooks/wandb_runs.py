"""A run of Weights & Biases goes on after a move: `wandb.init` is given an id that the job's machines agree on.

Whoever names a run himself (`id`, `resume`, WANDB_RUN_ID, a sweep of W&B's own) is let be.
"""

from __future__ import annotations

import inspect
import os
import sys
from typing import Any, Callable, Dict, Tuple

from allpass.hooks.tracked import key_of, settings_of, tell_link
from allpass.hooks.trainer import say

_OWN = ("id", "resume_from", "fork_from")
_OWN_VARIABLES = ("RUN_ID", "RESUME", "RESUME_FROM", "FORK_FROM", "SWEEP_ID")
_NAMES = ("entity", "project", "name", "group", "job_type")


def serve(original: "Callable[..., Any]", args: "Tuple[Any, ...]", kwargs: "Dict[str, Any]") -> Any:
    """Call `original`, `wandb.init`."""
    try:
        kwargs = {**kwargs, **_continued(inspect.signature(original).bind_partial(*args, **kwargs).arguments)}
    except Exception as error:
        say(f"this W&B run does not go on after a move, the hook failed: {error!r}")
    run = original(*args, **kwargs)
    try:
        _begun(run)
    except Exception as error:
        say(f"the link to a W&B run is not known: {error!r}")
    return run


def _continued(given: "Dict[str, Any]") -> "Dict[str, Any]":
    """What the call is to be given besides."""
    settings = given.get("settings")
    told = settings if isinstance(settings, dict) else vars(settings) if settings is not None else {}
    mode = given.get("mode") or told.get("mode") or os.environ.get("WANDB_MODE")
    is_own = (
        sys.modules["wandb"].run is not None
        or any(given.get(name) is not None for name in _OWN)
        or given.get("resume") not in (None, "allow")
        or any(os.environ.get(f"WANDB_{name}") for name in _OWN_VARIABLES)
        or any(told.get(name) is not None for name in ("run_id", "resume", "resume_from", "fork_from"))
    )
    if is_own or mode == "disabled":
        return {}
    names = {name: given.get(name) for name in _NAMES}
    key = key_of("wandb", {**names, "config": settings_of(given.get("config"))})
    if key is None:
        return {}
    return {"id": key} if mode == "offline" else {"id": key, "resume": "allow"}


def _begun(run: Any) -> None:
    if getattr(run, "resumed", False):
        _let_settings_change(run.config)
    if not getattr(run, "offline", True) and not getattr(run, "disabled", False):
        tell_link("wandb", run.url)


def _let_settings_change(config: Any) -> None:
    """Begun again, a script may set another folder or time than before: that is no reason to end it."""
    check = config._sanitize

    def sanitize(key: Any, value: Any, allow_val_change: Any = None) -> Any:
        return check(key, value, True if allow_val_change is None else allow_val_change)

    object.__setattr__(config, "_sanitize", sanitize)
