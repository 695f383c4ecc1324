"""What a job of the built-in recipe runs: parameters and rows in, an adapter or a model out."""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import asdict
from pathlib import Path

from allpass import training
from allpass.errors import InvalidInput
from allpass.recipe.settings import Recipe
from allpass.training.session import EXIT_STOPPED, Session
from workers.trainer import fisher, loop, model, rows, tasks, together
from workers.trainer.loop import Diverged


def main(folder: Path) -> None:
    """Train on the rows in `folder` as the job's parameters say. Leaves the process with what is to be mended, where
    that is the job's own."""
    warnings.filterwarnings("ignore", category=FutureWarning)  # of libraries among themselves
    _be_quiet()
    try:
        train(folder)
    except (InvalidInput, Diverged, ValueError, OSError) as error:
        sys.exit(f"error: {error}")


def _be_quiet() -> None:
    """A log is no terminal: no progress bars, and no remarks on heads that are new because they have to be."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def train(folder: Path) -> None:
    """As `main`, for a caller who handles errors."""
    session = training.session()
    if together.COMPANION_FILE in os.environ:
        together.train(folder, session)
        return
    recipe = Recipe.of(session.parameters())
    if session.purpose == "profile":
        profile(folder, recipe, session)
        return
    loop.train(recipe, rows.load(folder), session)


def profile(folder: Path, recipe: Recipe, session: Session) -> None:
    """Tell what the job's rows ask of its model. Nothing is trained, saved or exported."""

    def leave_if_stopping() -> None:
        if session.stop_requested():
            sys.exit(EXIT_STOPPED)

    recipe = fisher.profiling(recipe)
    data = fisher.bounded(rows.load(folder))
    prepared = model.prepare(recipe, data.labels)
    found = fisher.embedding(tasks.load(data, recipe, prepared), prepared, between=leave_if_stopping)
    session.tell(profile=asdict(found))
    print(f"training: profiled {found.rows} rows, {found.tokens} tokens", flush=True)
