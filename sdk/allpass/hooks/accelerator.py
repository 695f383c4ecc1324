"""A loop of one's own over `accelerate` moves by itself, if it goes on from what it has saved when it starts.

    accelerator = Accelerator()
    ...
    if found := sorted(Path("out").glob("step_*"), key=by_number):
        accelerator.load_state(found[-1])
    ...
    accelerator.save_state(f"out/step_{step}")

What `save_state` has written is a checkpoint, and is back in its place before the script starts again. When that is
asked to leave, it leaves right after its next `save_state`. Nothing is saved that the script does not save: where in
its loop it is, nobody else knows. It fails open, as the other hooks do (`allpass.hooks.trainer`).
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Tuple

from allpass.hooks.trainer import say

_NEEDED = ("save_state", "load_state", "backward", "num_processes", "process_index", "project_configuration")
_begun = 0  # those of this process that were looked at


def serve(original: "Callable[..., Any]", args: "Tuple[Any, ...]", kwargs: "Dict[str, Any]") -> Any:
    """Call `original`, `Accelerator.__init__`, and follow what it makes."""
    original(*args, **kwargs)
    try:
        _follow(args[0], sys._getframe(2).f_globals.get("__name__", ""))
    except Exception as error:
        say(f"this training is not moved by itself, the hook failed: {error!r}")


def _follow(accelerator: Any, made_by: str) -> None:
    global _begun  # noqa: PLW0603 - of one process
    code = _code()
    is_a_scripts = not made_by.startswith("transformers.")  # a Trainer is followed by a hook of its own
    if code is None or not is_a_scripts or threading.current_thread() is not threading.main_thread():
        return
    _begun += 1
    if _begun > 1 or not all(hasattr(accelerator, name) for name in _NEEDED):
        return
    from allpass.hooks.accelerating import States

    States(accelerator, code).begin()


def _code() -> "Optional[Path]":
    """Where the job's code lies; None where the job's owner has said himself where its checkpoints are, or where this
    process is not in that folder: what it saves could not be put back."""
    folder = os.environ.get("ALLPASS_CODE_DIR")
    if not folder:
        return None
    template = os.environ.get("ALLPASS_TEMPLATE_FILE")
    if template and Path(template).is_file():
        told = json.loads(Path(template).read_text(encoding="utf-8")).get("checkpoints")
        if isinstance(told, dict) and told.get("folders"):
            return None
    return Path(folder)
