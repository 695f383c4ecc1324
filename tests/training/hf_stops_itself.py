"""examples/train_hf.py, sending itself SIGTERM in the middle of the step that the parameter `stop_at` names."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import train_hf

from allpass import training


class StopAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step + 1 == self._step:
            os.kill(os.getpid(), signal.SIGTERM)


def trainer_that_is_stopped(**options: Any) -> Trainer:
    own = training.parameters(stop_at=0, trainer={})
    for name, value in own["trainer"].items():
        setattr(options["args"], name, value)
    options["callbacks"].append(StopAt(own["stop_at"]))
    return Trainer(**options)


train_hf.Trainer = trainer_that_is_stopped
train_hf.main()
