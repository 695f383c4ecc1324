"""Makes an ordinary Hugging Face Trainer script movable: `Trainer(..., callbacks=[AllpassCallback()])`.

Nothing else in the script changes. Metrics are reported as they are logged; a checkpoint is saved every
`ALLPASS_CHECKPOINT_INTERVAL_S` and when a stop is asked for; the resumed script continues at the exact step.

How it resumes: Trainer loads a checkpoint only when `train()` is told to, and offers callbacks no way to say so. The
callback therefore wraps `Trainer.train` (once, when the first callback is made); the wrapper passes the folder of
ALLPASS_RESUME_DIR for trainers that carry an AllpassCallback, and changes nothing for any other.
"""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any, Optional

from transformers import Trainer, TrainerCallback

from allpass import training
from allpass.training.checkpoints import link_tree


class AllpassCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]  # transformers may be untyped
    """Reports, saves, stops and resumes one Trainer.

    On SIGTERM the trainer saves after the current optimizer step (an evaluation due at that step runs first), and
    when `train()` is about to return, the process ends with code 75: what follows in the script belongs to a finished
    training. After the last step no checkpoint is announced, because a Trainer resumed there would take one step too
    many: a stop that late is answered by finishing.
    Needs full checkpoints: `save_only_model=True` is refused when training begins.
    """

    def __init__(self) -> None:
        _wrap_train()
        self._session = training.session()
        self._logged_step = -1
        self._logged: "dict[str, float]" = {}
        self._is_extra_save = False

    def resume_folder(self) -> Optional[str]:
        """What `train(resume_from_checkpoint=...)` is to get: this process's checkpoint, or None."""
        resume = self._session.resume()
        return None if resume is None else str(resume.path)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if args.save_only_model:
            raise ValueError("save_only_model=True leaves out what is needed to resume: remove it to run on Allpass")
        if state.is_world_process_zero:
            self._session.describe(
                micro_batch=args.per_device_train_batch_size,
                accumulation=args.gradient_accumulation_steps,
                checkpointing=bool(args.gradient_checkpointing),
                sharding="fsdp" if args.fsdp else None,
                total_steps=state.max_steps,
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Runs after the trainer's own decision for this step, and adds to it."""
        self._is_extra_save = False
        if _is_finished(state):
            return control
        if self._session.should_checkpoint(state.global_step) and not control.should_save:
            self._is_extra_save = True
            control.should_save = True
        if self._session.stop_requested():
            control.should_training_stop = True
            control.should_log = True  # or the losses since the last log would be lost
        return control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """A step saved a moment ago is not saved again: its files are shared with the copy being uploaded."""
        self._is_extra_save = False
        if control.should_save and _checkpoint(args, state).is_dir() and self._session.saved_step == state.global_step:
            control.should_save = False
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: "Optional[dict[str, Any]]" = None, **_: Any) -> None:
        """Report losses and evaluations; all that is known of a step goes into its latest line."""
        if not state.is_world_process_zero or not logs or "train_runtime" in logs:
            return
        if state.global_step != self._logged_step:
            self._logged_step, self._logged = state.global_step, {}
        self._logged.update({name: value for name, value in logs.items() if isinstance(value, (int, float))})
        self._session.report(state.global_step, **self._logged)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Announce the trainer's complete `checkpoint-N`, wherever it is: it is linked into the checkpoint directory,
        and a save that the trainer did not ask for itself leaves nothing in its output directory."""
        if not state.is_world_process_zero or _is_finished(state):
            return
        source = _checkpoint(args, state)
        if not source.is_dir():
            raise FileNotFoundError(f"{source} was expected: AllpassCallback does not serve hyperparameter searches")
        metrics = self._logged if self._logged_step == state.global_step else {}
        self._session.save(state.global_step, lambda folder: link_tree(source, folder), metrics)
        if self._is_extra_save and state.best_model_checkpoint != str(source):
            shutil.rmtree(source)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._session.exit_if_stopping(state.global_step)


def _is_finished(state: Any) -> bool:
    return bool(state.global_step >= state.max_steps)


def _checkpoint(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _wrap_train() -> None:
    """Let `Trainer.train` resume where Allpass says, for trainers that carry the callback. Wrapped at most once."""
    original = Trainer.train
    if getattr(original, "resumes_on_allpass", False):
        return

    @functools.wraps(original)
    def train(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, AllpassCallback):
                resume_from_checkpoint = callback.resume_folder() or resume_from_checkpoint
        return original(self, resume_from_checkpoint, *args, **kwargs)

    train.resumes_on_allpass = True  # type: ignore[attr-defined]  # a mark of ours on their function
    # Theirs is replaced on purpose.
    Trainer.train = train  # type: ignore[method-assign, unused-ignore]
