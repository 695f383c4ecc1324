"""How much of OpenAI's own client works here, and how soon a fine-tuned model answers.

    .venv/bin/python -m benchmarks.openai_door

A real stack on this host, a model that is made on the spot, trained through the door and asked through it. Every public
method of files, uploads, fine_tuning, models, chat.completions and completions, found in the client itself, is
called with the blocking and with the asynchronous client: it counts when it does what its types and documentation
say, checked strictly, or where it is refused here, when that is a typed 400. A method without a probe counts as one
that does not work. `value` is the share. Times are those of this host's processor: `first_token_s` of an adapter whose
base is loaded and that was used before (`warm`), of one that comes with its first request (`cold_adapter`), and of a
model that nobody has loaded, with the start of an emulated machine (`cold`).
"""

from __future__ import annotations

import asyncio
import inspect
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
from openai import AsyncOpenAI, OpenAI

from app.stack.supervisor import Stack, StackOptions
from benchmarks.openai_probes import PROBES, REFUSED, Ground

GOAL = 1.0
RESOURCES = (
    "files", "uploads", "uploads.parts", "fine_tuning.jobs", "fine_tuning.jobs.checkpoints",
    "fine_tuning.checkpoints.permissions", "fine_tuning.alpha.graders", "models", "chat.completions",
    "chat.completions.messages", "completions",
)  # fmt: skip
_ROUNDS = 7
_SETTINGS = {"ALLPASS_OPENAI_SERVING_IDLE_S": "120", "ALLPASS_POLL_S": "0.25", "ALLPASS_TICK_S": "1"}


def methods() -> Iterator[str]:
    """Those of the client, by name: `files.create`."""
    client = OpenAI(api_key="x")
    for resource in RESOURCES:
        held: Any = client
        for part in resource.split("."):
            held = getattr(held, part)
        for name, _ in inspect.getmembers(type(held), inspect.isfunction):
            if not name.startswith("_"):
                yield f"{resource}.{name}"


async def behaves(name: str, ground: Ground) -> str:
    """Nothing, where the method does what it should; else what is wrong."""
    try:
        if name in REFUSED:
            try:
                await REFUSED[name](ground)
            except openai.BadRequestError as error:
                return "" if error.code else "refused without a code"
            return "is not refused"
        if name not in PROBES:
            return "nobody has tried it"
        await PROBES[name](ground)
    except Exception as error:  # whatever it is, it is not what the method should do
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""


def first_token_s(client: OpenAI, model: str) -> float:
    began = time.perf_counter()
    messages: Any = [{"role": "user", "content": "1+1="}]
    for piece in client.chat.completions.create(model=model, messages=messages, max_tokens=4, stream=True):
        if piece.choices and piece.choices[0].delta.content:
            break
    return time.perf_counter() - began


async def measure(folder: Path, stack: Stack) -> dict[str, Any]:
    known = json.loads(stack.layout.client_file.read_text())
    address: Any = {"base_url": f"{known['url']}/openai/v1", "api_key": known["api_key"], "max_retries": 0}
    blocking, awaited = OpenAI(**address), AsyncOpenAI(**address)
    ground = Ground.made(folder, blocking)
    cold = first_token_s(blocking, ground.models[0])
    cold_adapters = [first_token_s(blocking, model) for model in ground.models[1:]]
    warm = [first_token_s(blocking, ground.models[0]) for _ in range(_ROUNDS)]
    wrong: dict[str, str] = {}
    names = list(methods())
    for client in (blocking, awaited):
        for name in names:
            told = await behaves(name, ground.with_client(client))
            if told:
                wrong[f"{type(client).__name__}.{name}"] = told
    await awaited.close()
    return {
        "name": "openai_door",
        "value": round(1 - len(wrong) / (2 * len(names)), 4),
        "goal": GOAL,
        "unit": "share of methods",
        "detail": {
            "client": openai.__version__,
            "methods": len(names),
            "refused": sorted(REFUSED),
            "wrong": wrong,
            "first_token_s": {
                "warm": round(statistics.median(warm), 3),
                "cold_adapter": round(statistics.median(cold_adapters), 3),
                "cold": round(cold, 2),
            },
        },
    }


def main() -> int:
    """0: as good as the goal."""
    with tempfile.TemporaryDirectory(prefix="openai-door-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # machines run code as other users
        stack = Stack(StackOptions(folder / "data", port=0, cloud_speed=0.02, settings=_SETTINGS), tell=print)
        stack.start()
        try:
            result = asyncio.run(measure(folder, stack))
        finally:
            stack.stop()
    print(json.dumps(result))
    return 0 if result["value"] >= GOAL else 1


if __name__ == "__main__":
    raise SystemExit(main())
