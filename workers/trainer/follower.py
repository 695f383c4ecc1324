"""A process that takes its part of another one's training: `python -m workers.trainer.follower`.

It is started by `gathering`, loads the same model and rows, takes the same steps, and tells nobody anything
(`allpass.training.elastic.following`).
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from allpass.recipe.settings import Recipe
from allpass.training.elastic import following
from allpass.training.elastic.ranks import Join
from allpass.training.session import Session


def main() -> None:
    warnings.filterwarnings("ignore", category=FutureWarning)  # as in the first process
    following.serve(follow)


def follow(task: dict[str, Any], session: Session, join: Join) -> None:
    """The steps of the training from when the first process has it take part."""
    from workers.trainer import loop, rows
    from workers.trainer.main import be_quiet

    be_quiet()
    loop.train(Recipe.of(task["recipe"]), rows.load(Path(task["folder"])), session, join)


if __name__ == "__main__":
    main()
