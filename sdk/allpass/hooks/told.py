"""What a `Trainer` tells of itself while it trains: when it has begun, its epochs, and what it logs."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Tuple

from transformers import TrainerCallback

from allpass.hooks.drawing import Drawing
from allpass.hooks.failing_open import FailingOpen
from allpass.training.session import Session


class Told(TrainerCallback):  # type: ignore[misc, unused-ignore]  # transformers may be untyped
    """Reports what is logged. `begun` is called with the arguments and the state, when all is loaded."""

    def __init__(
        self, session: Session, failing_open: FailingOpen, begun: "Callable[[Any, Any], None]", drawing: Drawing
    ) -> None:
        self.has_epoch_ended = False
        self._session = session
        self._open = failing_open
        self._begun = begun
        self._drawing = drawing
        self._logged: "Tuple[int, Dict[str, float]]" = (-1, {})

    def of_step(self, step: int) -> "Dict[str, float]":
        """What was logged of it."""
        newest, values = self._logged
        return values if newest == step else {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._open(lambda: self._begun(args, state), None)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.has_epoch_ended = False

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.has_epoch_ended = True
        self._drawing.is_known = True  # one fetch is all of such an epoch

    def on_log(self, args: Any, state: Any, control: Any, logs: "Optional[Dict[str, Any]]" = None, **_: Any) -> None:
        if logs:
            self._open(lambda: self.logged(state, logs or {}), None)

    def logged(self, state: Any, logs: "Dict[str, Any]") -> None:
        """All that is known of a step goes into its latest line."""
        if not state.is_world_process_zero or "train_runtime" in logs:
            return
        numbers = {
            name: value
            for name, value in logs.items()
            if isinstance(value, (int, float)) and name not in ("step", "checkpoint")
        }
        self._logged = (state.global_step, {**self.of_step(state.global_step), **numbers})
        self._session.report(state.global_step, **self._logged[1])
