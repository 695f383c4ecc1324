"""What a job of the built-in recipe runs: parameters and rows in, an adapter or a model out."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from allpass import training
from allpass.errors import InvalidInput
from allpass.recipe.settings import Recipe
from allpass.training.elastic import given_gpus
from allpass.training.elastic.gathering import own_gpus
from allpass.training.elastic.ranks import RankFailed
from allpass.training.elastic.seat import Seat
from allpass.training.session import EXIT_STOPPED, Session
from workers.trainer import begun, fisher, gathering, loop, model, rows, tasks, together
from workers.trainer.follower import follow
from workers.trainer.loop import Diverged
from workers.trainer.rows import Data
from workers.trainer.split_checkpoints import OfMachine

MOST_LOOK_S = 600.0  # at a task, by a job that waits to train


def main(folder: Path) -> None:
    """Train on the rows in `folder` as the job's parameters say. Leaves the process with what is to be mended, where
    that is the job's own."""
    warnings.filterwarnings("ignore", category=FutureWarning)  # of libraries among themselves
    be_quiet()
    try:
        train(folder)
    except (InvalidInput, Diverged, RankFailed, ValueError, OSError) as error:
        sys.exit(f"error: {error}")


def be_quiet() -> None:
    """A log is no terminal: no progress bars, and no remarks on heads that are new because they have to be."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def train(folder: Path) -> None:
    """As `main`, for a caller who handles errors."""
    session = training.session()
    gpus = own_gpus(session)
    given_gpus.check(session)
    if together.COMPANION_FILE in os.environ:
        together.train(folder, session)
        return
    seat = Seat.of(session.environment)
    if seat is not None and seat.rank:
        take_part(folder, session, gpus, seat)
        return
    recipe = Recipe.of(session.parameters())
    if session.purpose == "profile":
        profile(folder, recipe, session)
        return
    data = rows.load(folder)
    recipe = begun.settled(recipe, data, session, processes=len(gpus) * (1 if seat is None else seat.nodes))
    if session.profiles and not recipe.sharded:  # a look would have all of the model on one GPU
        profile_first(recipe, data, session)
    with gathering.gathered(folder, recipe, session, begun.used(gpus, recipe, session, seat), seat) as join:
        loop.train(recipe, data, session, join)


def take_part(folder: Path, session: Session, gpus: Sequence[str], seat: Seat) -> None:
    """On a further machine of a job on several: all its steps, until the first machine is through, with which this
    process ends."""
    with gathering.joined(folder, session, gpus, seat) as (task, join):
        follow(task, OfMachine(), join)


def profile(folder: Path, recipe: Recipe, session: Session) -> None:
    """Tell what the job's rows ask of its model. Nothing is trained, saved or exported."""

    def leave_if_stopping() -> None:
        if session.stop_requested():
            sys.exit(EXIT_STOPPED)

    recipe = fisher.profiling(recipe)
    data = fisher.bounded(rows.load(folder))
    _look(recipe, data, model.prepare(recipe, data.labels), session, between=leave_if_stopping)


def profile_first(recipe: Recipe, data: Data, session: Session) -> None:
    """As `profile`, of a job that goes on to train, with the same bits as if nobody had looked. Whatever goes wrong is
    not its concern."""
    begun_s = time.monotonic()

    def give_up() -> None:
        if session.stop_requested():
            raise _GivenUp("the job is to stop")
        if time.monotonic() - begun_s > MOST_LOOK_S:
            raise _GivenUp(f"it takes longer than {MOST_LOOK_S:g} s")

    def look() -> None:
        """Nothing of it is referred to when it is over."""
        looking = fisher.profiling(recipe)
        with model.lent(looking, data.labels, recipe) as prepared:
            _look(looking, fisher.bounded(data), prepared, session, between=give_up)

    try:
        look()
    except Exception as error:  # of whatever library
        print(f"training: without a profile of its task: {error}", flush=True)
    model.free_memory()


class _GivenUp(Exception):
    """A look at a task is not worth more time."""


def _look(
    recipe: Recipe, data: Data, prepared: model.Prepared, session: Session, *, between: Callable[[], None]
) -> None:
    found = fisher.embedding(tasks.load(data, recipe, prepared), prepared, between=between)
    session.tell(profile=asdict(found))
    print(f"training: profiled {found.rows} rows, {found.tokens} tokens", flush=True)
