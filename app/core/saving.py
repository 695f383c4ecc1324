"""Whether a job would lose what it has done if it left its machine, in words. Pure."""

from __future__ import annotations

HOW_TO_SAVE = (
    "a Hugging Face Trainer does both by itself (unless hooks are off), a loop that goes on from folders of its own "
    "once --checkpoints names them, other code with the lines of allpass.training: docs/guides/movable.md"
)
NEVER_SAVED = "has never saved, and does not say that it saves when it is asked to"
DOES_NOT_SAY = "its code does not say that it saves when it is asked to"


def why_not_movable(*, saves: bool, checkpoint_step: int | None) -> str | None:
    """Why no plan moves the job, with the way out; None for a job that has saved, or that saves when it is asked to."""
    if saves or checkpoint_step is not None:
        return None
    return f"{NEVER_SAVED}: moved, it would begin again at step 0; {HOW_TO_SAVE}"
