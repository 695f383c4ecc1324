"""Answers for a base model and the adapters on it, until nobody has asked for a while.

Its state is nothing but how many requests it has answered, so that it can be moved like any other job: it finishes the
answers that it is writing, saves that number, and goes on elsewhere.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from allpass import training  # first: from here on SIGTERM is a request, also while torch is loading
from workers.serving.door import NotServing, ServingDoor
from workers.serving.writer import AnswersAtOnce

TOKEN = "OPENAI_SERVING_TOKEN"  # noqa: S105 - the name of one
AT_ONCE = 16
_LOOK_S = 0.25  # for a request to leave, where nothing is asked


def main() -> None:
    told = training.parameters(url="", server="", base="", idle_s=300.0, threads=1, at_once=AT_ONCE, in_flight=0)
    resumed = training.resume()
    answered = json.loads((resumed.path / "answered.json").read_text()) if resumed else 0
    from workers.serving.engine import Engine

    door = ServingDoor(told["url"], told["server"], os.environ[TOKEN], uuid.uuid4().hex)
    began = time.monotonic()
    engine = Engine(told["base"], told["threads"], told["in_flight"])
    print(
        f"serving: {told['base']} is loaded ({time.monotonic() - began:.1f} s, {engine.device}); at most "
        f"{told['at_once']} answers at once, of {engine.most_tokens} tokens together",
        flush=True,
    )
    try:
        door.begin()
        serve(door, engine, answered, told["idle_s"], told["at_once"])
    except NotServing as error:
        sys.exit(f"error: {error}: it is not asked any more")


def serve(door: Any, engine: Any, answered: int, idle_s: float, at_once: int = AT_ONCE) -> None:
    """Many requests at once, until nobody has asked for `idle_s`. Asked to leave, or idle, it takes no more, and ends
    when the last of what it has taken is told."""
    answers = AnswersAtOnce(door, engine, at_once, answered)
    idle_since, is_idle = time.monotonic(), False
    try:
        while not (is_idle and answers.is_empty):
            if training.should_checkpoint(answers.answered):
                training.save(answers.answered, write=keeper(answers.answered))
            if training.stop_requested() or is_idle:
                answers.desk.stop_asking()
            if training.stop_requested() and answers.is_empty:
                training.exit_if_stopping(answers.answered)
            if answers.turn(_LOOK_S) or not answers.is_empty:
                idle_since = time.monotonic()
            is_idle = is_idle or time.monotonic() - idle_since >= idle_s
    finally:
        answers.close()
    print(f"serving: {answers.answered} requests answered, and none for {idle_s:g} s: ends", flush=True)


def keeper(answered: int) -> Any:
    def keep(folder: Path) -> None:
        (folder / "answered.json").write_text(json.dumps(answered))

    return keep


if __name__ == "__main__":
    main()
