"""The job that waits to begin with this one's weights: how well these do on its held-out rows, now and then.

Where it gains nothing in the first epochs, it has no reason to wait (ADR 0027). Its numbers go to the control plane
alone: neither into this job's metrics nor into its log.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allpass.recipe.settings import Recipe
from allpass.training.session import Session
from workers.trainer import rows, tasks
from workers.trainer.begun import begins
from workers.trainer.evaluation import evaluate
from workers.trainer.model import Prepared
from workers.trainer.tasks import TrainingTask

ORDER_NAME = "watch.json"  # beside its rows: its job, and its parameters
MOST_ROWS = 256
_NOBODY: dict[str, Any] = {"job_id": None, "before": None, "first_step": 0, "improved": False}


class FolderWatch:
    """`folder` holds a folder for the job that waits, if there is one by now; another one may come, or none.

    Nothing that goes wrong here is this job's concern.
    """

    def __init__(self, folder: Path | None, task: TrainingTask, prepared: Prepared, session: Session) -> None:
        self._folder = folder
        self._own = task
        self._prepared = prepared
        self._session = session
        self._state = dict(_NOBODY)
        self._task: TrainingTask | None = None  # of that job; None: its rows are not read, or cannot be looked at
        self._seen: Path | None = None  # whose rows were read

    def look(self, step: int) -> None:
        """After an evaluation of its own, or before all steps. Gives way to a stop."""
        try:
            self._find()
            if self._task is not None:
                found = evaluate(self._task, self._prepared, gives_up=self._session.stop_requested)
                if found is not None:
                    self._take_in(step, found["eval_loss"])
        except Exception:  # of whatever library
            self._task = None

    def state(self) -> dict[str, Any]:
        """All of it, as plain data."""
        return dict(self._state)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        self._state = dict(state)

    def _find(self) -> None:
        there = [] if self._folder is None or not self._folder.is_dir() else sorted(self._folder.iterdir())
        found = next((path for path in there if not path.name.startswith(".")), None)
        if found == self._seen:
            return
        self._seen, self._task = found, None
        if found is None:
            return
        order = json.loads((found / ORDER_NAME).read_text(encoding="utf-8"))
        if order["job_id"] != self._state["job_id"]:
            self._state = {**_NOBODY, "job_id": order["job_id"]}
        data = rows.load_held_out(found, MOST_ROWS)
        if data.held_out and data.labels == self._own.labels:  # else it will have a head that nobody has trained yet
            with contextlib.suppress(ValueError):  # its own run will be told what is wrong with its rows
                self._task = tasks.load(data, begins(Recipe.of(order["parameters"]), data), self._prepared)

    def _take_in(self, step: int, loss: float) -> None:
        state = self._state
        if state["before"] is None:
            if math.isfinite(loss):
                state.update(before=loss, first_step=step)
            return
        state["improved"] = state["improved"] or loss < state["before"]
        epochs = (step - state["first_step"]) / self._own.stream.steps_per_epoch
        told = {"job_id": state["job_id"], "epochs": epochs, "fruitless_epochs": 0.0 if state["improved"] else epochs}
        self._session.tell(watch=told)
