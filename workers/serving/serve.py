"""Answers for a base model and the adapters on it, until nobody has asked for a while.

Its state is nothing but how many requests it has answered, so that it can be moved like any other job: it finishes the
answer that it is writing, saves that number, and goes on elsewhere.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from allpass import training  # first: from here on SIGTERM is a request, also while torch is loading
from workers.serving.door import NotServing, ServingDoor

TOKEN = "OPENAI_SERVING_TOKEN"  # noqa: S105 - the name of one
_TOLD_EVERY_S = 0.05
_ASK_S = 5.0  # a request to leave is heard between two polls


def main() -> None:
    settings = training.parameters(url="", server="", base="", idle_s=300.0, threads=1)
    resumed = training.resume()
    answered = json.loads((resumed.path / "answered.json").read_text()) if resumed else 0
    from workers.serving.engine import Engine

    door = ServingDoor(settings["url"], settings["server"], os.environ[TOKEN], uuid.uuid4().hex)
    began = time.monotonic()
    engine = Engine(settings["base"], settings["threads"])
    print(f"serving: {settings['base']} is loaded ({time.monotonic() - began:.1f} s, {engine.device})", flush=True)
    try:
        door.begin()
        serve(door, engine, answered, settings["idle_s"])
    except NotServing as error:
        sys.exit(f"error: {error}: it is not asked any more")


def serve(door: Any, engine: Any, answered: int, idle_s: float) -> None:
    """One request after the other, until nobody has asked for `idle_s`."""
    idle_since = time.monotonic()
    while time.monotonic() - idle_since < idle_s:
        if training.should_checkpoint(answered):
            training.save(answered, write=keeper(answered))
        training.exit_if_stopping(answered)
        request = door.take(0 if training.stop_requested() else min(_ASK_S, idle_s))
        if request is not None:
            answer(door, engine, request)
            answered += 1
            idle_since = time.monotonic()
    print(f"serving: {answered} requests answered, and none for {idle_s:g} s: ends", flush=True)


def keeper(answered: int) -> Any:
    def keep(folder: Path) -> None:
        (folder / "answered.json").write_text(json.dumps(answered))

    return keep


def answer(door: Any, engine: Any, request: dict[str, Any]) -> None:
    """What is wrong with one request is told, and harms no other."""
    try:
        adapter = ready_adapter(door, engine, request)
        prompt = engine.encode(request["body"])
        pieces = engine.write(prompt, adapter, request["body"])
        tell_all(door, request["id"], len(prompt), pieces)
    except ValueError as error:
        door.tell(request["id"], error=str(error)[:1000], is_request_wrong=True)
    except Exception as error:  # whatever a model's code raises: the next request may go well
        print(f"serving: {request['id']} failed: {error!r}", flush=True)
        door.tell(request["id"], error=f"{type(error).__name__}: {str(error)[:500]}")


def ready_adapter(door: Any, engine: Any, request: dict[str, Any]) -> str | None:
    """The adapter's name, once it is loaded."""
    name = request.get("adapter")
    files = request.get("files") or {}
    if not isinstance(name, str):
        return None
    if engine.has(name):
        return name
    folder = Path(tempfile.mkdtemp(prefix="adapter-"))
    try:
        for file, url in files.items():
            door.fetch(url, folder / Path(file).name)
        engine.load(name, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return name


def tell_all(door: Any, request_id: str, prompt_tokens: int, pieces: Any) -> None:
    """As it is written, a few times a second. Stops where nobody listens any more."""
    waiting: list[str] = []
    told_at, position = 0.0, 0
    for piece in pieces:
        waiting.append(piece.text)
        now = time.monotonic()
        if piece.reason is None and (now - told_at < _TOLD_EVERY_S or not any(waiting)):
            continue
        told = {
            "text": "".join(waiting),
            "position": position,
            "prompt_tokens": prompt_tokens,
            "completion_tokens": piece.tokens,
        }
        goes_on = door.tell(request_id, **told, finish_reason=piece.reason)
        waiting, told_at, position = [], now, position + 1
        if not goes_on:
            return


if __name__ == "__main__":
    main()
