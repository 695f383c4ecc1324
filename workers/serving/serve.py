"""Answers for a base model and the adapters on it, until nobody has asked for a while.

Its state is nothing but how many requests it has answered, so that it can be moved like any other job: it finishes the
answers that it is writing, saves that number, and goes on elsewhere.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from allpass import training  # first: from here on SIGTERM is a request, also while torch is loading
from workers.serving.door import NotServing, ServingDoor
from workers.serving.vllm_engine import VllmEngine, arguments
from workers.serving.vllm_server import COMMAND, EngineEnded, EngineStopped, VllmServer
from workers.serving.writer import AnswersAtOnce

TOKEN = "OPENAI_SERVING_TOKEN"  # noqa: S105 - the name of one
AT_ONCE = 16
DEFAULTS: dict[str, Any] = {
    "url": "", "server": "", "base": "", "idle_s": 300.0, "threads": 1, "at_once": AT_ONCE, "in_flight": 0,
    "engine": "auto",
}  # fmt: skip
_LOOK_S = 0.25  # for a request to leave, where nothing is asked


def main() -> None:
    told = training.parameters(**DEFAULTS)
    resumed = training.resume()
    answered = json.loads((resumed.path / "answered.json").read_text()) if resumed else 0
    door = ServingDoor(told["url"], told["server"], os.environ[TOKEN], uuid.uuid4().hex)
    began = time.monotonic()
    try:
        engine = begun(told)
    except EngineStopped:
        training.save(answered, write=keeper(answered))
        training.exit_if_stopping(answered)
        return
    print(
        f"serving: {told['base']} is loaded ({time.monotonic() - began:.1f} s, {engine.device}); at most "
        f"{told['at_once']} answers at once, of {engine.most_tokens} tokens",
        flush=True,
    )
    try:
        door.begin()
        serve(door, engine, answered, told["idle_s"], told["at_once"])
    except (NotServing, EngineEnded) as error:
        sys.exit(f"error: {error}: it is not asked any more" if isinstance(error, NotServing) else f"error: {error}")
    finally:
        engine.close()


def begun(told: Mapping[str, Any], command: Sequence[str] = COMMAND) -> Any:
    """The engine that is asked for; `auto` takes vLLM where there is a GPU with it, and goes on without it where it
    does not start. Raises EngineStopped; leaves the process where it was vLLM that was asked for."""
    if told["engine"] == "vllm" or (told["engine"] == "auto" and vllm_is_here()):
        server = VllmServer(told["base"], arguments(told["at_once"]), command=command, stops=training.stop_requested)
        try:
            server.start()
            return with_tokenizer(server)
        except EngineEnded as error:
            if told["engine"] == "vllm":
                sys.exit(f"error: {error}")
            print(f"serving: {error}: answers are written without it", flush=True)
    from workers.serving.engine import Engine

    return Engine(told["base"], told["threads"], told["in_flight"])


def vllm_is_here() -> bool:
    """With a GPU to compute on."""
    if importlib.util.find_spec("vllm") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def with_tokenizer(server: VllmServer) -> VllmEngine:
    from transformers import AutoTokenizer

    try:
        return VllmEngine(server, AutoTokenizer.from_pretrained(server.base))
    except BaseException:
        server.close()
        raise


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
